"""Any number of labels at once."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from ratchet.problems.protocol import ELEMENTWISE, LEAST_PROBABILITY, Choice, Divergence, Floats, Target

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["Labels", "log_odds"]


@dataclass(frozen=True)
class Labels(Target):
    """Any number of labels at once. Targets: float32 (n, labels), 0 or 1. Outputs: logits (n, labels)."""

    names: tuple[str, ...]
    problem: Literal["multi-label"] = "multi-label"

    losses: ClassVar[tuple[str, ...]] = ELEMENTWISE
    best: ClassVar[tuple[str, ...]] = ("f1", "accuracy", "loss")
    mixes: ClassVar[bool] = True
    meaning: ClassVar[str] = "one logit per label"

    @property
    def description(self) -> str:
        return f"{len(self.names)} labels"

    def predictions(self, outputs: Floats) -> NDArray[np.float64]:
        """Return the probability of each label, (n, labels), from logits."""
        probabilities: NDArray[np.float64] = np.exp(-np.logaddexp(0.0, -outputs.astype(np.float64)))
        return probabilities

    def served(self, outputs: "Tensor") -> "Tensor":
        return outputs.sigmoid()

    def outputs_of(self, predictions: Floats) -> NDArray[np.float32]:
        inner = np.clip(predictions.astype(np.float64), LEAST_PROBABILITY, 1 - np.finfo(np.float64).eps)
        outputs: NDArray[np.float32] = (np.log(inner) - np.log1p(-inner)).astype(np.float32)
        return outputs

    def mean_prediction(self, outputs: "Tensor", dim: int) -> "Tensor":
        from torch.nn import functional

        return functional.logsigmoid(outputs).logsumexp(dim) - functional.logsigmoid(-outputs).logsumexp(dim)

    def learned(self, device: "torch.device", smoothing: float) -> "Callable[[Tensor], Tensor]":
        return lambda targets: targets * (1.0 - smoothing) + smoothing / 2

    def num_correct(self, outputs: "Tensor", targets: "Tensor", ignored: int) -> "Tensor":
        """Return the number of right answers: a label is right if its logit is on the right side of 0."""
        return ((outputs > 0) == (targets > 0.5)).sum()

    @property
    def answers_per_target(self) -> int:
        return self.outputs

    def sums(self, ignored: int, device: "torch.device") -> "_Sums":
        return _Sums(device)

    def divergence(self, teacher: Any, softness: float, device: "torch.device") -> Divergence:
        from torch.nn import functional

        def divergence(outputs: "Tensor", answers: "Tensor", weights: "Tensor | None") -> "Tensor":
            expected = (answers / softness).sigmoid()
            cross = functional.binary_cross_entropy_with_logits(outputs / softness, expected, reduction="none")
            entropy = functional.binary_cross_entropy_with_logits(answers / softness, expected, reduction="none")
            return softness**2 * (cross - entropy).mean(1).sum()

        return divergence

    @property
    def highest(self) -> int:
        return 1

    def constant(self, targets: NDArray[np.generic]) -> NDArray[np.float64]:
        return log_odds(targets)

    @classmethod
    def choose(cls, *, classes: Choice, labels: Choice, numbers: Choice) -> Choice:
        return labels

    @classmethod
    def of_values(
        cls, names: tuple[str, ...], values: NDArray[Any], measure: Callable[[NDArray[Any]], Any]
    ) -> "Labels":
        return cls(names)

    @classmethod
    def statistics(cls, names: tuple[str, ...], values: NDArray[Any]) -> dict[str, dict[str, float]]:
        shares = values.astype(np.float64).mean(axis=0)
        return {name: {"share": float(share)} for name, share in zip(names, shares, strict=True)}


def log_odds(targets: NDArray[np.generic]) -> NDArray[np.float64]:
    """Return the logits of the labels' frequencies, half a sample added to each side; targets 0 or 1 (n, labels)."""
    positive = targets.astype(np.float64).sum(0)
    odds: NDArray[np.float64] = np.log((positive + 0.5) / (len(targets) - positive + 0.5))
    return odds


class _Sums:
    """Accuracy and F1 over all labels of all samples."""

    def __init__(self, device: "torch.device") -> None:
        import torch

        # Right; true and answered; true or answered; samples; cells
        self.values = torch.zeros(5, dtype=torch.int64, device=device)

    def add(self, outputs: "Tensor", targets: "Tensor") -> None:
        import torch

        answered, true = outputs > 0, targets > 0.5
        right = (answered == true).sum()
        sizes = (torch.full_like(right, size) for size in (len(targets), targets.numel()))
        self.values += torch.stack([right, (answered & true).sum(), answered.sum() + true.sum(), *sizes])

    def metrics(self, loss: float) -> dict[str, float]:
        right, both, either, rows, cells = self.values.tolist()
        accuracy, f1 = right / max(cells, 1), 2 * both / either if either else 1.0
        return {"loss": loss / max(rows, 1), "accuracy": accuracy, "f1": f1}
