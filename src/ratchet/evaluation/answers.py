"""Predictions of a classifier, and the quantities that follow from each of them."""

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
    """Logits (rows, classes) and labels (rows,), with the quantities that follow from each row."""

    logits: NDArray[np.float32]
    labels: Labels

    @property
    def rows(self) -> int:
        """Number of test images."""
        return len(self.labels)

    @property
    def classes(self) -> int:
        """Number of the model's classes."""
        return int(self.logits.shape[1])

    @functools.cached_property
    def predicted(self) -> Labels:
        """Predicted class, (rows,); of equal logits the first."""
        predicted: Labels = self.logits.argmax(axis=1).astype(np.int64)
        return predicted

    @property
    def correct(self) -> NDArray[np.bool_]:
        """Whether the predicted class is the label, (rows,)."""
        correct: NDArray[np.bool_] = self.predicted == self.labels
        return correct

    @functools.cached_property
    def rank(self) -> Labels:
        """Rank of the right class among the logits, from 0, (rows,); equal logits rank in the order of classes."""
        own = np.take_along_axis(self.logits, self.labels[:, None], axis=1)
        earlier = np.arange(self.classes)[None, :] < self.labels[:, None]
        ahead = (self.logits > own) | ((self.logits == own) & earlier)
        rank: Labels = ahead.sum(axis=1)
        return rank

    @functools.cached_property
    def log_probabilities(self) -> Floats:
        """Natural logarithm of the probabilities, (rows, classes)."""
        return log_softmax(self.logits)

    @functools.cached_property
    def probabilities(self) -> Floats:
        """Class probabilities, (rows, classes)."""
        return np.exp(self.log_probabilities)

    @property
    def losses(self) -> Floats:
        """Negative log-probability of the label, in nats, (rows,)."""
        return -np.take_along_axis(self.log_probabilities, self.labels[:, None], axis=1)[:, 0]

    @property
    def confidence(self) -> Floats:
        """Probability of the predicted class, (rows,)."""
        confidence: Floats = self.probabilities.max(axis=1)
        return confidence


def check(logits: NDArray[Any], labels: NDArray[Any], *, classes: Sequence[str]) -> None:
    """Raise DataError or TrainingError where nothing can be measured (see `ratchet.evaluation.measure.measure`)."""
    if labels.ndim != 1 or logits.shape != (len(labels), len(classes)):
        raise DataError(
            f"logits of shape {logits.shape} and labels of shape {labels.shape} for {len(classes)} classes: "
            "the model was not trained on the packed data. Fix: run ingest and train again"
        )
    if len(labels) == 0:
        raise DataError("there are no test images. Fix: set data.test_fraction above 0, or add test samples")
    invalid = np.flatnonzero((labels < 0) | (labels >= len(classes)))
    if invalid.size:
        raise DataError(
            f"test row {invalid[0]} has label {labels[invalid[0]]}. Allowed: 0 to {len(classes) - 1}. Fix: run ingest "
            "again"
        )
    infinite = np.flatnonzero(~np.isfinite(logits).all(axis=1))
    if infinite.size:
        raise TrainingError(
            f"the model's outputs for {infinite.size} of {len(labels)} test images (first: row {infinite[0]}) are not "
            "finite numbers: training diverged. Fix: train again with a lower training.learning_rate"
        )
