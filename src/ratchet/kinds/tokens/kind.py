"""Token streams, which language models learn, and the prompts that these continue."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ratchet.kinds.inputs import TokensInput
from ratchet.kinds.protocol import Arrays, InputError, Kind, Unencoded, go_on

if TYPE_CHECKING:
    from mlflow.types import Schema

__all__ = ["TokenStreams"]


class TokenStreams(Kind[TokensInput]):
    """Pieces of a token stream. A request has prompts; no array is made of them."""

    name = "tokens"
    program_inputs = ("ids",)
    unit = "bytes"
    generates = True
    tokenizes = True

    def zeros(self, spec: TokensInput, rows: int) -> Arrays:
        return (np.zeros((rows, spec.context), np.int64),)

    def read(self, values: Any, spec: TokensInput, field: str, check: Callable[[], None] = go_on) -> Arrays | Unencoded:
        raise InputError(f"{field}: the model writes texts; send prompts")

    def example_values(self, spec: TokensInput) -> list[str]:
        """Return one token as a prompt: a letter or word if there is one."""
        return [next(filter(str.isalnum, spec.vocabulary), spec.vocabulary[0] if spec.vocabulary else "a")]

    def mlflow_schema(self, spec: TokensInput) -> "Schema":
        from mlflow.types import ColSpec, Schema

        return Schema([ColSpec("string")])

    def summary(self, spec: TokensInput) -> str:
        return "texts to continue"
