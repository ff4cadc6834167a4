"""Intervals: truth comes from simulation with a known answer, and from the definition of the bootstrap."""

import numpy as np
import pytest

from ratchet.evaluation import intervals
from ratchet.evaluation.intervals import Interval, mean_interval, paired_difference, percentile, resample_weights


def test_mean_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    generator = np.random.default_rng(7)
    held = 0
    for number in range(300):
        values = (generator.random(150) < 0.7).astype(np.float64)
        interval = mean_interval(values, resamples=300, confidence=0.9, seed=number)
        held += interval.low <= 0.7 <= interval.high
    assert 0.84 <= held / 300 <= 0.95  # 0.9, give or take three standard errors of 300 sets


def test_paired_interval_holds_the_true_difference_about_as_often_as_it_says() -> None:
    generator = np.random.default_rng(8)
    held = 0
    for number in range(500):
        chance = generator.random(400)
        interval = paired_difference(chance < 0.85, chance < 0.8, resamples=500, confidence=0.95, seed=number)
        held += interval.low <= 0.05 <= interval.high
    assert 0.92 <= held / 500 <= 0.98


def test_paired_draw_equals_resampling_rows() -> None:
    generator = np.random.default_rng(0)
    a, b = generator.random(300) < 0.8, generator.random(300) < 0.75
    quick = paired_difference(a, b, resamples=20_000, confidence=0.95, seed=0)
    slow = mean_interval(a.astype(float) - b, resamples=20_000, confidence=0.95, seed=1)
    assert quick.value == pytest.approx(slow.value, abs=1e-12)
    assert (quick.low, quick.high) == pytest.approx((slow.low, slow.high), abs=0.004)


def test_identical_answers_differ_by_nothing() -> None:
    correct = np.array([True, False, True])
    assert paired_difference(correct, correct, resamples=200, confidence=0.95, seed=0) == Interval(0.0, 0.0, 0.0)


def test_swapping_the_models_turns_the_sign() -> None:
    generator = np.random.default_rng(3)
    a, b = generator.random(500) < 0.9, generator.random(500) < 0.8
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
    one, two = (next(resample_weights(50, resamples=3, seed=seed)) for seed in (0, 1))
    assert not np.array_equal(one, two)


def test_interval_holds_its_own_figure() -> None:
    interval = percentile(np.linspace(0.2, 0.4, 100), 0.1, confidence=0.95)
    assert interval is not None
    assert interval.low == interval.value == 0.1


def test_figure_undefined_on_most_resamples_has_no_interval() -> None:
    assert percentile(np.array([np.nan, np.nan, 1.0]), 1.0, confidence=0.95) is None


@pytest.mark.parametrize(("a", "b"), [(np.zeros(0, bool), np.zeros(0, bool)), (np.zeros(2, bool), np.zeros(3, bool))])
def test_rows_that_do_not_pair_are_refused(a: np.ndarray, b: np.ndarray) -> None:
    with pytest.raises(ValueError, match="paired rows of shape"):
        paired_difference(a, b, resamples=100, confidence=0.95, seed=0)
