"""Columns that reveal the class without the image: a leak, or a shortcut that a model will learn.

Examples: all cats are saved as JPEG and all dogs as PNG, one class was photographed with a larger camera, a column has
the name of the ward. A model that learns such a shortcut looks good here and fails elsewhere.
"""

from collections.abc import Sequence

import numpy as np
import polars as pl

__all__ = ["determining_columns", "revealing_columns"]

_FILE_COLUMNS = ("format", "width", "height")
_BINS = 20  # for numbers
_MAX_VALUES = 0.2  # of the samples: a text column with more different values has names of samples, not groups
_NOTABLE = 0.5  # share of the errors of always answering the commonest class that a column must remove


def revealing_columns(
    index: pl.DataFrame, *, extra: Sequence[str], built_in: Sequence[str] = _FILE_COLUMNS, notable: float = _NOTABLE
) -> dict[str, object]:
    """Return the extra columns that are constant, and all columns that predict the class.

    A column's prediction for a validation sample is the class that is commonest among the training samples with the
    same value. `right` is the share of correct predictions, and `commonest` that of the commonest class of all.

    Args:
        index: the packed rows: split, label, and the columns.
        extra: names of the source's extra columns.
        built_in: further columns, which may be constant.
        notable: share of the errors of always answering the commonest class that a column must remove.
    """
    columns = index.select("split", "label", *built_in, *extra)
    train, validation = (columns.filter(pl.col("split") == name) for name in ("train", "validation"))
    constant, revealing = [], []
    commonest = _share(validation["label"] == _commonest(train["label"]))
    for name in (*built_in, *extra):
        if index[name].n_unique() == 1:
            constant += [name] if name in extra else []
            continue
        right = _accuracy(train, validation, name)
        if right is not None and right - commonest > notable * (1 - commonest):
            revealing.append({"column": name, "right": right, "commonest": commonest})
    return {"constant": constant, "class": revealing}


def determining_columns(rows: pl.DataFrame, *, columns: Sequence[str], least: float) -> list[dict[str, object]]:
    """Return the columns that alone predict a number.

    A column's prediction for a validation row is the mean of the training rows in the same bin, or with the same text.
    `explained` is the share of the variance of the validation rows that it explains (R2), at least `least`.

    Args:
        rows: split, label (a number) and the columns.
        columns: their names.
        least: share from which a column is listed.
    """
    train, validation = (rows.filter(pl.col("split") == name) for name in ("train", "validation"))
    total = float(((validation["label"] - validation["label"].mean()) ** 2).sum()) if validation.height else 0.0
    listed: list[dict[str, object]] = []
    for name in columns if total else ():
        binned = _comparable(train[name], validation[name])
        if binned is None:
            continue
        known, new = binned
        means = (
            pl.DataFrame({"value": known, "label": train["label"]}).group_by("value").agg(guess=pl.col("label").mean())
        )
        answers = pl.DataFrame({"value": new, "label": validation["label"]})
        answers = answers.join(means, on="value", how="left", nulls_equal=True, maintain_order="left")
        guess = answers["guess"].fill_null(train["label"].mean())
        explained = 1.0 - float(((guess - answers["label"]) ** 2).sum()) / total
        if explained >= least:
            listed.append({"column": name, "explained": explained})
    return listed


def _comparable(known: pl.Series, new: pl.Series) -> tuple[pl.Series, pl.Series] | None:
    """Return the texts or bins of training and validation values; None if the values rarely repeat."""
    if known.dtype.is_numeric():
        numbers = known.drop_nulls().to_numpy().astype(np.float64)
        if not len(numbers):
            return None
        edges = np.unique(np.quantile(numbers, np.arange(1, _BINS) / _BINS, method="nearest"))
        known, new = (_binned(values, edges) for values in (known, new))
    elif known.n_unique() > max(2, _MAX_VALUES * len(known)):
        return None
    return known.cast(pl.String), new.cast(pl.String)


def _accuracy(train: pl.DataFrame, validation: pl.DataFrame, name: str) -> float | None:
    """Return the accuracy of a column's predictions; None if its values rarely repeat."""
    binned = _comparable(train[name], validation[name])
    if binned is None:
        return None
    known, new = binned
    seen = pl.DataFrame({"value": known, "label": train["label"]})
    best = seen.group_by("value", "label").len().sort(["len", "label"], descending=[True, False])
    best = best.unique("value", keep="first", maintain_order=True).select("value", guess="label")
    questions = pl.DataFrame({"value": new, "label": validation["label"]})
    answers = questions.join(best, on="value", how="left", nulls_equal=True, maintain_order="left")
    guess = answers["guess"].fill_null(_commonest(train["label"]))
    return _share(guess == answers["label"])


def _binned(values: pl.Series, edges: np.ndarray) -> pl.Series:
    """Return the bin of each number; null for null."""
    numbers = values.cast(pl.Float64)
    bins = pl.Series(np.searchsorted(edges, numbers.fill_null(0.0).to_numpy(), side="right"))
    return bins.set(numbers.is_null(), None)


def _share(right: pl.Series) -> float:
    return float(right.to_numpy().mean()) if len(right) else 0.0


def _commonest(labels: pl.Series) -> int:
    return int(labels.mode().sort()[0])
