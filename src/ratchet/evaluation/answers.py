"""A classifier's answers to the test rows, and what follows from them row by row."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ratchet.errors import DataError, TrainingError
from ratchet.evaluation.calibration import log_softmax

__all__ = ["Answers", "check"]

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Answers:
    """Logits and labels, and what follows from them row by row; shapes (rows, classes) and (rows,)."""

    logits: NDArray[np.float32]
    labels: Labels

    @property
    def rows(self) -> int:
        """How many test rows there are."""
        return len(self.labels)

    @property
    def classes(self) -> int:
        """How many classes the model tells apart."""
        return int(self.logits.shape[1])

    @functools.cached_property
    def predicted(self) -> Labels:
        """The answered class; of equal logits the first."""
        predicted: Labels = self.logits.argmax(axis=1).astype(np.int64)
        return predicted

    @property
    def correct(self) -> NDArray[np.bool_]:
        """Whether the answer is the label."""
        correct: NDArray[np.bool_] = self.predicted == self.labels
        return correct

    @functools.cached_property
    def place(self) -> Labels:
        """Where the right class stands in the model's order, from 0; equal logits stand in the order of classes."""
        own = np.take_along_axis(self.logits, self.labels[:, None], axis=1)
        earlier = np.arange(self.classes)[None, :] < self.labels[:, None]
        ahead = (self.logits > own) | ((self.logits == own) & earlier)
        place: Labels = ahead.sum(axis=1)
        return place

    @functools.cached_property
    def log_probabilities(self) -> Floats:
        """Shape (rows, classes), natural logarithm."""
        return log_softmax(self.logits)

    @functools.cached_property
    def probabilities(self) -> Floats:
        """Shape (rows, classes)."""
        return np.exp(self.log_probabilities)

    @property
    def losses(self) -> Floats:
        """Minus the log-probability of the label, in nats."""
        return -np.take_along_axis(self.log_probabilities, self.labels[:, None], axis=1)[:, 0]

    @property
    def confidence(self) -> Floats:
        """Probability of the answered class."""
        confidence: Floats = self.probabilities.max(axis=1)
        return confidence


def check(logits: NDArray[Any], labels: NDArray[Any], *, classes: Sequence[str]) -> None:
    """Refuse what cannot be measured; see `ratchet.evaluation.metrics.measure`."""
    if labels.ndim != 1 or logits.shape != (len(labels), len(classes)):
        raise DataError(
            f"logits of shape {logits.shape} and labels of shape {labels.shape} for {len(classes)} classes: "
            "the model and the packed data do not belong together; run ingest and train again"
        )
    if len(labels) == 0:
        raise DataError("there are no test rows to measure on: set data.test_fraction above 0, or add test samples")
    strange = np.flatnonzero((labels < 0) | (labels >= len(classes)))
    if strange.size:
        raise DataError(
            f"test row {strange[0]} has label {labels[strange[0]]}, allowed are 0 to {len(classes) - 1}: "
            "run ingest again"
        )
    broken = np.flatnonzero(~np.isfinite(logits).all(axis=1))
    if broken.size:
        raise TrainingError(
            f"the model's answers to {broken.size} of {len(labels)} test rows (first: row {broken[0]}) are not finite "
            "numbers: its weights have diverged; train again with a lower training.learning_rate"
        )
