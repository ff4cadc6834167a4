"""One of several classes."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ratchet.problems.protocol import Floats, Target, logits, softmax

__all__ = ["Classes"]


@dataclass(frozen=True)
class Classes(Target):
    """Exactly one of several classes. Targets: int64 (n,), indices into `names`. Outputs: logits (n, classes)."""

    names: tuple[str, ...]
    problem: Literal["classification"] = "classification"

    @property
    def described(self) -> str:
        return f"{len(self.names)} classes"

    @property
    def classes(self) -> tuple[str, ...]:
        return self.names

    def predictions(self, outputs: Floats) -> NDArray[np.float64]:
        """Return class probabilities, (n, classes), from logits."""
        return softmax(outputs)

    def outputs_of(self, predictions: Floats) -> NDArray[np.float32]:
        return logits(predictions)
