"""Columns that reveal the target without the sample: a leak, or a shortcut that a model will learn.

Examples: all cats are saved as JPEG and all dogs as PNG, one class was photographed with a larger camera, a column has
the name of the ward. A model that learns such a shortcut looks good here and fails elsewhere.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

__all__ = ["determining_columns", "revealing_columns", "value_edges"]

_FILE_COLUMNS = ("format", "width", "height")
_BINS = 20  # for numbers, beside the best thresholds
_FINE_BINS = 100  # where the target is a number
_MAX_VALUES = 0.2  # of the samples: a text column with more different values has names of samples, not groups
_NOTABLE = 0.5  # share of the errors of always answering the commonest class that a column must remove
_RARE = 0.1  # share of a class that is looked at alone
_RARE_NOTABLE = 0.95  # share of its errors that a column must remove
_FEW = 50  # validation samples of a class; with fewer, training and validation samples are one set
_FEWEST = 3  # samples of a class that a column can reveal
_GROUPS = 64  # different texts of this set
_MOST_CLASSES = 50  # that have thresholds of their own
_SIDES: tuple[Literal["left", "right"], ...] = ("left", "right")
_SAME_ORDER = 0.97  # share of the variance of a number's ranks that only a copy of it explains

Integers = NDArray[np.int64]


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
    columns = index.select("split", "label", *built_in, *extra)
    train, validation = (columns.filter(pl.col("split") == name) for name in ("train", "validation"))
    constant, revealing = [], []
    for name in (*built_in, *extra):
        if index[name].n_unique() == 1:
            constant += [name] if name in extra else []
            continue
        shares = _revealed(train, validation, name, notable)
        if shares is not None:
            revealing.append({"column": name, **shares})
    return {"constant": constant, "class": revealing}


def _revealed(train: pl.DataFrame, validation: pl.DataFrame, name: str, notable: float) -> dict[str, float] | None:
    """Return the shares of right answers by a column and without it, if it reveals the class or a rare one."""
    sizes = np.unique(validation["label"].to_numpy(), return_counts=True)[1]
    if len(sizes) < 2 or sizes.min() < _FEW:
        together = pl.concat([train, validation])
        if together[name].dtype.is_numeric() or together[name].n_unique() <= _GROUPS:
            train = validation = together
    learned, truth = train["label"].to_numpy(), validation["label"].to_numpy()
    binned = _comparable(train[name], validation[name], learned) if len(learned) else None
    if binned is None:
        return None
    guess = _guesses(*binned, learned)
    if not len(truth):
        return None
    right, commonest = float((guess == truth).mean()), float((truth == _commonest(learned)).mean())
    classes, counts = np.unique(truth, return_counts=True)
    others = counts[classes != _commonest(learned)].sum()
    if others >= min(_FEWEST, len(truth)) and right - commonest > notable * (1 - commonest):
        return {"right": right, "commonest": commonest}
    for label, count in zip(classes.tolist(), counts.tolist(), strict=True):
        wrong = int(((guess == label) != (truth == label)).sum())
        if _FEWEST <= count <= _RARE * len(truth) and wrong <= (1 - _RARE_NOTABLE) * count:
            return {"right": right, "commonest": commonest}
    return None


def _guesses(known: pl.Series, new: pl.Series, learned: Integers) -> Integers:
    """Return the class that is commonest among the training samples of each new sample's group."""
    seen = pl.DataFrame({"value": known, "label": learned})
    best = seen.group_by("value", "label").len().sort(["len", "label"], descending=[True, False])
    best = best.unique("value", keep="first", maintain_order=True).select("value", guess="label")
    answers = pl.DataFrame({"value": new}).join(best, on="value", how="left", nulls_equal=True, maintain_order="left")
    return answers["guess"].fill_null(_commonest(learned)).to_numpy()


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
    ranks = pl.col("label").rank("average")
    train, validation = (
        rows.with_columns(rank=ranks).filter(pl.col("split") == name) for name in ("train", "validation")
    )
    listed: list[dict[str, object]] = []
    for name in columns if validation.height else ():
        binned = _comparable(train[name], validation[name], None)
        if binned is None:
            continue
        shares = [_explained(*binned, train[target], validation[target]) for target in ("label", "rank")]
        if shares[0] >= least or shares[1] >= max(least, _SAME_ORDER):
            listed.append({"column": name, "explained": max(shares)})
    return listed


def _explained(known: pl.Series, new: pl.Series, learned: pl.Series, truth: pl.Series) -> float:
    """Return R2 of the means of groups."""
    total = float(((truth - truth.mean()) ** 2).sum())
    if not total:
        return 0.0
    means = pl.DataFrame({"value": known, "label": learned}).group_by("value").agg(guess=pl.col("label").mean())
    answers = pl.DataFrame({"value": new, "label": truth})
    answers = answers.join(means, on="value", how="left", nulls_equal=True, maintain_order="left")
    guess = answers["guess"].fill_null(learned.mean())
    return 1.0 - float(((guess - answers["label"]) ** 2).sum()) / total


def _comparable(known: pl.Series, new: pl.Series, labels: Integers | None) -> tuple[pl.Series, pl.Series] | None:
    """Return the texts or bins of training and validation values; None if the values rarely repeat.

    `labels`: classes of the training values, whose best thresholds are edges too; None: the target is a number.
    """
    if known.dtype.is_numeric():
        numbers = known.cast(pl.Float64).drop_nulls().to_numpy()
        if not len(numbers):
            return None
        edges = value_edges(np.sort(numbers), limit=_FINE_BINS if labels is None else _BINS)
        if labels is not None:
            edges = np.union1d(edges, _thresholds(numbers, labels[known.is_not_null().to_numpy()]))
        known, new = (_binned(values, edges) for values in (known, new))
    elif known.n_unique() > max(2, _MAX_VALUES * len(known)):
        return None
    return known, new


def value_edges(ordered: NDArray[np.float64], *, limit: int) -> NDArray[np.float64]:
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


def _thresholds(numbers: NDArray[np.float64], labels: Integers) -> NDArray[np.float64]:
    """Return the two thresholds that divide each class best from the others, whatever its share is."""
    order = np.argsort(numbers, kind="stable")
    numbers, labels = numbers[order], labels[order]
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


def _binned(values: pl.Series, edges: NDArray[np.float64]) -> pl.Series:
    """Return the bin of each number; null for null."""
    numbers = values.cast(pl.Float64)
    bins = pl.Series(np.searchsorted(edges, numbers.fill_null(0.0).to_numpy(), side="right"))
    return bins.set(numbers.is_null(), None)


def _commonest(labels: Integers) -> int:
    values, counts = np.unique(labels, return_counts=True)
    return int(values[counts.argmax()])
