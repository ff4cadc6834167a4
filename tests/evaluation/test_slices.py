"""Slices: truth is counted by hand, comes from scikit-learn on the rows alone, or from simulation."""

import json

import numpy as np
import pytest
from sklearn import metrics as sk

from ratchet.evaluation.answers import Answers
from ratchet.evaluation.intervals import share_difference, share_interval
from ratchet.evaluation.slices import Slice, cut, slices

HOW = {"confidence": 0.95, "bins": 15, "least": 20}


def answered(shares: np.ndarray, *, classes: int = 3, seed: int = 0) -> Answers:
    """Answers of which row k is right with probability shares[k]."""
    drawn = np.random.default_rng(seed)
    labels = drawn.integers(classes, size=len(shares))
    said = np.where(drawn.random(len(shares)) < shares, labels, (labels + 1) % classes)
    logits = drawn.normal(0, 0.3, (len(shares), classes)).astype(np.float32)
    logits[np.arange(len(shares)), said] += 3
    return Answers(logits, labels)


def test_each_value_has_the_figures_of_its_rows_alone() -> None:
    answers = answered(np.full(300, 0.8))
    camera = [("canon", "nikon", None)[number % 3] for number in range(300)]
    one, other = slices(answers, {"camera": camera}, **HOW)
    assert (one.column, one.value, one.rows, other.value) == ("camera", "canon", 100, "nikon")
    rows = np.arange(0, 300, 3)
    labels, predicted = answers.labels[rows], answers.predicted[rows]
    assert one.accuracy.value == pytest.approx(sk.accuracy_score(labels, predicted), abs=1e-12)
    assert one.macro_f1 == pytest.approx(sk.f1_score(labels, predicted, average="macro"), abs=1e-12)
    assert one.log_loss == pytest.approx(sk.log_loss(labels, answers.probabilities[rows], labels=[0, 1, 2]), abs=1e-12)
    rest = np.setdiff1d(np.arange(300), rows)
    assert one.gap.value == pytest.approx(one.accuracy.value - answers.correct[rest].mean(), abs=1e-12)


def test_a_part_that_is_answered_worse_is_found_and_parts_that_are_not_are_not() -> None:
    shares = np.where(np.arange(1200) % 4 == 0, 0.7, 0.9)
    names = [f"ward {number % 4}" for number in range(1200)]
    found = slices(answered(shares), {"ward": names}, **HOW)
    assert [one.value for one in found if one.is_worse] == ["ward 0"]


def test_among_many_equal_parts_hardly_any_is_called_worse() -> None:
    """Twenty parts, looked at 300 times: with 95 % confidence one in twenty times any of them is, on one side less."""
    alarms = 0
    for seed in range(300):
        names = [f"part {number % 20:02d}" for number in range(1000)]
        alarms += any(one.is_worse for one in slices(answered(np.full(1000, 0.85), seed=seed), {"part": names}, **HOW))
    assert alarms / 300 <= 0.05 + 3 * (0.05 * 0.95 / 300) ** 0.5


@pytest.mark.parametrize(
    "values",
    [["one"] * 100, [str(number) for number in range(100)], [None] * 100, ["a"] * 95 + ["b"] * 5],
)
def test_columns_that_do_not_divide_the_rows_into_parts_of_some_size_have_no_slices(values: list[str | None]) -> None:
    found = slices(answered(np.full(100, 0.8)), {"column": values}, **HOW)
    assert [one for one in found if one.value != "a"] == []


def test_what_is_written_is_read_back() -> None:
    found = slices(answered(np.full(100, 0.8)), {"column": ["a", "b"] * 50}, **HOW)
    assert tuple(Slice.from_json(json.loads(json.dumps(one.to_json()))) for one in found) == found


def test_numbers_are_cut_where_the_thirds_of_training_end() -> None:
    like = np.arange(300, dtype=float)
    assert cut(np.array([-5.0, 99.0, 150.0, 260.0, np.nan]), like=like) == ["low", "low", "middle", "high", None]
    assert cut(np.full(10, 3.0), like=like) is None
    assert cut(np.arange(10.0), like=np.full(5, np.nan)) is None
    assert cut(np.arange(10.0), like=np.full(5, 20.0)) is None


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    drawn = np.random.default_rng(1)
    held = {"share": 0, "difference": 0}
    for _ in range(1000):
        shares, rows = drawn.uniform(0.6, 0.98, 2), drawn.integers(20, 400, 2)
        one, other = (
            (int(drawn.binomial(count, share)), int(count)) for share, count in zip(shares, rows, strict=True)
        )
        alone, apart = share_interval(*one, confidence=0.95), share_difference(one, other, confidence=0.95)
        held["share"] += alone.low <= shares[0] <= alone.high
        held["difference"] += apart.low <= shares[0] - shares[1] <= apart.high
    assert all(930 <= count <= 970 for count in held.values()), held


def test_none_and_all_right_have_intervals_of_some_width() -> None:
    assert share_interval(0, 20, confidence=0.95).low == 0.0
    assert share_interval(0, 20, confidence=0.95).high > 0.1
    assert share_interval(20, 20, confidence=0.95).low < 0.9
