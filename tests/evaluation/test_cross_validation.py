"""The corrected interval of a mean over trainings. Truths: the formula by hand, and simulated shared samples."""

import numpy as np
import pytest

from ratchet.evaluation.cross_validation import CrossValidation, Fold, mean_over_trainings


def test_the_interval_equals_the_published_formula() -> None:
    """Variance of the mean: (1/5 + 1/4) times that of the scores; t with 4 degrees of freedom is 2.776."""
    scores = [0.80, 0.82, 0.79, 0.85, 0.81]
    interval = mean_over_trainings(scores, "validation/rmse", confidence=0.95, held_out=0.25)
    half = 2.7764451 * np.std(scores, ddof=1) * (1 / 5 + 1 / 4) ** 0.5
    assert interval.value == pytest.approx(0.814)
    assert interval.high - interval.value == pytest.approx(half)
    assert interval.value - interval.low == pytest.approx(half)


@pytest.mark.parametrize(
    ("metric", "low", "high"), [("accuracy", 0.0, 1.0), ("rmse", 0.0, None), ("r2", None, 1.0), ("other", None, None)]
)
def test_intervals_stay_within_the_range_of_the_metric(metric: str, low: float | None, high: float | None) -> None:
    interval = mean_over_trainings([1.0, 0.5], f"validation/{metric}", confidence=0.95, held_out=1.0)
    assert interval.low == low if low is not None else interval.low < 0
    assert interval.high == high if high is not None else interval.high > 1


def test_metrics_that_a_fold_lacks_have_no_mean() -> None:
    folds = tuple(
        Fold(number, "key", "", {"train": 80, "validation": 20, "test": 10}, 1, metrics)
        for number, metrics in enumerate([{"validation/loss": 1.0, "validation/r2": 0.5}, {"validation/loss": 2.0}], 1)
    )
    result = CrossValidation("key", "", 0.95, folds)
    assert list(result.intervals) == ["validation/loss"]
    assert result.held_out == 0.25


def test_corrected_intervals_cover_where_the_usual_ones_do_not() -> None:
    """Ridge regression in ten folds of 60 rows, 400 times. The truth is the mean error of all these trainings."""
    draw = np.random.default_rng(0)
    means, corrected, usual = [], [], []
    for _ in range(400):
        x = draw.normal(size=(60, 5))
        y = x.sum(1) + draw.normal(size=60)
        errors = []
        for fold in range(10):
            held = np.arange(60) % 10 == fold
            weights = np.linalg.solve(x[~held].T @ x[~held] + np.eye(5), x[~held].T @ y[~held])
            errors.append(float(np.mean((x[held] @ weights - y[held]) ** 2)))
        means.append(np.mean(errors))
        corrected.append(mean_over_trainings(errors, "validation/mse", confidence=0.95, held_out=1 / 9))
        usual.append(mean_over_trainings(errors, "validation/mse", confidence=0.95))
    truth = np.mean(means)
    covered, less = ([each.low <= truth <= each.high for each in intervals] for intervals in (corrected, usual))
    assert np.mean(covered) > np.mean(less)
    assert np.mean(covered) >= 0.94
