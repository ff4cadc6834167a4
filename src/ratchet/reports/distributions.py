"""Distributions of a table's features in the training and the test rows."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ratchet.kinds import Column

__all__ = ["Distribution", "date_text", "feature_distributions"]

_BINS = 16
_VALUES = 12  # of a categorical column; the others are one bar
_SINGLE = 26  # different numbers of a column, each of which has a bar
_MOST = 60  # columns that are drawn
_WEEK = 604_800.0  # seconds
_TAIL = 0.005  # share of the training values at each end that the first and the last bin collect


@dataclass(frozen=True)
class Distribution:
    """Shares of the known values of one column in each bin."""

    name: str
    labels: Sequence[str]  # of the bins
    train: Sequence[float]
    test: Sequence[float]
    missing: float  # share of the training rows without a value


def feature_distributions(
    columns: Sequence[Column], train: tuple[NDArray[Any], ...], test: tuple[NDArray[Any], ...]
) -> tuple[Distribution, ...]:
    """Return the distribution of each column, in the order of the file.

    Args:
        columns: of the table.
        train: numbers and codes of the training rows, as they are packed.
        test: the same of the test rows.
    """
    places, distributions = [itertools.count(), itertools.count()], []
    for column in columns[:_MOST]:
        array = int(column.type == "categorical")
        at = next(places[array])
        distributions.append((_numbers, _values)[array](column, train[array][:, at], test[array][:, at]))
    return tuple(distributions)


def _numbers(column: Column, train: NDArray[Any], test: NDArray[Any]) -> Distribution:
    known = train[np.isfinite(train)].astype(np.float64)
    if not known.size:
        return Distribution(column.name, (), (), (), 1.0)
    values = np.unique(known)
    if values.size <= _SINGLE:  # one bar for each value
        edges = np.concatenate([[-np.inf], (values[1:] + values[:-1]) / 2, [np.inf]])
        single = [_shares(each[np.isfinite(each)], edges) for each in (train, test)]
        names = tuple(_label(column, value) for value in values)
        return Distribution(column.name, names, single[0], single[1], 1 - known.size / len(train))
    low, high = np.quantile(known, [_TAIL, 1 - _TAIL])
    edges = np.linspace(low, high if high > low else low + 1.0, _BINS + 1)
    shares = [_shares(np.clip(values[np.isfinite(values)], edges[0], edges[-1]), edges) for values in (train, test)]
    labels = [_label(column, (left + right) / 2) for left, right in itertools.pairwise(edges)]
    labels[0], labels[-1] = _label(column, edges[0]), _label(column, edges[-1])
    return Distribution(column.name, tuple(labels), shares[0], shares[1], 1 - known.size / len(train))


def _shares(values: NDArray[Any], edges: NDArray[np.float64]) -> tuple[float, ...]:
    counts, _ = np.histogram(values, edges)
    return tuple((counts / max(1, values.size)).tolist())


def _label(column: Column, value: float) -> str:
    if column.type == "datetime":
        return date_text(value + column.offset, with_time=column.std < _WEEK)
    return f"{value + column.offset:.{9 if column.offset else 4}g}"


def date_text(seconds: float, *, with_time: bool = False) -> str:
    """Return seconds since 1970-01-01 UTC as a date: "2024-05-31", or "2024-05-31 12:30"."""
    return str(np.datetime64(round(seconds), "s"))[: 16 if with_time else 10].replace("T", " ")


def _values(column: Column, train: NDArray[Any], test: NDArray[Any]) -> Distribution:
    """Return the most frequent values of the training rows, and all others as one bin."""
    names = ["missing", "unseen", *column.categories]
    counts = [np.bincount(codes.astype(np.int64), minlength=len(names)).astype(np.float64) for codes in (train, test)]
    order = np.argsort(-counts[0], kind="stable")[:_VALUES]
    order = order[(counts[0] + counts[1])[order] > 0]
    shares, labels = (
        [tuple((count[order] / max(1.0, count.sum())).tolist()) for count in counts],
        [names[at] for at in order],
    )
    if sum(map(len, shares)) and min(map(sum, shares)) < 1 - 1e-9:
        shares, labels = [(*share, max(0.0, 1 - sum(share))) for share in shares], [*labels, "others"]
    missing = float(counts[0][0] / max(1.0, counts[0].sum()))
    return Distribution(column.name, tuple(labels), shares[0], shares[1], missing)
