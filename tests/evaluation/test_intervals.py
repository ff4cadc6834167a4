"""Intervals agree with their definitions. test_coverage.py measures their coverage."""

import numpy as np
import pytest
from scipy.stats import binomtest

from ratchet.evaluation.intervals import Interval, mean_of, paired_difference, share_interval
from ratchet.evaluation.jackknife import interval_of


def test_paired_draw_equals_resampling_rows() -> None:
    generator = np.random.default_rng(0)
    a, b = ((generator.random(300) < share).astype(np.float64) for share in (0.8, 0.75))
    quick = paired_difference(a, b, resamples=20_000, confidence=0.95, seed=0)
    apart = a - b
    means = apart[np.random.default_rng(1).integers(300, size=(20_000, 300))].mean(axis=1)
    assert quick.value == pytest.approx(apart.mean(), abs=1e-12)
    assert (quick.low, quick.high) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])), abs=0.004)


def test_identical_answers_have_no_difference() -> None:
    score = np.array([1.0, 0.0, 1.0])
    assert paired_difference(score, score, resamples=200, confidence=0.95, seed=0) == Interval(0.0, 0.0, 0.0)


def test_swapping_the_models_changes_the_sign() -> None:
    generator = np.random.default_rng(3)
    a, b = ((generator.random(500) < share).astype(np.float64) for share in (0.9, 0.8))
    forth = paired_difference(a, b, resamples=500, confidence=0.95, seed=0)
    back = paired_difference(b, a, resamples=500, confidence=0.95, seed=0)
    assert forth.value == -back.value
    assert forth.low > 0 > back.high


@pytest.mark.parametrize(("ours", "theirs"), [(-1.2, -1.5), (1.0, 0.0), (-1.5, -1.2), (0.0, 1.0)])
def test_one_row_shows_no_difference(ours: float, theirs: float) -> None:
    scores = (np.array([score]) for score in (ours, theirs))
    interval = paired_difference(*scores, resamples=100, confidence=0.95, seed=0)
    assert interval.value == pytest.approx(ours - theirs)
    assert interval.low < 0 < interval.high


def test_share_interval_equals_scipy() -> None:
    for right, rows in ((0, 1), (1, 1), (0, 20), (20, 20), (285, 300), (7, 11)):
        plain = binomtest(right, rows).proportion_ci(0.9, method="wilson")
        interval = share_interval(right, rows, confidence=0.9)
        assert (interval.low, interval.high) == pytest.approx((plain.low, plain.high), abs=1e-12)


def test_interval_of_a_mean_is_longer_on_the_skewed_side() -> None:
    losses = np.random.default_rng(2).exponential(size=200)
    interval = mean_of(losses, confidence=0.95)
    assert interval.high - losses.mean() > losses.mean() - interval.low


def test_interval_of_equal_values_has_no_width() -> None:
    assert mean_of(np.ones(9), confidence=0.95) == Interval(1.0, 1.0, 1.0)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_metric_at_0_or_1_has_a_wilson_interval(value: float) -> None:
    interval = interval_of(value, np.zeros(300), "share", confidence=0.95)
    assert interval == share_interval(int(300 * value), 300, confidence=0.95)
    assert interval.high - interval.low > 0.01


@pytest.mark.parametrize(("a", "b"), [(np.zeros(0), np.zeros(0)), (np.zeros(2), np.zeros(3))])
def test_arrays_that_cannot_be_paired_are_refused(a: np.ndarray, b: np.ndarray) -> None:
    with pytest.raises(ValueError, match="paired rows of shape"):
        paired_difference(a, b, resamples=100, confidence=0.95, seed=0)
