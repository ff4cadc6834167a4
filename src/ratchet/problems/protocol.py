"""The protocol of a problem: what is predicted for one sample, and what follows from it."""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["LEAST_PROBABILITY", "Floats", "Target", "logits", "softmax"]

Floats = NDArray[np.floating]

LEAST_PROBABILITY = 1e-30
"""Smallest probability whose logarithm is taken: it is finite in float32."""


class Target(ABC):
    """Target of a model: what it predicts for one sample. Each problem has one class of targets, a frozen dataclass."""

    problem: str  # its name, as in data.problem
    names: tuple[str, ...]  # of the classes, labels or numbers, in the order of the outputs

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes; other problems have none."""
        return ()

    @property
    @abstractmethod
    def described(self) -> str:
        """Text for people: "10 classes"."""

    @property
    def outputs(self) -> int:
        """Width of the model's output."""
        return len(self.names)

    @abstractmethod
    def predictions(self, outputs: Floats) -> NDArray[np.float64]:
        """Return the predictions that people read, from the outputs of a model."""

    def scaled(self, targets: NDArray[np.generic]) -> NDArray[np.float64]:
        """Return targets as a model learns them."""
        return targets.astype(np.float64)

    @abstractmethod
    def outputs_of(self, predictions: Floats) -> NDArray[np.float32]:
        """Return outputs of a model that makes these predictions: the inverse of `predictions`."""

    def from_other(self, outputs: NDArray[np.float32], theirs: Any, order: list[int]) -> NDArray[np.float32]:
        """Return outputs of a model with another target of the same names as outputs for this target.

        Args:
            outputs: of the other model, (rows, its outputs).
            theirs: the other target.
            order: place of each of our names in it.
        """
        reordered: NDArray[np.float32] = outputs[:, order]
        return reordered


def softmax(logits: Floats) -> NDArray[np.float64]:
    """Return probabilities along the last axis, in double precision."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=-1, keepdims=True)
    exponentials = np.exp(shifted)
    probabilities: NDArray[np.float64] = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return probabilities


def logits(probabilities: Floats) -> NDArray[np.float32]:
    """Return logits whose softmax is these probabilities."""
    return np.log(np.maximum(probabilities.astype(np.float64), LEAST_PROBABILITY)).astype(np.float32)
