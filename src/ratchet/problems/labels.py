"""Any number of labels at once."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ratchet.problems.protocol import LEAST_PROBABILITY, Floats, Target

__all__ = ["Labels"]


@dataclass(frozen=True)
class Labels(Target):
    """Any number of labels at once. Targets: float32 (n, labels), 0 or 1. Outputs: logits (n, labels)."""

    names: tuple[str, ...]
    problem: Literal["multi-label"] = "multi-label"

    @property
    def described(self) -> str:
        return f"{len(self.names)} labels"

    def predictions(self, outputs: Floats) -> NDArray[np.float64]:
        """Return the probability of each label, (n, labels), from logits."""
        probabilities: NDArray[np.float64] = np.exp(-np.logaddexp(0.0, -outputs.astype(np.float64)))
        return probabilities

    def outputs_of(self, predictions: Floats) -> NDArray[np.float32]:
        inner = np.clip(predictions.astype(np.float64), LEAST_PROBABILITY, 1 - np.finfo(np.float64).eps)
        return (np.log(inner) - np.log1p(-inner)).astype(np.float32)
