"""Token streams, which language models learn, and the prompts that these continue."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from ratchet.kinds.inputs import TokensInput
from ratchet.kinds.protocol import Arrays, InputError, Kind, Unencoded, go_on

if TYPE_CHECKING:
    from mlflow.types import Schema

    from ratchet.problems import Target
    from ratchet.training import Split

__all__ = ["TokenStreams"]


_CONTEXT = 64  # tokens of a language model where model.context is 0


class TokenStreams(Kind[TokensInput]):
    """Pieces of a token stream. A request has prompts; no array is made of them."""

    name = "tokens"
    networks = MappingProxyType({"decoder": "Decoder"})
    program_inputs = ("ids",)
    unit = "bytes"
    noun = ("piece", "pieces")
    generates = True
    usual_copies = 0.2  # lines
    baseline = "ngrams"
    tokenizes = True

    def zeros(self, spec: TokensInput, rows: int) -> Arrays:
        return (np.zeros((rows, spec.context), np.int64),)

    def read(self, values: Any, spec: TokensInput, field: str, check: Callable[[], None] = go_on) -> Arrays | Unencoded:
        raise InputError(f"{field}: the model writes texts; send prompts")

    def open_split(self, packed: Path, name: str, manifest: Mapping[str, Any], spec: TokensInput) -> "Split":
        from ratchet.training.streams import StreamSplit

        return StreamSplit.read(packed, name, manifest, spec)

    def model_input(
        self,
        packed: Path,
        manifest: Mapping[str, Any],
        spec: TokensInput,
        *,
        model: str,
        tokenizer: str,
        context: int,
        root: str,
    ) -> TokensInput:
        """Return the input with a tokenizer learned from the training text."""
        from ratchet.tokens.token_ids import fit
        from ratchet.training.streams import read_text

        name = "characters" if tokenizer == "auto" else tokenizer
        return fit(read_text(packed, "train", manifest), name, context=context or _CONTEXT)

    def model_target(self, spec: TokensInput, target: "Target") -> "Target":
        """Return the target with the number of tokens of the model's tokenizer."""
        from ratchet.problems import NextToken
        from ratchet.tokens.token_ids import tokens

        return NextToken(tokens(spec))

    def example_values(self, spec: TokensInput) -> list[str]:
        """Return one token as a prompt: a letter or word if there is one."""
        return [next(filter(str.isalnum, spec.vocabulary), spec.vocabulary[0] if spec.vocabulary else "a")]

    def mlflow_schema(self, spec: TokensInput) -> "Schema":
        from mlflow.types import ColSpec, Schema

        return Schema([ColSpec("string")])

    def summary(self, spec: TokensInput) -> str:
        return "texts to continue"
