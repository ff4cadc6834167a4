"""The token that follows each token."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from numpy.typing import NDArray

from ratchet.problems.protocol import Choice, Target

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["PADDED", "NextToken"]

PADDED = -100  # target of the places behind the end of a token stream


@dataclass(frozen=True)
class NextToken(Target):
    """The token that follows each token. Targets: int64 (n, context). Outputs: logits (n, context, tokens)."""

    tokens: int  # ids of the vocabulary
    problem: Literal["next-token"] = "next-token"
    names = ()

    losses: ClassVar[tuple[str, ...]] = ("cross-entropy",)
    best: ClassVar[tuple[str, ...]] = ("loss", "perplexity")
    meaning: ClassVar[str] = "one logit per token at each place"
    is_indexed: ClassVar[bool] = True
    dimensions: ClassVar[int] = 3
    ignored: ClassVar[int | None] = PADDED

    @property
    def description(self) -> str:
        return "next token"

    @property
    def outputs(self) -> int:
        return self.tokens

    def flat(self, outputs: "Tensor", targets: "Tensor") -> "tuple[Tensor, Tensor]":
        return outputs.flatten(0, 1), targets.flatten()

    def sums(self, ignored: int, device: "torch.device") -> "_Sums":
        return _Sums(ignored, device)

    @classmethod
    def choose(cls, *, classes: Choice, labels: Choice, numbers: Choice) -> Choice:
        raise NotImplementedError("token streams have a baseline of their own")

    @classmethod
    def of_values(
        cls, names: tuple[str, ...], values: NDArray[Any], measure: Callable[[NDArray[Any]], Any]
    ) -> "NextToken":
        return cls(0)  # the vocabulary is learned in training


class _Sums:
    """Perplexity, e to the loss."""

    def __init__(self, ignored: int, device: "torch.device") -> None:
        import torch

        self.ignored, self.values = ignored, torch.zeros(1, dtype=torch.int64, device=device)

    def add(self, outputs: "Tensor", targets: "Tensor") -> None:
        self.values += (targets != self.ignored).sum()

    def metrics(self, loss: float) -> dict[str, float]:
        mean = loss / max(int(self.values), 1)
        return {"loss": mean, "perplexity": math.exp(min(mean, 700.0))}
