"""Intervals agree with their definitions. test_coverage.py measures their coverage."""

import numpy as np
import pytest
from scipy.special import expit, logit
from scipy.stats import binomtest

from ratchet.evaluation import intervals
from ratchet.evaluation.intervals import (
    Interval,
    bounded_interval,
    mean_interval,
    paired_difference,
    resample_weights,
    share_interval,
)


def test_paired_draw_equals_resampling_rows() -> None:
    generator = np.random.default_rng(0)
    a, b = ((generator.random(300) < share).astype(np.float64) for share in (0.8, 0.75))
    quick = paired_difference(a, b, resamples=20_000, confidence=0.95, seed=0)
    apart = a - b
    means = np.concatenate([weights @ apart / 300 for weights in resample_weights(300, resamples=20_000, seed=1)])
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


def test_chunks_do_not_change_a_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = np.concatenate(list(resample_weights(40, resamples=25, seed=5)))
    monkeypatch.setattr(intervals, "_CHUNK_ELEMENTS", 120)
    parts = list(resample_weights(40, resamples=25, seed=5))
    assert len(parts) == 9
    assert np.array_equal(whole, np.concatenate(parts))
    assert (whole.sum(axis=1) == 40).all()
    assert not np.array_equal(whole[0], whole[1])


def test_other_seed_gives_other_draws() -> None:
    first, second = (next(resample_weights(50, resamples=3, seed=seed)) for seed in (0, 1))
    assert not np.array_equal(first, second)


def test_bounded_interval_is_normal_on_the_logit_scale() -> None:
    on_scale = np.random.default_rng(0).normal(2.0, 0.5, size=4000)
    interval = bounded_interval(expit(on_scale), 0.9, rows=300, confidence=0.95)
    assert interval is not None
    assert logit([interval.low, interval.high]) == pytest.approx(logit(0.9) + np.array([-1, 1]) * 1.96 * 0.5, abs=0.03)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_metric_at_0_or_1_has_a_wilson_interval(value: float) -> None:
    interval = bounded_interval(np.full(100, value), value, rows=300, confidence=0.95)
    assert interval == share_interval(int(300 * value), 300, confidence=0.95)
    assert interval is not None
    assert interval.high - interval.low > 0.01


def test_metric_undefined_on_most_resamples_has_no_interval() -> None:
    assert bounded_interval(np.array([np.nan, np.nan, 0.5]), 0.5, rows=3, confidence=0.95) is None


def test_share_interval_equals_scipy() -> None:
    for right, rows in ((0, 1), (1, 1), (0, 20), (20, 20), (285, 300), (7, 11)):
        plain = binomtest(right, rows).proportion_ci(0.9, method="wilson")
        interval = share_interval(right, rows, confidence=0.9)
        assert (interval.low, interval.high) == pytest.approx((plain.low, plain.high), abs=1e-12)


def test_mean_interval_is_longer_on_the_skewed_side() -> None:
    losses = np.random.default_rng(2).exponential(size=200)
    weights = next(resample_weights(200, resamples=2000, seed=0))
    means = weights @ losses / 200
    errors = np.sqrt((weights @ losses**2 / 200 - means**2) / 200)
    mean, error = float(losses.mean()), float(losses.std()) / 200**0.5
    interval = mean_interval(means, errors, mean=mean, error=error, confidence=0.95)
    assert interval.high - mean > mean - interval.low
    assert interval.high > np.quantile(means, 0.975)


def test_interval_of_equal_values_has_no_width() -> None:
    assert mean_interval(np.ones(9), np.zeros(9), mean=1.0, error=0.0, confidence=0.95) == Interval(1.0, 1.0, 1.0)


@pytest.mark.parametrize(("a", "b"), [(np.zeros(0), np.zeros(0)), (np.zeros(2), np.zeros(3))])
def test_arrays_that_cannot_be_paired_are_refused(a: np.ndarray, b: np.ndarray) -> None:
    with pytest.raises(ValueError, match="paired rows of shape"):
        paired_difference(a, b, resamples=100, confidence=0.95, seed=0)
