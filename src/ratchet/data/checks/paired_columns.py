"""Pairs of columns that reveal the target together, such as a sum and one of its two parts."""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ratchet.data.checks.leakage import determining_columns, revealing_columns

__all__ = ["revealing_pairs"]

_ROWS = 4000  # of train that the search takes
_MOST = 200  # columns that the search pairs
_NEAREST = 3  # pairs that are verified, of each target, scale and kind
_LISTED = 3
_CLASSES = 10  # that are looked at one by one
_CODES = 16  # different values of a column whose values are combined
_EACH = 10  # rows of each combination on average
_STEPS, _RIDGE = 12, 1e-3  # of Newton's method
_NOTABLE, _EXPLAINED = 0.99, 0.98  # shares as of single columns; more, because there are many pairs

Floats = NDArray[np.float64]
Pair = tuple[str, str]


def revealing_pairs(
    rows: pl.DataFrame, target: pl.Series, names: Sequence[str], *, has_classes: bool
) -> list[dict[str, Any]]:
    """Return the pairs of columns that determine the target on validation rows, where neither does alone.

    Numbers are added and subtracted, or multiplied and divided, with the factors that fit the training rows best. Of
    columns with few values each combination is looked at.

    Args:
        rows: split and the columns.
        target: classes as whole numbers, or numbers.
        names: columns that reveal nothing alone.
        has_classes: whether the target has classes.
    """
    is_train = (rows["split"] == "train").to_numpy()
    places = np.flatnonzero(is_train)[:_ROWS]
    numeric = {name: _filled(rows[name], places) for name in names if rows[name].dtype.is_numeric()}
    columns = dict(list(numeric.items())[:_MOST])
    positive = {name: np.log(values) for name, values in columns.items() if values.min(initial=1.0) > 0}
    values = target.cast(pl.Float64).to_numpy()
    scales = [(columns, _wanted(values, has_classes)), (positive, _wanted(values, has_classes, log=True))]
    candidates: list[tuple[Pair, pl.Series]] = []
    for scale, wanted in scales:
        for goal in wanted:
            for (first, second), factors in _nearest(scale, goal, places):
                combined = factors[0] * scale[first] + factors[1] * scale[second]
                candidates.append(((first, second), pl.Series(combined)))
    if has_classes:
        candidates += _combined(rows, target, names, places)
    labelled = rows.select("split", label=target).with_columns(
        values.alias(str(place)) for place, (_, values) in enumerate(candidates)
    )
    tried = [str(place) for place in range(len(candidates))]
    leaks: Sequence[dict[str, object]]
    if has_classes:
        leaks = revealing_columns(labelled, extra=tried, built_in=(), notable=_NOTABLE)["class"]
    else:
        leaks = determining_columns(labelled, columns=tried, least=_EXPLAINED)
    named = {candidates[int(str(leak["column"]))][0]: leak for leak in leaks}
    return [leak | {"columns": list(pair)} for pair, leak in list(named.items())[:_LISTED]]


def _filled(values: pl.Series, places: NDArray[np.int64]) -> Floats:
    """Return numbers with the median of training rows in place of missing ones."""
    numbers = values.cast(pl.Float64)
    middle = numbers[places].median() if len(places) else None
    return numbers.fill_null(middle if isinstance(middle, float) else 0.0).to_numpy()


def _wanted(values: Floats, has_classes: bool, *, log: bool = False) -> list[Floats]:
    """Return what a weighted sum of two columns should follow: the number or its logarithm, or each class."""
    if not has_classes:
        if log:
            return [np.log(values)] if values.min(initial=1.0) > 0 else []
        return [values]
    classes = np.unique(values)
    chosen = classes[1:] if len(classes) == 2 else classes[:_CLASSES]
    return [(values == one_class).astype(np.float64) for one_class in chosen]


def _nearest(columns: dict[str, Floats], goal: Floats, places: NDArray[np.int64]) -> list[tuple[Pair, Floats]]:
    """Return the pairs whose weighted sum follows `goal` best, with the weights, by least squares on `places`."""
    matrix = (
        np.stack([goal, *columns.values()])[:, places] if len(columns) > 1 and len(places) > 2 else np.zeros((1, 0))
    )
    varying = np.ptp(matrix, axis=1) > 0 if matrix.size else np.zeros(1, bool)
    if varying.sum() < 3 or not varying[0]:
        return []
    names = np.array(list(columns))[varying[1:]]
    between = np.corrcoef(matrix[varying])
    own, mutual = between[0, 1:], between[1:, 1:]
    rest = 1 - mutual**2
    explained = (own[:, None] ** 2 + own**2 - 2 * own[:, None] * own * mutual) / np.where(rest > 1e-9, rest, np.inf)
    left, right = np.triu_indices(len(names), 1)
    best = np.argsort(-explained[left, right], kind="stable")[:_NEAREST]
    pairs = [(str(names[left[place]]), str(names[right[place]])) for place in best]
    return [(pair, _weights([columns[name][places] for name in pair], goal[places])) for pair in pairs]


def _weights(values: Sequence[Floats], goal: Floats) -> Floats:
    """Return the weights of a sum of columns that follows `goal` best: by logistic regression if it is 0 and 1."""
    matrix = np.stack([(column - column.mean()) / column.std() for column in values], axis=1)
    if not np.isin(goal, (0.0, 1.0)).all():
        weights: Floats = np.linalg.lstsq(matrix, goal - goal.mean(), rcond=None)[0]
    else:
        design, weights = np.column_stack([matrix, np.ones(len(goal))]), np.zeros(3)
        for _ in range(_STEPS):
            chance = 1 / (1 + np.exp(-np.clip(design @ weights, -30, 30)))
            bend = design.T @ (design * (chance * (1 - chance))[:, None]) + _RIDGE * np.eye(3)
            weights += np.linalg.solve(bend, design.T @ (goal - chance) - _RIDGE * weights)
    scaled: Floats = weights[:2] / np.array([column.std() for column in values])
    return scaled


def _combined(
    rows: pl.DataFrame, target: pl.Series, names: Sequence[str], places: NDArray[np.int64]
) -> list[tuple[Pair, pl.Series]]:
    """Return combinations of the pairs of columns with few values that have most rows right."""
    codes = {}
    for name in names:
        distinct = rows[name].n_unique()
        if 1 < distinct <= _CODES:
            codes[name] = (distinct, rows[name].rank("dense").fill_null(0).to_numpy().astype(np.int64))
    labels = target.rank("dense").to_numpy().astype(np.int64)
    classes, right = int(labels.max(initial=0)) + 1, {}
    for first, second in combinations(list(codes)[: _MOST // 2], 2):
        (width, left), (height, other) = codes[first], codes[second]
        groups = left * (height + 1) + other
        if _EACH * width * height > len(places):
            continue
        counts = np.bincount(groups[places] * classes + labels[places], minlength=(width + 1) * (height + 1) * classes)
        right[first, second] = (int(counts.reshape(-1, classes).max(axis=1).sum()), groups)
    best = sorted(right, key=lambda pair: -right[pair][0])[:_NEAREST]
    return [(pair, pl.Series(right[pair][1]).cast(pl.String)) for pair in best]
