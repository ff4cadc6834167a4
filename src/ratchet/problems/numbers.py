"""One or several numbers."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from ratchet.problems.protocol import Choice, Divergence, Floats, Target

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["Numbers"]

_LARGEST = float(np.finfo(np.float32).max)
_ROUNDINGS = 4  # of float32 that a number may differ by: scaling and shifting round, on both sides


@dataclass(frozen=True)
class Numbers(Target):
    """One or several numbers. Targets: float32 (n, numbers), in their own units.

    Outputs: (n, numbers), in units of the training targets' standard deviation from their mean. Targets far from all
    others have no part in both, and a model learns them as the nearest of the others. Metrics take them as they are.
    """

    names: tuple[str, ...]
    mean: tuple[float, ...]  # of the training targets, or of those of a model that is continued
    std: tuple[float, ...]  # never 0
    low: tuple[float, ...] = ()  # smallest number to learn from, if training targets are far from the others
    high: tuple[float, ...] = ()  # largest one
    problem: Literal["regression"] = "regression"

    losses: ClassVar[tuple[str, ...]] = ("mse", "l1", "smooth-l1")
    best: ClassVar[tuple[str, ...]] = ("loss", "mae", "rmse", "r2")
    meaning: ClassVar[str] = "one per predicted number"
    has_accuracy: ClassVar[bool] = False
    constant_name: ClassVar[str] = "mean"
    linear_name: ClassVar[str] = "ridge regression"

    @property
    def description(self) -> str:
        return f"{'number' if len(self.names) == 1 else 'numbers'} {', '.join(self.names)}"

    def continued(self, parent: Target) -> "Numbers":
        """Return the target with the parent's scaling, if it has the same numbers; else the head is new."""
        if isinstance(parent, Numbers) and self.predicts_equal(parent):
            return replace(self, mean=parent.mean, std=parent.std)
        return self

    def predictions(self, outputs: Floats) -> NDArray[np.float64]:
        """Return the predicted numbers in their own units, (n, numbers)."""
        numbers: NDArray[np.float64] = outputs.astype(np.float64) * np.array(self.std) + np.array(self.mean)
        return numbers

    def served(self, outputs: "Tensor") -> "Tensor":
        mean, std = self._tensors(outputs.device, self.mean, self.std)
        return outputs * std + mean

    def outputs_of(self, predictions: Floats) -> NDArray[np.float32]:
        outputs: NDArray[np.float32] = ((predictions - np.array(self.mean)) / np.array(self.std)).astype(np.float32)
        return outputs

    def mean_prediction(self, outputs: "Tensor", dim: int) -> "Tensor":
        return outputs.mean(dim)

    def from_other(self, outputs: NDArray[np.float32], theirs: "Numbers", order: list[int]) -> NDArray[np.float32]:
        return self.outputs_of(theirs.predictions(outputs)[:, order])

    def largest_difference(self, first: Floats, second: Floats) -> float:
        """Return the largest difference in units of the training targets' standard deviation.

        Numbers are answered in their own units as float32, so the rounding of that type does not count.
        """
        rounding = _ROUNDINGS * np.spacing(np.abs(second).astype(np.float32)).astype(np.float64)
        difference = np.maximum(np.abs(first.astype(np.float64) - second) - rounding, 0.0) / np.array(self.std)
        return float(difference.max())

    def support(self, outputs: Floats, output: int) -> Floats:
        """Return the predicted number, without the mean: float (n,)."""
        return outputs[:, output] * self.std[output]

    def scaled(self, targets: NDArray[np.generic]) -> NDArray[np.float64]:
        """Return targets as a model learns them, (n, numbers): in units of the outputs, far ones limited."""
        numbers = targets.astype(np.float64)
        if self.low:
            numbers = numbers.clip(self.low, self.high)
        scaled: NDArray[np.float64] = (numbers - np.array(self.mean)) / np.array(self.std)
        return scaled

    def learned(self, device: "torch.device", smoothing: float) -> "Callable[[Tensor], Tensor]":
        """Return the function that scales targets as `scaled` does."""
        mean, std, *limits = self._tensors(device, self.mean, self.std, *filter(None, (self.low, self.high)))

        def scaled(targets: "Tensor") -> "Tensor":
            return ((targets.clamp(*limits) if limits else targets) - mean) / std

        return scaled

    def num_correct(self, outputs: "Tensor", targets: "Tensor", ignored: int) -> "Tensor":
        """Return 0: no number is right or wrong."""
        import torch

        return torch.zeros((), dtype=torch.int64, device=outputs.device)

    def sums(self, ignored: int, device: "torch.device") -> "_Sums":
        return _Sums(*self._tensors(device, self.mean, self.std))

    def divergence(self, teacher: "Numbers", softness: float, device: "torch.device") -> Divergence:
        numbers = teacher.std, teacher.mean, self.mean, self.std
        their_std, their_mean, mean, std = self._tensors(device, *numbers)

        def divergence(outputs: "Tensor", answers: "Tensor", weights: "Tensor | None") -> "Tensor":
            return (outputs - (answers * their_std + their_mean - mean) / std).square().mean(1).sum()

        return divergence

    @classmethod
    def choose(cls, *, classes: Choice, labels: Choice, numbers: Choice) -> Choice:
        return numbers

    @classmethod
    def of_values(
        cls, names: tuple[str, ...], values: NDArray[Any], measure: Callable[[NDArray[Any]], Any]
    ) -> "Numbers":
        scales = [measure(column) for column in values.T]
        low, high = zip(*(scale.range or (-_LARGEST, _LARGEST) for scale in scales), strict=True)
        limits = (low, high) if any(scale.range for scale in scales) else ((), ())
        return cls(names, tuple(scale.mean for scale in scales), tuple(scale.std for scale in scales), *limits)

    @classmethod
    def statistics(cls, names: tuple[str, ...], values: NDArray[Any]) -> dict[str, dict[str, float]]:
        numbers = values.astype(np.float64)
        low, middle, high = np.quantile(numbers, [0.0, 0.5, 1.0], axis=0)
        rows = zip(names, numbers.mean(axis=0), numbers.std(axis=0), low, middle, high, strict=True)
        keys = ("mean", "std", "min", "median", "max")
        return {name: dict(zip(keys, map(float, measured), strict=True)) for name, *measured in rows}

    @staticmethod
    def _tensors(device: "torch.device", *values: tuple[float, ...]) -> "list[Tensor]":
        import torch

        return [torch.tensor(each, device=device) for each in values]


class _Sums:
    """MAE and RMSE in the numbers' own units, and R2; each is a mean over the numbers."""

    def __init__(self, mean: "Tensor", std: "Tensor") -> None:
        import torch

        self.mean, self.std = mean, std
        self.precise = torch.float32 if std.device.type == "mps" else torch.float64  # far targets have huge squares
        # Sums of |error|, error^2, target, target^2 and 1
        self.values = torch.zeros(5, len(std), device=std.device, dtype=self.precise)

    def add(self, outputs: "Tensor", targets: "Tensor") -> None:
        """Add the errors in units of the standard deviation, where their squares neither overflow nor vanish."""
        import torch

        scaled = (targets.to(self.precise) - self.mean) / self.std
        errors = outputs.to(self.precise) - scaled
        sums = torch.stack([errors.abs(), errors.square(), scaled, scaled.square()]).sum(1)
        self.values += torch.cat([sums, torch.full_like(sums[:1], len(targets))])

    def metrics(self, loss: float) -> dict[str, float]:
        *sums, counts = self.values.cpu().double().numpy()
        rows = max(int(counts[0]), 1)
        absolute, squared, mean, square = (each / rows for each in sums)
        std, variance = self.std.cpu().numpy().astype(np.float64), square - mean**2
        explained = 1.0 - np.divide(squared, variance, out=np.full_like(squared, np.inf), where=variance > 0)
        return {
            "loss": loss / rows,
            "mae": float(np.mean(absolute * std)),
            "rmse": float(np.mean(np.sqrt(squared) * std)),
            "r2": float(np.mean(np.where(np.isfinite(explained), explained, 0.0))),
        }
