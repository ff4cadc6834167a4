"""Pairs of columns that reveal the target together, such as a sum and one of its two parts."""

from collections.abc import Iterator, Sequence
from itertools import combinations
from math import comb, lgamma, log
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ratchet.data.checks.far_values import moments
from ratchet.data.checks.leakage import determining_columns, revealing_columns

__all__ = ["PairSearch"]

_ROWS = 4000  # of train that the search takes
_MOST = 200  # columns that the search pairs
_NEAREST = 3  # pairs that are verified, of each target, scale and kind
_LISTED = 3
_CLASSES = 10  # that are looked at one by one
_CODES = 16  # different values of a column whose values are combined
_EACH = 10  # rows of each combination on average
_STEPS, _RIDGE = 20, 1e-4  # of Newton's method
_COLLINEAR, _EQUAL = 1e-9, 1e-12  # shares of the variance below which only the difference counts, or nothing
_NOTABLE, _EXPLAINED = 0.99, 0.98  # shares as of single columns; more, because there are many pairs
_BY_CHANCE = 1e-3  # pairs of noise that may divide a class from the others in the rows that they are fitted to

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Pair = tuple[str, str]


class PairSearch:
    """Search for pairs of columns that determine a target on validation rows, where neither does alone.

    Numbers are added and subtracted, or multiplied and divided, with the factors that fit the training rows best. Of
    columns with few values each combination is looked at. Rows with a missing or far value are left out, and for
    products also those that are not positive, if half of the rows are left.

    Args:
        rows: split (train and validation) and the columns.
        names: columns that reveal nothing alone.
    """

    def __init__(self, rows: pl.DataFrame, names: Sequence[str]) -> None:
        self._split = rows["split"]
        self._places = np.flatnonzero((self._split == "train").to_numpy())[:_ROWS]
        self._pairs = comb(len(names), 2)
        numeric = [name for name in names if rows[name].dtype.is_numeric()][:_MOST]
        self._columns = {name: _numbers(rows[name]) for name in numeric}
        sampled = np.array([values[self._places] for values in self._columns.values()]).reshape(
            len(numeric), len(self._places)
        )
        self._sums = [_PairSums(_scaled(sampled, is_log=is_log)) for is_log in (False, True)]
        self._codes = {}
        for name in names:
            distinct = rows[name].n_unique()
            if 1 < distinct <= _CODES:
                self._codes[name] = (distinct, rows[name].rank("dense").fill_null(0).to_numpy().astype(np.uint8))

    def leaks(self, target: pl.Series, *, has_classes: bool) -> list[dict[str, Any]]:
        """Return the pairs that determine a target: classes as whole numbers, or numbers."""
        values = target.cast(pl.Float64).to_numpy()
        usable = _frequent(values, self._pairs) if has_classes else np.ones(len(values), np.bool_)
        named: dict[Pair, dict[str, Any]] = {}
        if self._pairs and usable.any() and np.ptp(values[usable]) > 0:
            for pair, combined in self._candidates(values, usable, has_classes):
                if pair not in named and (leak := self._verified(target, combined, has_classes)):
                    named[pair] = leak | {"columns": list(pair)}
        return list(named.values())[:_LISTED]

    def _candidates(self, values: Floats, usable: Bools, has_classes: bool) -> Iterator[tuple[Pair, pl.Series]]:
        for is_log, sums in enumerate(self._sums):
            for goal in _goals(values, usable, has_classes, is_log=bool(is_log)):
                inside = goal[self._places]
                for first, second in sums.nearest(inside):
                    pair = tuple(self._columns)[first], tuple(self._columns)[second]
                    both = _scaled(np.stack([self._columns[name] for name in pair]), is_log=bool(is_log))
                    both[:, np.isnan(goal)] = np.nan
                    for factors in ([1.0, -1.0], _weights(both[:, self._places], inside)):
                        yield pair, pl.Series(factors @ both, nan_to_null=True)
        if has_classes:
            yield from self._combined(values, usable)

    def _combined(self, values: Floats, usable: Bools) -> Iterator[tuple[Pair, pl.Series]]:
        """Yield combinations of the pairs of columns with few values that have most rows right."""
        places = self._places[usable[self._places]]
        classes, labels = np.unique(values[places], return_inverse=True)
        sampled = {name: codes[places].astype(np.int64) for name, (_, codes) in self._codes.items()}
        right: dict[Pair, int] = {}
        for pair in combinations(list(self._codes)[: _MOST // 2], 2):
            width, height = (self._codes[name][0] for name in pair)
            if _EACH * width * height <= len(places):
                groups = (sampled[pair[0]] * (height + 1) + sampled[pair[1]]) * len(classes) + labels
                counts = np.bincount(groups, minlength=(width + 1) * (height + 1) * len(classes))
                right[pair] = int(counts.reshape(-1, len(classes)).max(axis=1).sum())
        for pair in sorted(right, key=lambda pair: -right[pair])[:_NEAREST]:
            (_, left), (height, other) = (self._codes[name] for name in pair)
            groups = left.astype(np.int64) * (height + 1) + other
            yield (
                pair,
                pl.select(pl.when(pl.lit(pl.Series(usable))).then(pl.Series(groups).cast(pl.String))).to_series(),
            )

    def _verified(self, target: pl.Series, combined: pl.Series, has_classes: bool) -> dict[str, Any] | None:
        """Return the shares of a combination that determines the target in the rows where it is not missing."""
        frame = pl.DataFrame({"split": self._split, "label": target, "pair": combined}).drop_nulls("pair")
        if 2 * frame.height < len(target):
            return None
        leaks: Sequence[dict[str, Any]]
        if has_classes:
            leaks = revealing_columns(frame, extra=["pair"], built_in=(), notable=_NOTABLE)["class"]
        else:
            leaks = determining_columns(frame, columns=["pair"], least=_EXPLAINED)
        return leaks[0] if leaks else None


class _PairSums:
    """Sums over the rows where neither of two columns is missing, for all pairs of columns at once.

    Entry [i, j] is a sum of column i over the rows where column j is not missing.
    """

    def __init__(self, matrix: Floats) -> None:
        self._matrix, present = matrix, ~np.isnan(matrix)
        self._present, self._values = present.astype(np.float64), np.where(present, matrix, 0.0)
        with np.errstate(all="ignore"):  # squares of the largest numbers: such a pair is left out
            self._counts = self._present @ self._present.T
            self._totals = self._values @ self._present.T
            self._squares = self._values**2 @ self._present.T
            self._products = self._values @ self._values.T

    def nearest(self, goal: Floats) -> list[tuple[int, int]]:
        """Return the pairs whose weighted sum follows `goal` best, in the rows where that is not missing."""
        given = ~np.isnan(goal)
        if len(self._matrix) < 2 or given.sum() < 3:
            return []
        sums = self if given.all() else _PairSums(self._matrix[:, given])
        left, right = np.triu_indices(len(self._matrix), 1)
        shares = sums._explained(goal[given] - goal[given].mean())[left, right]
        best = np.argsort(-shares, kind="stable")[:_NEAREST]
        return [(int(left[place]), int(right[place])) for place in best if shares[place] > 0]

    def _explained(self, goal: Floats) -> Floats:
        """Return the share of the variance of `goal` that each pair explains by least squares."""
        with np.errstate(all="ignore"):
            total = (self._present * goal) @ self._present.T
            means = self._totals / self._counts
            square, product = self._squares - self._totals * means, self._products - self._totals * means.T
            follows = (self._values * goal) @ self._present.T - total * means
            rest, apart = square * square.T - product**2, square + square.T - 2 * product
            explained = (follows**2 * square.T + follows.T**2 * square - 2 * follows * follows.T * product) / rest
            explained = np.where(rest > _COLLINEAR * square * square.T, explained, 0.0)
            difference = np.where(apart > _EQUAL * (square + square.T), (follows - follows.T) ** 2 / apart, 0.0)
            shares = np.fmax(explained, difference)
            shares /= (self._present * goal**2) @ self._present.T - total**2 / self._counts
        many = 2 * self._counts >= self._matrix.shape[1]
        return np.where(many & np.isfinite(shares), shares, 0.0)


def _numbers(column: pl.Series) -> Floats:
    """Return numbers with NaN in place of missing and far ones."""
    numbers = column.cast(pl.Float64).fill_null(np.nan).to_numpy().copy()
    numbers[~np.isfinite(numbers)] = np.nan
    present = numbers[~np.isnan(numbers)]
    if len(present) and (limits := moments(present).range):
        numbers[(numbers < limits[0]) | (numbers > limits[1])] = np.nan
    return numbers


def _scaled(matrix: Floats, *, is_log: bool) -> Floats:
    """Return rows of numbers or of their logarithms, with NaN where there is none, around 0."""
    if is_log:
        matrix = np.log(matrix, out=np.full_like(matrix, np.nan), where=matrix > 0)
    counts = np.maximum((~np.isnan(matrix)).sum(axis=1, keepdims=True), 1)
    centred: Floats = matrix - np.nansum(matrix, axis=1, keepdims=True) / counts
    return centred


def _frequent(values: Floats, pairs: int) -> Bools:
    """Return which rows are of a class with so many rows that no pair of noise divides it from the others.

    In n rows two numbers and a line make fewer than n**4 divisions, of as many as there are subsets of that size.
    """
    _, classes, counts = np.unique(values, return_inverse=True, return_counts=True)
    rows = len(values)
    least = 4 * log(max(rows, 1)) + log(max(pairs, 1) / _BY_CHANCE)
    subsets = [lgamma(rows + 1) - lgamma(count + 1) - lgamma(rows - count + 1) for count in counts.tolist()]
    frequent: Bools = np.array([each >= least for each in subsets], np.bool_)[classes]
    return frequent


def _goals(values: Floats, usable: Bools, has_classes: bool, *, is_log: bool) -> list[Floats]:
    """Return what a weighted sum of two columns should follow: the number or its logarithm, or each class."""
    if not has_classes:
        return [_scaled(values[None], is_log=is_log)[0]]
    classes = np.unique(values[usable])
    chosen = classes[1:] if len(classes) == 2 else classes[:_CLASSES]
    return [np.where(usable, values == each, np.nan) for each in chosen]


def _weights(columns: Floats, goal: Floats) -> Floats:
    """Return the weights of a sum of two columns that follows `goal` best: by logistic regression if it is 0 and 1.

    They are fitted to orthonormal columns, because of two nearly equal ones the difference may decide.
    """
    present = ~np.isnan(columns).any(axis=0) & ~np.isnan(goal)
    columns, goal = columns[:, present], goal[present]
    spread = np.maximum(columns.std(axis=1, keepdims=True), np.finfo(np.float64).tiny)
    basis, factors = np.linalg.qr(((columns - columns.mean(axis=1, keepdims=True)) / spread).T)
    basis *= np.sqrt(len(goal))
    if not np.isin(goal, (0.0, 1.0)).all():
        weights: Floats = basis.T @ (goal - goal.mean())
    else:
        design, weights = np.column_stack([basis, np.ones(len(goal))]), np.zeros(3)
        for _ in range(_STEPS):
            chance = 1 / (1 + np.exp(-np.clip(design @ weights, -30, 30)))
            bend = design.T @ (design * (chance * (1 - chance))[:, None]) + _RIDGE * np.eye(3)
            weights += np.linalg.solve(bend, design.T @ (goal - chance) - _RIDGE * weights)
    scaled: Floats = np.linalg.lstsq(factors, weights[:2], rcond=None)[0] / spread[:, 0]
    return scaled
