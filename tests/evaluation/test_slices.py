"""Slices agree with scikit-learn on their rows alone, with counts by hand, and with simulation."""

import numpy as np
import pytest
from measured import class_answers
from sklearn import metrics as sk

from ratchet.evaluation.classification import ClassAnswers
from ratchet.evaluation.intervals import share_difference, share_interval
from ratchet.evaluation.slices import slices, thirds
from ratchet.settings.model import EvaluationSettings

SETTINGS = EvaluationSettings(slice_rows=20)


def answered(shares: np.ndarray, *, classes: int = 3, seed: int = 0) -> ClassAnswers:
    """Return predictions of which row k is right with probability shares[k]."""
    drawn = np.random.default_rng(seed)
    labels = drawn.integers(classes, size=len(shares))
    predicted = np.where(drawn.random(len(shares)) < shares, labels, (labels + 1) % classes)
    logits = drawn.normal(0, 0.3, (len(shares), classes)).astype(np.float32)
    logits[np.arange(len(shares)), predicted] += 3
    return class_answers(logits, labels)


def test_each_slice_has_the_metrics_of_its_rows() -> None:
    answers = answered(np.full(300, 0.8))
    camera = [("canon", "nikon", None)[number % 3] for number in range(300)]
    canon, nikon = slices(answers, {"camera": camera}, SETTINGS)
    assert (canon.column, canon.value, canon.rows, nikon.value) == ("camera", "canon", 100, "nikon")
    rows = np.arange(0, 300, 3)
    labels, predicted = answers.labels[rows], answers.predicted[rows]
    assert canon.mean.value == pytest.approx(sk.accuracy_score(labels, predicted), abs=1e-12)
    assert canon.others["macro_f1"] == pytest.approx(sk.f1_score(labels, predicted, average="macro"), abs=1e-12)
    assert canon.others["log_loss"] == pytest.approx(
        sk.log_loss(labels, answers.probabilities[rows], labels=[0, 1, 2]), abs=1e-12
    )
    rest = np.setdiff1d(np.arange(300), rows)
    assert canon.gap.value == pytest.approx(canon.mean.value - answers.score[rest].mean(), abs=1e-12)


def test_only_the_slice_that_is_worse_is_reported() -> None:
    shares = np.where(np.arange(1200) % 4 == 0, 0.7, 0.9)
    names = [f"ward {number % 4}" for number in range(1200)]
    measured = slices(answered(shares), {"ward": names}, SETTINGS)
    assert [part.value for part in measured if part.is_worse] == ["ward 0"]


def test_equal_slices_are_hardly_ever_called_worse() -> None:
    """Twenty slices, 300 times: with 95 % confidence a false alarm occurs at most one in twenty times."""
    alarms = 0
    for seed in range(300):
        names = [f"part {number % 20:02d}" for number in range(1000)]
        alarms += any(
            part.is_worse for part in slices(answered(np.full(1000, 0.85), seed=seed), {"part": names}, SETTINGS)
        )
    assert alarms / 300 <= 0.05 + 3 * (0.05 * 0.95 / 300) ** 0.5


@pytest.mark.parametrize(
    "values",
    [["same"] * 100, [str(number) for number in range(100)], [None] * 100, ["a"] * 95 + ["b"] * 5],
)
def test_columns_without_usable_values_have_no_slices(values: list[str | None]) -> None:
    """One value only, a value for each row, no values, or too few rows of a value."""
    measured = slices(answered(np.full(100, 0.8)), {"column": values}, SETTINGS)
    assert [part for part in measured if part.value != "a"] == []


def test_numbers_become_thirds_of_the_training_rows() -> None:
    reference = np.arange(300, dtype=float)
    assert thirds(np.array([-5.0, 99.0, 150.0, 260.0, np.nan]), reference=reference) == [
        "low",
        "low",
        "middle",
        "high",
        None,
    ]
    assert thirds(np.full(10, 3.0), reference=reference) is None
    assert thirds(np.arange(10.0), reference=np.full(5, np.nan)) is None
    assert thirds(np.arange(10.0), reference=np.full(5, 20.0)) is None


def test_intervals_of_shares_have_their_nominal_coverage() -> None:
    drawn = np.random.default_rng(1)
    held = {"share": 0, "difference": 0}
    for _ in range(1000):
        shares, rows = drawn.uniform(0.6, 0.98, 2), drawn.integers(20, 400, 2)
        first, second = (
            (int(drawn.binomial(count, share)), int(count)) for share, count in zip(shares, rows, strict=True)
        )
        alone, apart = share_interval(*first, confidence=0.95), share_difference(first, second, confidence=0.95)
        held["share"] += alone.low <= shares[0] <= alone.high
        held["difference"] += apart.low <= shares[0] - shares[1] <= apart.high
    assert all(930 <= count <= 970 for count in held.values()), held


def test_intervals_of_none_and_all_right_have_a_width() -> None:
    assert share_interval(0, 20, confidence=0.95).low == 0.0
    assert share_interval(0, 20, confidence=0.95).high > 0.1
    assert share_interval(20, 20, confidence=0.95).low < 0.9
