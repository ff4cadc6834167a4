"""Permutation importance agrees with scikit-learn's, and is 0 for a column that the model ignores."""

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.inspection import permutation_importance

from ratchet.evaluation.answers import ScoreUnit
from ratchet.evaluation.importance import following_columns, measure_importance


def test_importance_agrees_with_scikit_learn() -> None:
    drawn = np.random.default_rng(0)
    features = drawn.normal(size=(3000, 3))
    target = 3 * features[:, 0] + features[:, 1] + drawn.normal(0, 0.3, 3000)
    model = HistGradientBoostingRegressor(max_iter=60, random_state=0).fit(features[:1500], target[:1500])
    test, truth = features[1500:], target[1500:]

    def score(arrays: tuple[np.ndarray, ...]) -> np.ndarray:
        return -np.abs(model.predict(np.column_stack(arrays)) - truth)

    columns = [("strong", 0, 0), ("weak", 0, 1), ("none", 1, 0)]
    measured = measure_importance(
        score, (test[:, :2], test[:, 2:]), columns, unit=ScoreUnit("MAE", -1.0), confidence=0.95, repeats=5
    )
    theirs = permutation_importance(
        model, test, truth, scoring="neg_mean_absolute_error", n_repeats=20, random_state=0
    ).importances_mean
    assert [each.name for each in measured.columns] == ["strong", "weak", "none"]
    for each, expected in zip(measured.columns, theirs, strict=True):
        assert each.drop.value == pytest.approx(expected, abs=0.05)
        assert each.drop.low <= each.drop.value <= each.drop.high
    assert measured.columns[0].drop.low > measured.columns[1].drop.high > measured.columns[2].drop.high


def test_column_that_is_ignored_has_no_importance() -> None:
    numbers, codes = np.zeros((20, 1), np.float32), np.arange(20)[:, None]
    measured = measure_importance(
        lambda arrays: -np.abs(arrays[1][:, 0] - np.arange(20.0)),
        (numbers, codes), [("a", 0, 0), ("b", 1, 0)], unit=ScoreUnit("MAE", -2.0), confidence=0.95,
    )  # fmt: skip
    assert measured.columns[0].drop.value == 0.0
    assert measured.columns[1].drop.value > 0.0
    assert np.array_equal(codes[:, 0], np.arange(20))  # the arrays of the caller stay as they are


def test_columns_of_wide_tables_are_chosen_by_the_predictions() -> None:
    generator = np.random.default_rng(1)
    numbers = generator.normal(size=(200, 30)).astype(np.float32)
    numbers[::7, 3], numbers[:, 4] = np.nan, 5.0
    codes = generator.integers(0, 3, (200, 2))
    outputs = np.stack([np.nan_to_num(numbers[:, 3]) - 2 * numbers[:, 20], codes[:, 1].astype(np.float64)], axis=1)
    columns = [(f"n{at}", 0, at) for at in range(30)] + [("c0", 1, 0), ("c1", 1, 1)]
    chosen = following_columns((numbers, codes), columns, outputs, most=3)
    assert [name for name, _, _ in chosen] == ["n3", "n20", "c1"]
    assert following_columns((numbers, codes), columns[:3], outputs, most=3) == columns[:3]
