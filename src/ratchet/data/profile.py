"""Parts of the profile of a packed set: statistics that later data is compared with."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ratchet.data.checks import exact_duplicates
from ratchet.data.checks.leakage import determining_columns, revealing_columns, value_edges
from ratchet.data.checks.paired_columns import PairSearch
from ratchet.data.reading.pixels import QUANTILES
from ratchet.data.tables.targets import TargetTable

__all__ = [
    "bins",
    "conflicts",
    "contract",
    "copies",
    "image_profile",
    "leaking_columns",
    "paired_leaks",
    "quantiles",
    "sorted_bins",
    "target_leaks",
]

_MAX_LISTED = 100
_BINS = 10
_NOTABLE = 0.5  # share of the variance of a number that a column alone explains
_WATCHED = ("brightness", "contrast", "width", "height", "format")


def image_profile(
    index: pl.DataFrame, labels: TargetTable, *, pixels: Mapping[str, object], request: Mapping[str, object],
    extra: Sequence[str] = (), near_duplicates: pl.DataFrame | None = None,
) -> dict[str, object]:  # fmt: skip
    """Return the part of a profile about images.

    Args:
        index: the packed rows: split, class, width, height, format, brightness, contrast, pixels.
        labels: of the same rows.
        pixels: statistics of the training images.
        request: rules about a single image.
        extra: columns of the index that come from the source.
        near_duplicates: result of near_duplicate_pairs; None: not searched for.
    """
    train = index.filter(pl.col("split") == "train").select(*_WATCHED, *(["class"] if labels.classes else []))
    return {
        "pixels": {"of": "train", **pixels},
        **{name: quantiles(train[name]) for name in ("brightness", "contrast")},
        "sizes": {name: quantiles(index[name]) for name in ("width", "height")},
        "formats": dict(index.group_by("format").len().sort("format").rows()),
        **copies(index, labels),
        "near_duplicates": _near_duplicates(near_duplicates),
        "telling": revealing_columns(index, extra=extra) if labels.classes else leaking_columns(index, labels, extra),
        **contract(request, train),
    }


def copies(index: pl.DataFrame, labels: TargetTable, *, digest: str = "pixels") -> dict[str, object]:
    """Return the part of a profile about rows with the same `digest`: how many, and those with different labels."""
    again = exact_duplicates.copies(index.select("split", pixels=digest))
    return {
        "copies_within_splits": again.height - again.n_unique(),
        **conflicts(index.with_columns(pixels=digest), labels),
    }


def conflicts(index: pl.DataFrame, labels: TargetTable) -> dict[str, object]:
    """Return the part of a profile about rows with the same digest `pixels` and different classes."""
    groups = exact_duplicates.label_conflicts(index) if labels.classes else []
    return {"label_conflicts": {"groups": len(groups), "first": groups[:_MAX_LISTED]}}


def contract(request: Mapping[str, object], watched: Iterable[pl.Series]) -> dict[str, object]:
    """Return the part of a profile with the rules of a request, and the bins of the training rows' values."""
    return {"contract": {"request": dict(request), "drift": {values.name: bins(values) for values in watched}}}


def quantiles(values: pl.Series) -> dict[str, float]:
    """Return quantiles of a column, by their share."""
    return {str(q): float(values.quantile(q, "nearest") or 0.0) for q in QUANTILES}


def leaking_columns(index: pl.DataFrame, targets: TargetTable, columns: Sequence[str]) -> dict[str, object]:
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
    rows: pl.DataFrame, targets: TargetTable, columns: Sequence[str], *, notable: float, explained: float
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
    for target in _targets(targets):
        leaks: Sequence[dict[str, object]]
        labelled = rows.with_columns(label=target)
        if target.dtype == pl.Float64:
            leaks = determining_columns(labelled, columns=columns, least=explained)
        else:
            leaks = revealing_columns(labelled, extra=columns, built_in=(), notable=notable)["class"]
        for leak in leaks:
            leaking.setdefault(str(leak["column"]), leak)
    return list(leaking.values())


def paired_leaks(rows: pl.DataFrame, targets: TargetTable, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Return the pairs of columns that predict a target together, each once; see `target_leaks`."""
    search, leaking = PairSearch(rows, columns), dict[tuple[str, ...], dict[str, Any]]()
    for target in _targets(targets):
        for pair in search.leaks(target, has_classes=target.dtype == pl.Int64):
            leaking.setdefault(tuple(pair["columns"]), pair)
    return list(leaking.values())


def _targets(targets: TargetTable) -> Iterator[pl.Series]:
    """Yield each target: classes as Int64, numbers as Float64."""
    for values in targets.values.reshape(len(targets.values), -1).T:
        yield pl.Series(values).cast(pl.Int64 if targets.problem.has_accuracy else pl.Float64)


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
    first = listed.select(ids=ids, splits=splits).to_dicts()
    return {"pairs": pairs.height, "across_splits": across.height, "first": first}
