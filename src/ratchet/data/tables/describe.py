"""Descriptions of a packed table: the columns of its manifest, and profile.json."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ratchet.data.checks.far_values import inner, is_compact, moments
from ratchet.data.profile import conflicts, paired_leaks, sorted_bins, target_leaks
from ratchet.data.tables.columns import CONSTANT, TypedColumn
from ratchet.kinds import MAX_CATEGORIES, Column

if TYPE_CHECKING:
    from ratchet.data.tables.table_writer import TableWriter

__all__ = ["MAX_CATEGORIES", "QUANTILES", "FeatureStatistics", "feature", "profile_of"]

QUANTILES = 129
_TOP = 20
_LEAK_ROWS = 20_000  # rows of each split that the search for leaks takes
_LEAK = 0.95  # share of the errors of the commonest class that a single column removes
_EXACT = 2.0**24  # up to here float32 holds every whole number
_EXPLAINED = 0.9  # share of a number's variance that a single column explains


@dataclass(frozen=True)
class FeatureStatistics:
    """A feature as its training rows describe it."""

    column: Column
    counts: Mapping[str, object]  # of the training rows, in bins, for comparison with later data
    top: Mapping[str, int] = field(default_factory=dict)  # the most frequent categories


def feature(column: TypedColumn, train: pl.Series) -> FeatureStatistics | None:
    """Describe a feature by the values of its training rows; None if all are missing."""
    known = train.drop_nulls()
    if not len(known):
        return None
    complete = len(known) == len(train)
    if column.type == "categorical":
        counts = known.alias("value").value_counts().sort(["count", "value"], descending=[True, False])
        top = dict(counts.head(_TOP).rows())
        others = {"other": len(known) - sum(top.values())} if counts.height > _TOP else {}
        names = tuple(counts["value"].head(MAX_CATEGORIES))
        return FeatureStatistics(
            Column(column.name, "categorical", categories=names, complete=complete), {"values": top | others}, top
        )
    values = known.to_numpy()
    offset = _offset(column.type, values)
    packed = (values - offset if offset else values).astype(np.float32)
    packed.sort()
    numbers = packed.astype(np.float64)
    scale = moments(numbers)
    places = np.linspace(0, len(numbers) - 1, QUANTILES)
    below = places.astype(np.int64)
    above = np.minimum(below + 1, len(numbers) - 1)
    quantiles = numbers[below] + (places - below) * (numbers[above] - numbers[below])
    kind: Literal["datetime", "numeric"] = "datetime" if column.type == "datetime" else "numeric"
    summary = Column(
        column.name, kind, scale.mean, scale.std, tuple(quantiles.tolist()), form=column.form, offset=offset,
        limits=scale.limits, complete=complete,
    )  # fmt: skip
    return FeatureStatistics(summary, sorted_bins(numbers + offset if offset else numbers))


def _offset(kind: str, values: NDArray[np.float64]) -> float:
    """Return the number that is subtracted before numbers are packed as float32.

    A date has no zero of its own. Other numbers keep theirs, unless they are too large for float32 and closer to each
    other than to zero: then no value loses digits by it. The middle value is not moved by a date such as 9999-12-31.
    """
    low, high = float(values.min()), float(values.max())
    if not is_compact(values):
        ordered = np.sort(values)
        low, high = ordered[inner(ordered)][[0, -1]].tolist()
    is_far = max(-low, high) > _EXACT and high - low <= max(low, -high)
    if kind != "datetime" and not is_far:
        return 0.0
    middle = len(values) // 2
    return float(np.partition(values, middle)[middle])


def _listed(column: TypedColumn, statistics: FeatureStatistics | None) -> dict[str, object]:
    """Return a column's entry in profile.json. Statistics are those of the training rows."""
    lost = column.is_feature and statistics is None
    entry: dict[str, object] = {
        "name": column.name,
        "type": "ignored" if lost else column.type,
        "why": "all training values are missing" if lost else column.why,
        "missing": column.values.null_count(),
        "distinct": column.distinct,
    }
    if statistics is None:
        return entry
    known = statistics.column
    if known.type == "categorical":
        return entry | {"categories": len(known.categories), "top": dict(statistics.top)}
    form = {"form": known.form} if known.form else {}
    quantiles = [value + known.offset for value in known.quantiles]
    numbers = {"mean": known.mean + known.offset, "std": known.std, "min": quantiles[0], "max": quantiles[-1]}
    return entry | form | numbers | {"quantiles": quantiles[:: (QUANTILES - 1) // 8]}


def profile_of(writer: "TableWriter", copied: pl.DataFrame) -> dict[str, object]:
    """Return what the profile has of tables alone. `copied`: rows with the same features, with a digest `pixels`."""
    within, across = _copies(writer)
    listed = [*writer.features, *writer.special.columns]
    request = {name: _request(feature.column) for name, feature in writer.statistics.items()}
    drift = {name: dict(feature.counts) for name, feature in writer.statistics.items()}
    return {
        "columns": [_listed(column, writer.statistics.get(column.name)) for column in listed],
        "copies_within_splits": within,
        "copies_across_splits": across,
        **conflicts(copied, writer.labels),
        "notes": [*writer.assigned.notes, *(note for column in writer.features for note in column.notes)],
        **({"left_out": writer.assigned.left_out} if writer.assigned.left_out else {}),
        "telling": _leaks(writer),
        "contract": {"request": request, "drift": drift},
    }


def _copies(writer: "TableWriter") -> tuple[int, int]:
    """Return how many rows are copies of another row of their split, and how many of one of another split."""
    copied = np.isin(writer.digest[:, 0], writer.repeats)
    rows = writer.index.select("split", digest=pl.Series(writer.digest[:, 0])).filter(copied)
    per_split, different = rows.n_unique() if rows.height else 0, rows["digest"].n_unique()
    return rows.height - per_split, per_split - different


def _request(column: Column) -> list[dict[str, object]]:
    """Return the rule for a value of a request, as plain data."""
    return [{"rule": "type", "check": column.type, **({"form": column.form} if column.form else {})}]


def _leaks(writer: "TableWriter") -> dict[str, object]:
    """Return the constant columns, and the columns that determine the target alone on rows outside train."""
    features = [column for column in writer.features if column.name in writer.statistics]
    constant = [column.name for column in writer.features if column.why == CONSTANT]
    ends = np.cumsum([writer.sizes["train"], writer.sizes["validation"]])
    train, validation, _ = np.split(np.arange(len(writer.order)), ends)
    places = np.concatenate([part[:: len(part) // _LEAK_ROWS + 1] for part in (train, validation)])
    rows = writer.order[places]
    names = [str(place) for place in range(len(features))]
    frame = pl.DataFrame([column.values[rows].alias(name) for name, column in zip(names, features, strict=True)])
    frame = frame.with_columns(writer.index["split"][places])
    targets = writer.labels.take(places)
    leaks = target_leaks(frame, targets, names, notable=_LEAK, explained=_EXPLAINED)
    alone = {leak["column"] for leak in leaks}
    pairs = paired_leaks(frame, targets, [name for name in names if name not in alone])
    named = [leak | {"column": features[int(str(leak["column"]))].name} for leak in leaks]
    named += [pair | {"columns": [features[int(place)].name for place in pair["columns"]]} for pair in pairs]
    return {"constant": constant, "class": named}
