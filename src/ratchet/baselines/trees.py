"""Gradient-boosted trees: scikit-learn's HistGradientBoosting with its default settings, as tensors of `Trees`.

The numbers are those of the input: as they are packed, or of a blend those that the network gets. Missing ones are NaN.
Categories are native.
scikit-learn allows 255 categories in a column; the rarest ones of a column with more share one.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from ratchet.baselines.tree_tensors import TreeSum, tree_tensors
from ratchet.kinds import TableInput
from ratchet.problems import Target
from ratchet.problems.classes import log_shares
from ratchet.problems.labels import log_odds
from ratchet.training.models.tabular import TableFront

__all__ = ["fit_trees"]

_MOST_CATEGORIES = 255  # of a column
_ITERATIONS = 100  # the default of scikit-learn
_MOST_TREES = 10_000  # of all classes; with more than 100 classes there are fewer iterations
_EARLY_STOPPING_ROWS = 10_000  # with more of them scikit-learn holds some back to stop early
_HELD_BACK = 0.1  # of the rows
_FEW = 20  # rows of a class

Floats = NDArray[np.float64]


def fit_trees(
    numbers: NDArray[np.generic],
    codes: NDArray[np.generic],
    targets: NDArray[np.generic],
    table: TableInput,
    target: Target,
    *,
    seed: int,
) -> dict[str, torch.Tensor]:
    """Return the state of a `Trees` that was fitted to these rows (see `fit_baseline`)."""
    categories = _categories(codes, table)
    rows = columns(numbers, codes, table, categories)
    known = ~np.isnan(rows).all(0)  # scikit-learn refuses a categorical column without any value
    native = np.arange(rows.shape[1]) >= len(table.numeric)
    sums = list(_sums(rows[:, known], targets, target, native[known], seed))
    # scikit-learn puts the categorical columns first.
    order = np.concatenate([np.flatnonzero(known & native), np.flatnonzero(known & ~native)])
    tensors = tree_tensors(sums, order, numeric=len(table.numeric), categories=int(categories.max(initial=0)))
    return {**tensors, "categories": torch.from_numpy(categories.astype(np.int32))}


def columns(
    numbers: NDArray[np.generic], codes: NDArray[np.generic], table: TableInput, categories: NDArray[np.int64]
) -> Floats:
    """Return the columns that the trees see, numeric and then categorical; NaN: missing or unknown."""
    with torch.no_grad():
        scaled, missing, _ = TableFront(table)(torch.from_numpy(numbers.astype(np.float32)), torch.zeros(0))
    seen = scaled.masked_fill(missing > 0, torch.nan).double().numpy()
    chosen = categories[np.arange(len(table.categorical)), codes.astype(np.int64)].astype(np.float64) - 1
    chosen[chosen < 0] = np.nan
    return np.concatenate([seen, chosen], 1)


def _categories(codes: NDArray[np.generic], table: TableInput) -> NDArray[np.int64]:
    """Return the category of each code, (categorical columns, codes), from 1; 0: missing. Every category occurs.

    The codes of a column with many categories are taken by frequency, then by number.
    """
    width = max((len(column.categories) for column in table.categorical), default=0) + 2
    categories = np.zeros((len(table.categorical), width), np.int64)
    for column, row in enumerate(categories):
        counts = np.bincount(codes[:, column].astype(np.int64), minlength=width)
        counts[:2] = 0  # missing and unknown
        present = np.flatnonzero(counts)
        by_frequency = present[np.argsort(-counts[present], kind="stable")]
        alone = (
            np.sort(by_frequency) if len(present) <= _MOST_CATEGORIES else np.sort(by_frequency[: _MOST_CATEGORIES - 1])
        )
        row[present] = len(alone) + 1  # the rarest ones together
        row[alone] = np.arange(1, len(alone) + 1)
    return categories


def _sums(
    rows: Floats, targets: NDArray[np.generic], target: Target, native: NDArray[np.bool_], seed: int
) -> Iterator[TreeSum]:
    """Yield the sums of trees that the network needs, in the order of its outputs."""
    yield from target.choose(classes=_classes, labels=_labels, numbers=_numbers)(rows, targets, target, native, seed)


def _labels(
    rows: Floats, targets: NDArray[np.generic], target: Target, native: NDArray[np.bool_], seed: int
) -> Iterator[TreeSum]:
    """Yield one sum for each label."""
    for column in targets.astype(np.int64).T:
        if len(np.unique(column)) == 1:
            yield TreeSum(float(log_odds(column[:, None])[0]), [])
        else:
            yield _sum(_fit(rows, column, native, seed, iterations=_ITERATIONS))


def _numbers(
    rows: Floats, targets: NDArray[np.generic], target: Target, native: NDArray[np.bool_], seed: int
) -> Iterator[TreeSum]:
    """Yield one sum for each number."""
    for column in target.scaled(targets).T:
        yield _sum(HistGradientBoostingRegressor(categorical_features=native, random_state=seed).fit(rows, column))


def _sum(model: Any) -> TreeSum:
    return TreeSum(model._baseline_prediction.item(), [trees[0] for trees in model._predictors])


def _classes(
    rows: Floats, targets: NDArray[np.generic], target: Target, native: NDArray[np.bool_], seed: int
) -> Iterator[TreeSum]:
    """Yield one sum for each class; for two classes the log-odds of the second one alone."""
    labels = targets.astype(np.int64)
    present = np.unique(labels)
    iterations = min(_ITERATIONS, max(1, _MOST_TREES // len(present)))
    model = _fit(rows, labels, native, seed, iterations=iterations)
    base = model._baseline_prediction.ravel()
    if target.outputs == 2:
        yield TreeSum(float(base[0]), [trees[0] for trees in model._predictors])
        return
    shares = log_shares(labels, target.outputs)  # of a class without rows; scikit-learn centres those of the others
    centre = shares[present].mean()
    sums = {number: TreeSum(float(shares[number] - centre), []) for number in range(target.outputs)}
    for place, number in enumerate(present.tolist()):
        if len(present) == 2:
            scale = place - 0.5
            sums[number] = TreeSum(scale * float(base[0]), [trees[0] for trees in model._predictors], scale)
        else:
            sums[number] = TreeSum(float(base[place]), [trees[place] for trees in model._predictors])
    yield from sums.values()


def _fit(rows: Floats, labels: NDArray[np.int64], native: NDArray[np.bool_], seed: int, *, iterations: int) -> Any:
    """Fit a classifier, by default with a stratified tenth of many rows for early stopping.

    scikit-learn cannot stratify where a class has one row. Then the tenth is without the classes of few rows.
    """
    model = HistGradientBoostingClassifier(categorical_features=native, random_state=seed, max_iter=iterations)
    _, number, counts = np.unique(labels, return_inverse=True, return_counts=True)
    if len(rows) <= _EARLY_STOPPING_ROWS or (counts.min() > 1 and len(counts) <= len(rows) // 20):
        return model.fit(rows, labels)
    out = (np.random.default_rng(seed).random(len(rows)) < _HELD_BACK) & (counts[number] >= _FEW)
    # Each class with enough rows keeps its first one, so that no class is only among those held back.
    out[np.unique(labels, return_index=True)[1]] = False
    if not out.any():
        return model.set_params(early_stopping=False).fit(rows, labels)
    return model.set_params(early_stopping=True).fit(rows[~out], labels[~out], X_val=rows[out], y_val=labels[out])
