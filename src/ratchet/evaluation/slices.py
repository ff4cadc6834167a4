"""Slices of the test rows: rows that share a value in a column, and the metrics on them.

Slices may be small and there may be many. So their intervals are Wilson's, which hold for few rows, and a slice counts
as worse than the rest only where that is significant after a correction for the number of slices.
"""

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ratchet.errors import SettingsError
from ratchet.evaluation.intervals import Interval
from ratchet.settings.model import EvaluationSettings

if TYPE_CHECKING:
    from ratchet.evaluation.answers import Answers

__all__ = ["Slice", "rows_by_slice", "slice_columns", "slices", "thirds"]

Values = Sequence[str | None]

_BUILT_IN = ("brightness", "contrast", "side", "format")
_THIRDS = ("low", "middle", "high")
_MOST_VALUES = 50  # different values of a column; with more they are names of rows, not kinds


@dataclass(frozen=True)
class Slice:
    """The test rows that have one value in one column."""

    column: str
    value: str
    rows: int
    mean: Interval  # of `Answers.values`, such as the accuracy
    gap: Interval  # mean here minus mean elsewhere; the interval is corrected for the number of slices
    is_worse: bool  # significantly worse than the other rows
    # Further metrics on these rows, by name
    others: Annotated[Mapping[str, float], Field(exclude_if=operator.not_)] = field(default_factory=dict)


def slices(answers: "Answers", columns: Mapping[str, Values], settings: EvaluationSettings) -> tuple[Slice, ...]:
    """Return the metrics for each value of each column, column by column and in the order of values.

    `columns` have the value of each row by name; None: the row is in no slice of that column. Slices with fewer rows
    than evaluation.slice_rows are left out, and so are columns with a single value.
    """
    chosen = rows_by_slice(columns, least=settings.slice_rows)
    corrected = 1 - (1 - settings.confidence) / max(1, len(chosen))  # Bonferroni
    values, measured = answers.values, []
    for name, value, rows in chosen:
        here = values[rows]
        gap = answers.gap(here, np.delete(values, rows), corrected)
        worse = gap.high < 0.0 if answers.unit.larger_is_better else gap.low > 0.0
        mean, others = answers.mean(here, settings.confidence), answers.at(rows).slice_metrics(settings)
        measured.append(Slice(name, value, len(rows), mean, gap, worse, others))
    return tuple(measured)


def rows_by_slice(columns: Mapping[str, Values], *, least: int) -> list[tuple[str, str, NDArray[np.int64]]]:
    """Return column, value and row numbers of each slice that has at least `least` rows, but not all."""
    chosen = []
    for name, values in columns.items():
        known = sorted({value for value in values if value is not None})
        if 2 <= len(known) <= _MOST_VALUES:
            places = {None: -1} | {value: place for place, value in enumerate(known)}
            codes = np.array([places[value] for value in values])
            chosen += [(name, value, np.flatnonzero(codes == places[value])) for value in known]
    return [(name, value, rows) for name, value, rows in chosen if least <= len(rows) < len(columns[name])]


def missing_column(packed: Path, names: Sequence[str]) -> Iterator[str]:
    """Yield a message for a name of evaluation.slices that the packed data have no column for."""
    allowed = _allowed(packed)
    for name in [name for name in names if name not in allowed][:1]:
        yield (
            f"evaluation.slices: found {name}; allowed: auto, or columns of the data: {', '.join(allowed)}. Fix: "
            "`ratchet set evaluation.slices=auto`"
        )


def _allowed(packed: Path) -> list[str]:
    """Return the columns that slices can have, from the columns of the index and of a table itself."""
    import polars

    from ratchet.data.manifest import Manifest
    from ratchet.data.pack import extra_columns

    index = polars.read_parquet(packed / "index.parquet", n_rows=0)
    own = [name for name in extra_columns(index) if name != "packed"]
    numeric = getattr(Manifest.read(packed).input, "numeric", ())
    own += [column.name for column in numeric if column.name not in own]
    built_in = [name for name in index.columns if name in _BUILT_IN] + ["side"] * ("width" in index.columns)
    return [*(name for name in _BUILT_IN if name in built_in and name not in own), *own]


def slice_columns(packed: Path, settings: EvaluationSettings) -> dict[str, list[str | None]]:
    """Return the columns that evaluation.slices selects, with a value for each test row; numbers become thirds.

    Raises:
        SettingsError: evaluation.slices names a column that the index does not have.
    """
    import polars

    for fault in () if settings.slices == "auto" else missing_column(packed, settings.slices):
        raise SettingsError(f"params.yaml: {fault}")
    index, numbers = polars.read_parquet(packed / "index.parquet"), _table_numbers(packed)
    if "width" in index.columns:
        index = index.with_columns(side=polars.min_horizontal("width", "height").cast(polars.Float64))
    wanted = _allowed(packed) if settings.slices == "auto" else settings.slices
    test, train = (index.filter(polars.col("split") == name).sort("row") for name in ("test", "train"))
    for split, rows in (("test", test), ("train", train)):  # of a table itself they are there already
        own_numbers = [name for name in wanted if name not in numbers[split] and rows[name].dtype.is_numeric()]
        numbers[split] |= {name: rows[name].cast(polars.Float64).to_numpy() for name in own_numbers}
    columns = {
        name: thirds(numbers["test"][name], reference=numbers["train"][name])
        if name in numbers["test"]
        else test[name].cast(polars.String).to_list()
        for name in wanted
    }
    return {name: values for name, values in columns.items() if values is not None}


def _table_numbers(packed: Path) -> dict[str, dict[str, NDArray[np.float64]]]:
    """Return the numeric columns of a table by split and name; none of other kinds."""
    from ratchet.data.manifest import Manifest

    manifest = Manifest.read(packed)
    columns: dict[str, dict[str, NDArray[np.float64]]] = {"train": {}, "test": {}}
    numeric = getattr(manifest.input, "numeric", ())
    if not numeric:
        return columns
    for split, values in columns.items():
        shards = manifest.splits[split].arrays["numbers"]
        stored = np.concatenate([np.load(packed / shard.file, allow_pickle=False) for shard in shards])
        values.update({column.name: stored[:, at].astype(np.float64) for at, column in enumerate(numeric)})
    return columns


def thirds(numbers: NDArray[np.float64], *, reference: NDArray[np.float64]) -> list[str | None] | None:
    """Return "low", "middle" or "high" for each number: the third of the training rows' numbers that it falls into.

    Returns:
        None if all numbers fall into the same third, or there is no reference.
    """
    reference = reference[np.isfinite(reference)]
    if not len(reference):
        return None
    edges = np.quantile(reference, [1 / 3, 2 / 3], method="nearest")
    places = np.searchsorted(edges, numbers, side="right")
    if len(np.unique(places[np.isfinite(numbers)])) < 2:
        return None
    return [_THIRDS[place] if np.isfinite(number) else None for place, number in zip(places, numbers, strict=True)]
