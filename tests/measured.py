"""Answers and metrics of plain arrays, for tests of what follows from them."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from ratchet.evaluation.classification import ClassAnswers, ClassificationMetrics
from ratchet.evaluation.predictions import Predictions
from ratchet.problems import Classes
from ratchet.settings.model import EvaluationSettings

Columns = Mapping[str, Sequence[str | None]]


def class_answers(
    logits: np.ndarray, labels: np.ndarray, *thresholds: float, classes: Sequence[str] = ()
) -> ClassAnswers:
    """Return answers of a classifier; its classes are called by their numbers unless they have names."""
    names = tuple(classes or map(str, range(logits.shape[1])))
    return ClassAnswers(logits, labels, Classes(names), thresholds)


def measure_classes(
    logits: np.ndarray, labels: np.ndarray, *thresholds: float, classes: Sequence[str], settings: EvaluationSettings,
    columns: Columns = MappingProxyType({}), seed: int = 0,
) -> ClassificationMetrics:  # fmt: skip
    """Check and measure answers of a classifier."""
    answers = class_answers(logits, labels, *thresholds, classes=classes)
    answers.check("the model")
    return answers.measure(settings, columns, seed=seed)


def measure(
    predictions: Predictions, *, settings: EvaluationSettings, columns: Columns = MappingProxyType({}), seed: int = 0
) -> Any:
    """Check and measure any predictions."""
    return predictions.checked().measure(settings, columns, seed=seed)
