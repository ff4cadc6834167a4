"""One or several numbers."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ratchet.problems.protocol import Floats, Target

__all__ = ["Numbers"]


@dataclass(frozen=True)
class Numbers(Target):
    """One or several numbers. Targets: float32 (n, numbers), in their own units.

    Outputs: (n, numbers), in units of the training targets' standard deviation from their mean. Targets far from all
    others have no part in both, and a model learns them as the nearest of the others. Metrics take them as they are.
    """

    names: tuple[str, ...]
    mean: tuple[float, ...]  # of the training targets
    std: tuple[float, ...]  # never 0
    low: tuple[float, ...] = ()  # smallest number to learn from, if training targets are far from the others
    high: tuple[float, ...] = ()  # largest one
    problem: Literal["regression"] = "regression"

    @property
    def described(self) -> str:
        return f"{'number' if len(self.names) == 1 else 'numbers'} {', '.join(self.names)}"

    def predictions(self, outputs: Floats) -> NDArray[np.float64]:
        """Return the predicted numbers in their own units, (n, numbers)."""
        numbers: NDArray[np.float64] = outputs.astype(np.float64) * np.array(self.std) + np.array(self.mean)
        return numbers

    def scaled(self, targets: NDArray[np.generic]) -> NDArray[np.float64]:
        """Return targets as a model learns them, (n, numbers): in units of the outputs, far ones limited."""
        numbers = targets.astype(np.float64)
        if self.low:
            numbers = numbers.clip(self.low, self.high)
        scaled: NDArray[np.float64] = (numbers - np.array(self.mean)) / np.array(self.std)
        return scaled

    def outputs_of(self, predictions: Floats) -> NDArray[np.float32]:
        outputs: NDArray[np.float32] = ((predictions - np.array(self.mean)) / np.array(self.std)).astype(np.float32)
        return outputs

    def from_other(self, outputs: NDArray[np.float32], theirs: "Numbers", order: list[int]) -> NDArray[np.float32]:
        return self.outputs_of(theirs.predictions(outputs)[:, order])
