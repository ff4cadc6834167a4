"""What tells the class without a look at the picture: a leak, or a shortcut that a model will take.

All cats saved as JPEG and all dogs as PNG, one class photographed with a larger camera, the name of the ward in a
column: a model that learned it looks good here and fails elsewhere.
"""

from collections.abc import Sequence

import numpy as np
import polars as pl

__all__ = ["telling"]

_OF_THE_FILE = ("format", "width", "height")
_PARTS = 20  # that numbers are cut into
_MOST_VALUES = 0.2  # of the samples: a column with more different texts names samples and not kinds of them
_NOTABLE = 0.5  # of what the commonest class leaves unexplained


def telling(index: pl.DataFrame, *, own: Sequence[str]) -> dict[str, object]:
    """Columns of the index that are the same for all samples, and columns that tell the class.

    The class that is commonest in training at a column's value is taken for the class of a validation sample with that
    value; `right` is how often it is, `commonest` how often the commonest class of all is.

    Args:
        index: the packed rows: split, label, format, width, height and the source's own columns.
        own: their names.
    """
    asked = index.select("split", "label", *_OF_THE_FILE, *own)
    train, held_out = (asked.filter(pl.col("split") == name) for name in ("train", "validation"))
    constant, found = [], []
    commonest = _share(held_out["label"] == _commonest(train["label"]))
    for name in (*_OF_THE_FILE, *own):
        if index[name].n_unique() == 1:
            constant += [name] if name in own else []
            continue
        right = _right(train, held_out, name)
        if right is not None and right - commonest > _NOTABLE * (1 - commonest):
            found.append({"column": name, "right": right, "commonest": commonest})
    return {"constant": constant, "class": found}


def _right(train: pl.DataFrame, held_out: pl.DataFrame, name: str) -> float | None:
    """How often the column tells the class of a validation sample; None: its values are hardly ever the same."""
    seen, asked = train[name], held_out[name]
    if seen.dtype.is_numeric():
        numbers = seen.drop_nulls().to_numpy().astype(np.float64)
        if not len(numbers):
            return None
        edges = np.unique(np.quantile(numbers, np.arange(1, _PARTS) / _PARTS, method="nearest"))
        seen, asked = (_parts(values, edges) for values in (seen, asked))
    elif seen.n_unique() > max(2, _MOST_VALUES * len(seen)):
        return None
    told = pl.DataFrame({"value": seen.cast(pl.String), "label": train["label"]})
    best = told.group_by("value", "label").len().sort(["len", "label"], descending=[True, False])
    best = best.unique("value", keep="first", maintain_order=True).select("value", guess="label")
    questions = pl.DataFrame({"value": asked.cast(pl.String), "label": held_out["label"]})
    answers = questions.join(best, on="value", how="left", nulls_equal=True, maintain_order="left")
    guess = answers["guess"].fill_null(_commonest(train["label"]))
    return _share(guess == answers["label"])


def _parts(values: pl.Series, edges: np.ndarray) -> pl.Series:
    """Which of the parts between the edges each number lies in; null where there is none."""
    numbers = values.cast(pl.Float64)
    return pl.Series(np.searchsorted(edges, numbers.fill_null(0.0).to_numpy(), side="right")).set(
        numbers.is_null(), None
    )


def _share(right: pl.Series) -> float:
    return float(right.to_numpy().mean()) if len(right) else 0.0


def _commonest(labels: pl.Series) -> int:
    return int(labels.mode().sort()[0])
