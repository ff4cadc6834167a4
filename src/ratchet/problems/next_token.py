"""The token that follows each token."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ratchet.problems.protocol import Floats, Target, logits, softmax

__all__ = ["NextToken"]


@dataclass(frozen=True)
class NextToken(Target):
    """The token that follows each token. Targets: int64 (n, context). Outputs: logits (n, context, tokens)."""

    tokens: int  # ids of the vocabulary
    problem: Literal["next-token"] = "next-token"
    names = ()

    @property
    def described(self) -> str:
        return "next token"

    @property
    def outputs(self) -> int:
        return self.tokens

    def predictions(self, outputs: Floats) -> NDArray[np.float64]:
        """Return the probability of each token at each place, (n, context, tokens), from logits."""
        return softmax(outputs)

    def outputs_of(self, predictions: Floats) -> NDArray[np.float32]:
        return logits(predictions)
