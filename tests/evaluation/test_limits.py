"""Limits report the known faults of constructed predictions, and nothing else."""

import numpy as np
import pytest
import sklearn.metrics  # noqa: F401  # its import draws from Python's random state, which a test must not change
from measured import measure_classes as measure

from ratchet.evaluation.classification import ClassificationMetrics
from ratchet.evaluation.weak_classes import weak_classes
from ratchet.reports.problem_pages import pages_of
from ratchet.settings.model import EvaluationSettings

CLASSES = ("ant", "bee", "cat", "dog")
MANY = dict.fromkeys(CLASSES, 2000)
GOOD = dict.fromkeys(CLASSES, 0.95)


def metrics(
    right: dict[str, float], rows: dict[str, int], *, sure: float = 4.0, light: list[str | None] | None = None
) -> ClassificationMetrics:
    """Measure predictions with these recalls, all with the same confidence."""
    labels = np.repeat(np.arange(4), [rows[name] for name in CLASSES])
    predicted = labels.copy()
    for number, name in enumerate(CLASSES):
        mine = np.flatnonzero(labels == number)
        wrong = mine[: round(len(mine) * (1 - right[name]))]
        predicted[wrong] = (number + 1) % 4
    logits = np.zeros((len(labels), 4), np.float32)
    logits[np.arange(len(labels)), predicted] = sure
    settings = EvaluationSettings(resamples=200)
    return measure(logits, labels, classes=CLASSES, settings=settings, columns={"light": light} if light else {})


def test_good_model_on_many_images_has_no_limits() -> None:
    assert pages_of(metrics(GOOD, MANY)).limits() == []


def test_class_with_a_lower_recall_is_named() -> None:
    measured = metrics({**GOOD, "cat": 0.8}, MANY, sure=3.5)
    (weak,) = weak_classes(measured)
    assert (weak.name, weak.rows, weak.recall.value) == ("cat", 2000, 0.8)
    (sentence,) = pages_of(measured).limits()
    assert sentence.startswith("Recall of class cat is 80.0 % on 2,000 test samples (CI ")


def test_low_recall_that_chance_explains_is_not_weak() -> None:
    assert weak_classes(metrics({**GOOD, "cat": 0.9}, {**MANY, "cat": 10})) == []


def test_classes_with_few_images_or_none_are_named() -> None:
    measured = metrics(dict.fromkeys(CLASSES, 1.0), {"ant": 60, "bee": 0, "cat": 29, "dog": 5}, sure=9.0)
    assert pages_of(measured).limits()[:2] == [
        "Not measured, because there are no test samples: bee.",
        "Too few test samples for a reliable recall (fewer than 30): cat (29), dog (5).",
    ]


def test_small_test_set_is_named() -> None:
    measured = metrics(GOOD, dict.fromkeys(CLASSES, 40))
    assert pages_of(measured).limits()[-1].startswith("Small test set (160 samples): accuracy 95.0 % (95 % CI 9")


def test_slice_with_a_lower_accuracy_is_named() -> None:
    light: list[str | None] = ["dark" if number % 2000 < 200 else "bright" for number in range(8000)]
    measured = metrics(GOOD, MANY, light=light)
    (sentence,) = [text for text in pages_of(measured).limits() if text.startswith("Where ")]
    assert sentence.startswith("Where light is dark, accuracy is 50.0 % on 800 test samples (CI ")


@pytest.mark.parametrize("sure", [1.0, 12.0])
def test_calibration_error_is_named(sure: float) -> None:
    measured = metrics(GOOD, MANY, sure=sure)
    (sentence,) = pages_of(measured).limits()
    assert sentence.startswith("Calibration error (ECE) is ")
    assert "evaluation.temperature_scaling" in sentence
