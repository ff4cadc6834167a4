"""Profile of a packed set: statistics that later data is compared with."""

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ratchet.data.checks.leakage import determining_columns, revealing_columns
from ratchet.data.checks.value_bins import value_edges
from ratchet.data.reading.pixels import QUANTILES
from ratchet.data.split import SPLITS
from ratchet.data.tables.targets import Labelling

__all__ = ["bins", "profile", "sorted_bins", "target_leaks", "telling_columns"]

_MAX_LISTED = 100
_BINS = 10
_NOTABLE = 0.5  # share of the variance of a number that a column alone explains
_WATCHED = ("brightness", "contrast", "width", "height", "format", "class")


def profile(
    index: pl.DataFrame, *, classes: Sequence[str], pixels: Mapping[str, object],
    conflicts: Sequence[Mapping[str, Sequence[str]]], quarantined: Mapping[str, int], terms: Mapping[str, object],
    extra: Sequence[str] = (), near_duplicates: pl.DataFrame | None = None, targets: Labelling | None = None,
) -> dict[str, object]:  # fmt: skip
    """Return the content of profile.json.

    Args:
        index: the packed rows: split, class, width, height, format, brightness, contrast, pixels.
        conflicts: groups of samples with the same pixels and different labels.
        terms: rules about a single sample.
        extra: columns of the index that come from the source.
        near_duplicates: result of NearDuplicates.pairs; None: not searched for.
        targets: of the same rows, if they are no classes.
    """
    counted = {(split, name): n for split, name, n in index.group_by("split", "class").len().rows()}
    per_split = {split: {name: counted.get((split, name), 0) for name in classes} for split in SPLITS}
    watched = [name for name in _WATCHED if targets is None or name != "class"]
    train = index.select("split", *watched).filter(pl.col("split") == "train")
    sizes = dict(index.group_by("split").len().rows())
    return {
        "rows": {split: sizes.get(split, 0) for split in SPLITS},
        "classes": per_split,
        **(targets.described(slice(0, train.height)) if targets else {}),
        "pixels": {"of": "train", **pixels},
        "brightness": _column_quantiles(train["brightness"]),
        "contrast": _column_quantiles(train["contrast"]),
        "sizes": {"width": _column_quantiles(index["width"]), "height": _column_quantiles(index["height"])},
        "formats": dict(index.group_by("format").len().sort("format").rows()),
        "copies_within_splits": index.height - index.select("split", "pixels").n_unique(),
        "label_conflicts": {"groups": len(conflicts), "first": list(conflicts[:_MAX_LISTED])},
        "near_duplicates": _near_duplicates(near_duplicates),
        "telling": telling_columns(index, targets, extra) if targets else revealing_columns(index, extra=extra),
        "quarantined_by_rule": dict(quarantined),
        "contract": {"request": dict(terms), "drift": {name: bins(train[name]) for name in watched}},
    }


def telling_columns(index: pl.DataFrame, targets: Labelling, columns: Sequence[str]) -> dict[str, object]:
    """Return the constant columns, and those that predict the target without the sample itself.

    Args:
        index: the packed rows.
        targets: of the same rows.
        columns: of the index.
    """
    constant = [name for name in columns if index[name].n_unique() == 1]
    rows = index.select("split", *columns)
    return {"constant": constant, "class": target_leaks(rows, targets, columns, notable=_NOTABLE, explained=_NOTABLE)}


def target_leaks(
    rows: pl.DataFrame, targets: Labelling, columns: Sequence[str], *, notable: float, explained: float
) -> list[dict[str, object]]:
    """Return the columns that predict a target alone, each once.

    Args:
        rows: split and the columns.
        targets: of the same rows.
        columns: names of the columns.
        notable: share of the errors about a class or label that a column must remove.
        explained: share of a number's variance that it must explain.
    """
    leaking: dict[str, dict[str, object]] = {}
    for values in targets.values.reshape(rows.height, -1).T:
        leaks: Sequence[dict[str, object]]
        if targets.problem == "regression":
            labelled = rows.with_columns(label=pl.Series(values).cast(pl.Float64))
            leaks = determining_columns(labelled, columns=columns, least=explained)
        else:
            labelled = rows.with_columns(label=pl.Series(values).cast(pl.Int64))
            leaks = revealing_columns(labelled, extra=columns, built_in=(), notable=notable)["class"]
        for leak in leaks:
            leaking.setdefault(str(leak["column"]), leak)
    return list(leaking.values())


def bins(values: pl.Series) -> dict[str, object]:
    """Cut a column into bins for comparison with later data, and count the training samples in each bin.

    Numbers are cut at their deciles, and a value of many rows has a bin of its own: bin k has the values from edge
    k - 1 to below edge k.
    """
    if values.dtype == pl.String:
        return {"values": dict(values.value_counts().sort(values.name).rows())}
    return sorted_bins(np.sort(values.to_numpy().astype(np.float64)))


def sorted_bins(numbers: NDArray[np.float64]) -> dict[str, object]:
    """Return the bins of sorted numbers."""
    edges = value_edges(numbers, limit=_BINS)
    ends = np.searchsorted(numbers, edges, side="left")
    return {"edges": edges.tolist(), "counts": np.diff(ends, prepend=0, append=len(numbers)).tolist()}


def _near_duplicates(pairs: pl.DataFrame | None) -> dict[str, object] | None:
    if pairs is None:
        return None
    across = pairs.filter(pl.col("one_split") != pl.col("other_split"))
    within = pairs.filter(pl.col("one_split") == pl.col("other_split"))
    listed = pl.concat([across, within]).head(_MAX_LISTED)
    ids, splits = pl.concat_list("one_id", "other_id"), pl.concat_list("one_split", "other_split")
    first = listed.select(ids=ids, splits=splits, change="change").to_dicts()
    changes = dict(pairs.group_by("change").len().sort("change").rows())
    return {"pairs": pairs.height, "across_splits": across.height, "changes": changes, "first": first}


def _column_quantiles(values: pl.Series) -> dict[str, float]:
    return {str(q): float(values.quantile(q, "nearest") or 0.0) for q in QUANTILES}
