"""Columns that reveal the target without the sample: a leak, or a shortcut that a model will learn.

Examples: all cats are saved as JPEG and all dogs as PNG, one class was photographed with a larger camera, a column has
the name of the ward. A model that learns such a shortcut looks good here and fails elsewhere.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ratchet.data.tables.digests import coded

__all__ = ["determining_columns", "revealing_columns", "value_edges"]

_FILE_COLUMNS = ("format", "width", "height")
_BINS = 20  # for numbers, beside the best thresholds
_EACH = 10  # samples of such a bin, so that a few samples are not learned by heart
_FINE_BINS = 100  # where the target is a number
_MAX_VALUES = 0.2  # of the samples: a text column with more different values has names of samples, not groups
_NOTABLE = 0.5  # share of the errors of always answering the commonest class that a column must remove
_RARE = 0.25  # share of a class that is looked at alone; a third of Iris is decided by each petal
_RARE_NOTABLE = 0.95  # share of its errors that a column must remove
_FEW = 50  # validation samples of a class; with fewer, training and validation samples are one set
_FEWEST = 3  # samples of a class that a column can reveal
_GROUPS = 64  # different texts of this set
_MOST_CLASSES = 50  # that have thresholds of their own
_SIDES: tuple[Literal["left", "right"], ...] = ("left", "right")
_SAME_ORDER = 0.97  # share of the variance of a number's ranks that only a copy of it explains

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


def revealing_columns(
    index: pl.DataFrame, *, extra: Sequence[str], built_in: Sequence[str] = _FILE_COLUMNS, notable: float = _NOTABLE
) -> dict[str, Any]:
    """Return the extra columns that are constant, and all columns that predict the class, or one rare class.

    A column's prediction for a validation sample is the class that is commonest among the training samples with the
    same value; numbers are cut at their quantiles and where they best divide a class from the others. `right` is the
    share of correct predictions, and `commonest` that of the commonest class of all.

    Args:
        index: the packed rows: split, label, and the columns.
        extra: names of the source's extra columns.
        built_in: further columns, which may be constant.
        notable: share of the errors of always answering the commonest class that a column must remove.
    """
    train, validation = _of_splits(index.select("split", "label", *built_in, *extra))
    constant, revealing = [], []
    for name in (*built_in, *extra):
        if index.height and index[name].eq_missing(index[name][0]).all():
            constant += [name] if name in extra else []
            continue
        shares = _revealed(train, validation, name, notable)
        if shares is not None:
            revealing.append({"column": name, **shares})
    return {"constant": constant, "class": revealing}


def _of_splits(rows: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the rows of train and of validation."""
    train, validation = (rows.filter(pl.col("split") == name) for name in ("train", "validation"))
    return train, validation


def _revealed(train: pl.DataFrame, validation: pl.DataFrame, name: str, notable: float) -> dict[str, float] | None:
    """Return the shares of right answers by a column and without it, if it reveals the class or a rare one."""
    classes, counts = np.unique(validation["label"].to_numpy(), return_counts=True)
    if len(classes) < 2 or counts.min() < _FEW:
        together = pl.concat([part.select("label", name) for part in (train, validation)])  # not all columns
        if together[name].dtype.is_numeric() or together[name].n_unique() <= _GROUPS:
            train = validation = together
            classes, counts = np.unique(together["label"].to_numpy(), return_counts=True)
    learned, truth = train["label"].to_numpy(), validation["label"].to_numpy()
    groups = _groups(train[name], validation[name], learned) if len(learned) else None
    if groups is None or not len(truth):
        return None
    guess, most = _guesses(*groups, learned), _commonest(learned)
    right, commonest = float((guess == truth).mean()), float((truth == most).mean())
    others = counts[classes != most].sum()
    if others >= min(_FEWEST, len(truth)) and right - commonest > notable * (1 - commonest):
        return {"right": right, "commonest": commonest}
    for label, count in zip(classes.tolist(), counts.tolist(), strict=True):
        if _FEWEST <= count <= _RARE * len(truth):
            wrong = int(((guess == label) != (truth == label)).sum())
            if wrong <= (1 - _RARE_NOTABLE) * count:
                return {"right": right, "commonest": commonest}
    return None


def _guesses(known: Integers, new: Integers, learned: Integers) -> Integers:
    """Return the class that is commonest among the training samples of each new sample's group."""
    classes, codes = np.unique(learned, return_inverse=True)
    pairs, counts = np.unique(known * len(classes) + codes, return_counts=True)
    pairs = pairs[np.lexsort((-pairs, counts))]  # the last of a group's pairs counts
    best = np.full(max(known.max(), new.max(initial=0)) + 1, _commonest(learned))
    best[pairs // len(classes)] = classes[pairs % len(classes)]
    return best[new]


def determining_columns(rows: pl.DataFrame, *, columns: Sequence[str], least: float) -> list[dict[str, object]]:
    """Return the columns that alone predict a number.

    A column's prediction for a validation row is the mean of the training rows in the same bin, or with the same text.
    `explained` is the share of the variance of the validation rows that it explains (R2), at least `least`. A copy of a
    skewed number may miss that by its largest values alone: then R2 of the ranks decides.

    Args:
        rows: split, label (a number) and the columns.
        columns: their names.
        least: share from which a column is listed.
    """
    train, validation = _of_splits(rows.with_columns(rank=pl.col("label").rank("average")))
    listed: list[dict[str, object]] = []
    for name in columns if validation.height else ():
        groups = _groups(train[name], validation[name], None)
        if groups is None:
            continue
        shares = [
            _explained(*groups, *(part[of].to_numpy() for part in (train, validation))) for of in ("label", "rank")
        ]
        if shares[0] >= least or shares[1] >= max(least, _SAME_ORDER):
            listed.append({"column": name, "explained": max(shares)})
    return listed


def _explained(known: Integers, new: Integers, learned: Floats, truth: Floats) -> float:
    """Return R2 of the means of groups."""
    total = float(((truth - truth.mean()) ** 2).sum())
    if not total:
        return 0.0
    size = max(known.max(initial=0), new.max(initial=0)) + 1
    counts, sums = np.bincount(known, minlength=size), np.bincount(known, learned, minlength=size)
    means = np.where(counts > 0, sums / np.maximum(counts, 1), learned.mean())
    return 1.0 - float(((means[new] - truth) ** 2).sum()) / total


def _groups(known: pl.Series, new: pl.Series, labels: Integers | None) -> tuple[Integers, Integers] | None:
    """Return the group of each training and validation value, by text or bin; None if the values rarely repeat.

    `labels`: classes of the training values, whose best thresholds are edges too; None: the target is a number.
    """
    if known.dtype.is_numeric():
        numbers = known.cast(pl.Float64).drop_nulls().to_numpy()
        if not len(numbers):
            return None
        order = np.argsort(numbers)
        few = max(1, len(numbers) // _EACH)
        edges = value_edges(numbers[order], limit=_FINE_BINS if labels is None else min(_BINS, few))
        if labels is not None:
            labels = labels if len(numbers) == len(known) else labels[known.is_not_null().to_numpy()]
            edges = np.union1d(edges, _thresholds(numbers[order], labels[order]))
        return _bins(known, edges), _bins(new, edges)
    if known.n_unique() > max(2, _MAX_VALUES * len(known)):
        return None
    values = pl.concat([known, new])
    codes = coded(values if values.dtype == pl.Enum else values.cast(pl.String)).to_physical().cast(pl.Int64) + 1
    groups = codes.fill_null(0).to_numpy()
    return groups[: len(known)], groups[len(known) :]


def value_edges(ordered: Floats, *, limit: int) -> Floats:
    """Return edges between bins of sorted numbers: bin k has the values from edge k - 1 to below edge k.

    Of at most `limit` different values each but the smallest is an edge, so a flag that is 1 in 2 % has two bins. Of
    more, a value with more than its share of the rows has a bin of its own, such as the 0 of most capital gains, and
    the others are cut at quantiles.
    """
    total, later = len(ordered), ordered[1:]
    is_new: NDArray[np.bool_] = later != ordered[:-1]
    if np.count_nonzero(is_new) < limit:
        return later[is_new]
    sampled = np.unique(ordered[:: max(1, total // limit)])  # each heavy value is one of them
    begin, end = (np.searchsorted(ordered, sampled, side=side) for side in _SIDES)
    is_heavy = (end - begin) * limit > total
    begin, end = begin[is_heavy], end[is_heavy]
    counts, cuts = np.append(0, np.cumsum(end - begin)), max(1, limit - len(begin))
    places = np.rint(np.arange(1, cuts) / cuts * (total - counts[-1] - 1)).astype(np.int64)  # without heavy values
    places += counts[np.searchsorted(begin - counts[:-1], places, side="right")]
    return np.unique(ordered[np.concatenate([begin, np.minimum(end, total - 1), places])])


def _thresholds(numbers: Floats, labels: Integers) -> Floats:
    """Return the two thresholds of sorted numbers that divide each class best from the others."""
    ends = np.flatnonzero(numbers[1:] != numbers[:-1])  # the last row of each value but the largest
    classes, counts = np.unique(labels, return_counts=True)
    if not len(ends) or not 1 < len(classes) <= _MOST_CLASSES:
        return np.zeros(0)
    thresholds = []
    for label, count in zip(classes, counts, strict=True):
        inside = np.cumsum(labels == label)[ends]
        gain = inside / count - (ends + 1 - inside) / (len(labels) - count)
        thresholds += [numbers[ends[place] + 1] for place in (gain.argmax(), gain.argmin())]
    return np.array(thresholds)


def _bins(values: pl.Series, edges: Floats) -> Integers:
    """Return the bin of each number; missing ones have a bin of their own."""
    bins = np.searchsorted(edges, values.cast(pl.Float64).fill_null(0.0).to_numpy(), side="right")
    return np.where(values.is_null().to_numpy(), len(edges) + 1, bins)


def _commonest(labels: Integers) -> int:
    values, counts = np.unique(labels, return_counts=True)
    return int(values[counts.argmax()])
