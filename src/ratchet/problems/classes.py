"""One of several classes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from ratchet.problems.protocol import ELEMENTWISE, Choice, Floats, Target

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["Classes", "log_shares"]


@dataclass(frozen=True)
class Classes(Target):
    """Exactly one of several classes. Targets: int64 (n,), indices into `names`. Outputs: logits (n, classes)."""

    names: tuple[str, ...]
    problem: Literal["classification"] = "classification"

    losses: ClassVar[tuple[str, ...]] = ("cross-entropy", *ELEMENTWISE)
    best: ClassVar[tuple[str, ...]] = ("accuracy", "balanced_accuracy", "f1", "loss")
    mixes: ClassVar[bool] = True
    balances: ClassVar[bool] = True
    meaning: ClassVar[str] = "one logit per class"
    is_indexed: ClassVar[bool] = True
    finds_wrong_labels: ClassVar[bool] = True
    smoothing: ClassVar[float] = 0.1

    @property
    def description(self) -> str:
        return f"{len(self.names)} classes"

    @property
    def classes(self) -> tuple[str, ...]:
        return self.names

    def support(self, outputs: Floats, output: int) -> Floats:
        """Return the logit of a class minus the mean of the others, float (n,)."""
        others = np.delete(outputs, output, axis=1)
        difference: Floats = outputs[:, output] - (others.mean(axis=1) if others.size else 0.0)
        return difference

    def sums(self, ignored: int, device: "torch.device") -> "_Sums":
        return _Sums(self.outputs, ignored, device)

    def is_varied(self, targets: NDArray[Any]) -> bool:
        return len(targets) > 1 and len(np.unique(targets)) > 1

    def constant(self, targets: NDArray[np.generic]) -> NDArray[np.float64]:
        return log_shares(targets, self.outputs)

    @classmethod
    def choose(cls, *, classes: Choice, labels: Choice, numbers: Choice) -> Choice:
        return classes

    @classmethod
    def of_values(
        cls, names: tuple[str, ...], values: NDArray[Any], measure: Callable[[NDArray[Any]], Any]
    ) -> "Classes":
        return cls(names)


def log_shares(targets: NDArray[np.generic], classes: int) -> NDArray[np.float64]:
    """Return the logarithms of the classes' frequencies, half a sample added to each class."""
    counts = np.bincount(targets.astype(np.int64), minlength=classes) + 0.5
    shares: NDArray[np.float64] = np.log(counts / counts.sum())
    return shares


class _Sums:
    """Accuracy; balanced accuracy, the mean recall over classes; F1, the mean over classes.

    Classes without samples are left out; for F1, only those that are not predicted either.
    """

    def __init__(self, classes: int, ignored: int, device: "torch.device") -> None:
        import torch

        self.classes, self.ignored = classes, ignored
        self.values = torch.zeros(classes**2, dtype=torch.int64, device=device)

    def add(self, outputs: "Tensor", targets: "Tensor") -> None:
        import torch

        # Without an index of truth values and without bincount, which make the process wait for a GPU.
        counted = targets != self.ignored
        pairs = torch.where(counted, targets * self.classes + outputs.argmax(1), 0)
        self.values.index_add_(0, pairs, counted.to(torch.int64))

    def metrics(self, loss: float) -> dict[str, float]:
        confusion = self.values.view(self.classes, self.classes).cpu().numpy()  # (actual, predicted)
        total, correct = confusion.sum(), confusion.diagonal()
        actual, predicted = confusion.sum(1), confusion.sum(0)
        present, known = actual > 0, actual + predicted > 0
        return {
            "loss": loss / max(int(total), 1),
            "accuracy": float(correct.sum() / max(total, 1)),
            "balanced_accuracy": float(np.mean(correct[present] / actual[present])),
            "f1": float(np.mean(2 * correct[known] / (actual + predicted)[known])),
        }
