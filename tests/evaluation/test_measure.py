"""Metrics agree with scikit-learn, and with cases that can be counted by hand."""

import json
import tracemalloc
import warnings
from collections.abc import Callable
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from measured import class_answers
from measured import measure as measure_any
from measured import measure_classes as measure
from sklearn import metrics as sk

from ratchet.errors import DataError, TrainingError
from ratchet.evaluation import headline
from ratchet.evaluation.calibration import calibration_error
from ratchet.evaluation.classification import ClassAnswers, ClassificationMetrics
from ratchet.evaluation.predictions import Predictions
from ratchet.problems import Classes, Labels, NextToken, Numbers, Target
from ratchet.settings.model import EvaluationSettings, MinimumMetric
from ratchet.typed_json import parse, to_plain

FEW = EvaluationSettings(resamples=100)


def answers(rows: int, classes: int, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    labels = generator.integers(classes, size=rows)
    logits = generator.normal(size=(rows, classes)).astype(np.float32)
    logits[np.arange(rows), labels] += 1.5
    return logits, labels


def named(classes: int) -> list[str]:
    return [f"class {number}" for number in range(classes)]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_predictions_give_finite_metrics_without_warnings(data: st.DataObject) -> None:
    rows, classes = data.draw(st.integers(1, 12)), data.draw(st.integers(2, 5))
    few_levels = st.sampled_from([-200.0, -1.0, 0.0, 0.5, 300.0])  # ties and certainty on purpose
    cells = data.draw(st.lists(few_levels, min_size=rows * classes, max_size=rows * classes))
    labels = data.draw(st.lists(st.integers(0, classes - 1), min_size=rows, max_size=rows))
    logits = np.array(cells, np.float32).reshape(rows, classes)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        metrics = measure(logits, np.array(labels), classes=named(classes), settings=FEW)
    content = json.dumps(to_plain(metrics), allow_nan=False)
    assert parse(ClassificationMetrics, content) == metrics
    assert metrics.accuracy.value == pytest.approx(sk.accuracy_score(labels, logits.argmax(axis=1)), abs=1e-12)
    assert metrics.balanced_accuracy is not None
    intervals = (metrics.accuracy, metrics.balanced_accuracy, metrics.log_loss, metrics.ece)
    for interval in filter(None, intervals):
        assert interval.low <= interval.value <= interval.high


def test_calibration_error_equals_a_count_by_hand() -> None:
    chance = np.array([[0.87, 0.13], [0.87, 0.13], [0.65, 0.35], [0.35, 0.65]])
    logits = np.log(chance).astype(np.float32)
    metrics = measure(logits, np.array([0, 1, 0, 1]), classes=["a", "b"], settings=EvaluationSettings())
    # (13/15, 14/15]: two rows, half right; (9/15, 10/15]: two rows, all right. float32 logits keep about 7 digits.
    assert calibration_error(metrics.reliability) == pytest.approx((2 * 0.37 + 2 * 0.35) / 4, abs=1e-6)
    assert metrics.ece is None  # four samples say nothing
    assert [part.count for part in metrics.reliability] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 2, 0]
    assert sum(part.accuracy is None for part in metrics.reliability) == 13


def macro_f1(drawn: ClassAnswers) -> float:
    return float(sk.f1_score(drawn.labels, drawn.predicted, average="macro"))


def roc_auc(drawn: ClassAnswers) -> float:
    columns = drawn.probabilities.round(12).T
    return float(np.mean([sk.roc_auc_score(drawn.labels == number, column) for number, column in enumerate(columns)]))


@pytest.mark.parametrize(
    ("influence", "metric"), [(headline.macro_f1_influence, macro_f1), (headline.roc_auc_influence, roc_auc)]
)
def test_influence_is_what_a_metric_loses_without_the_row(
    influence: Callable[[ClassAnswers], np.ndarray], metric: Callable[[ClassAnswers], float]
) -> None:
    logits, labels = answers(120, 3, seed=6)
    drawn, rows = class_answers(np.round(logits), labels), np.arange(120)  # rounded: with ties
    without = np.array([metric(class_answers(*(a[rows != row] for a in (np.round(logits), labels)))) for row in rows])
    assert influence(drawn) == pytest.approx(119 * (without.mean() - without), rel=0.05, abs=0.02)


def test_influence_on_roc_auc_needs_little_memory() -> None:
    """As much as a few values per row, however many classes there are."""
    drawn = class_answers(*answers(2000, 200))
    assert drawn.probabilities.shape == (2000, 200)
    tracemalloc.start()
    try:
        headline.roc_auc_influence(drawn)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 40 * 8 * 2000


def test_numbers_are_flat_and_all_numbers() -> None:
    logits, labels = answers(50, 4)
    numbers = measure(logits, labels, classes=named(4), settings=FEW).numbers()
    assert {"accuracy", "accuracy_low", "accuracy_high", "top_k", "macro_f1", "log_loss", "ece", "roc_auc"} <= set(
        numbers
    )
    assert all(type(value) is float for value in numbers.values())


@pytest.mark.parametrize(
    ("logits", "labels", "error", "message"),
    [
        (np.zeros((0, 2)), np.zeros(0, int), DataError, "no test rows"),
        (np.zeros((2, 2)), np.array([0, 2]), DataError, r"test row 1 has label 2\. Allowed: 0 to 1"),
        (
            np.array([[0.0, 1.0], [np.nan, 0.0]]),
            np.zeros(2, int),
            TrainingError,
            r"1 of 2 test samples \(first: row 1\)",
        ),
    ],
)
def test_impossible_input_is_refused(
    logits: np.ndarray, labels: np.ndarray, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        measure(logits.astype(np.float32), labels, classes=["a", "b"], settings=FEW)


def test_settings_allow_exactly_the_metrics_that_are_measured() -> None:
    random = np.random.default_rng(0)
    real, labels = random.normal(size=(40, 3)).astype(np.float32), random.integers(0, 2, (40, 3)).astype(np.float32)
    three = ("a", "b", "c")
    cases: list[tuple[Target, np.ndarray, np.ndarray]] = [
        (Classes((*three, "d")), random.normal(size=(40, 4)).astype(np.float32), random.integers(0, 4, 40)),
        (Classes(three[:2]), real[:, :2], random.integers(0, 2, 40)),
        (Labels(three), real, labels),
        (Numbers(three, (0.0,) * 3, (1.0,) * 3), real, labels),
        (NextToken(9), np.abs(real[:, :1]), random.integers(1, 9, (40, 3))),
    ]
    keys = {"auto", "none"}
    for target, outputs, targets in cases:
        predictions = Predictions(outputs, targets, tuple(map(str, range(40))), target)
        keys |= set(measure_any(predictions, settings=FEW).named())
    assert keys == set(get_args(MinimumMetric))


@pytest.mark.parametrize(("rare", "covers"), [(1, False), (5, False), (14, False), (15, True), (60, True)])
def test_class_of_few_rows_leaves_no_interval(rare: int, covers: bool) -> None:
    """The values themselves stay."""
    labels = np.repeat([0, 1], [400 - rare, rare])
    score = np.random.default_rng(0).normal(size=400) + labels
    metrics = measure(
        np.stack([-score, score], axis=1).astype(np.float32), labels, classes=["ok", "fraud"], settings=FEW
    )
    assert metrics.roc_auc is not None
    assert (metrics.roc_auc_interval is not None) is covers
    assert (metrics.macro_f1 is not None) is covers
    assert metrics.rare == (None if covers else ("fraud", rare))
    assert {"roc_auc", "macro_f1"} <= set(metrics.numbers())
    assert ("roc_auc_low" in metrics.numbers()) is covers
