"""Ingest of a user's own kind of data: read, check, split and pack the arrays of each sample.

Memory holds the arrays of all samples at once.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ratchet import files
from ratchet.data import labelled, overrides, pack, quarantine
from ratchet.data.checks import exact_duplicates
from ratchet.data.checks.far_values import moments
from ratchet.data.labelled import LabelledSamples
from ratchet.data.manifest import Manifest
from ratchet.data.packed_set import IngestTask, PackedSet
from ratchet.data.privacy import without_private
from ratchet.data.profile import contract
from ratchet.data.reading.storage import expanded, is_url
from ratchet.data.sources.table_file import check_single_values
from ratchet.data.tables.targets import read_labels
from ratchet.errors import DataError, TrainingError
from ratchet.kinds import Array, ArraysInput
from ratchet.training.custom_samples import LEAST_OPENING, line_of, summarize
from ratchet.training.own_kind import NotArrays, OwnKind, layout_of, shown_layout
from ratchet.training.sample_timeout import TooSlow, interruptible, never

__all__ = ["ingest_own_kind"]

CHOSEN_BY = {"kind": ("arrays",)}

Arrays = dict[str, NDArray[Any]]

_SAMPLE = 500  # samples of a trial run
_READ_TWICE = 8  # samples whose arrays are made twice, to see whether they are the same
_VALUE, _ID = "value", "id"
_CELLS = (bool, int, float, str, date, datetime)  # types of labels and other columns


def ingest_own_kind(task: IngestTask) -> Manifest:
    """Ingest a user's own kind of data; see `ratchet.data.ingest`."""
    settings = task.settings
    kind = OwnKind(settings.kind, task.root.absolute(), settings.code)
    reading = _Reading(kind, _opened(kind, task), task)
    source = reading.read()
    samples = labelled.assigned(source.table).with_columns(packed="content", normal="content")
    broken = labelled.broken(samples, source, settings)
    bad, used = overrides.apply(pl.concat([source.refused, broken]), task.released)
    bad = pl.concat([bad, exact_duplicates.duplicate_ids(samples.select("row", "id", split="assigned"))])
    good, least = quarantine.without(samples, bad), 1 if task.sample else None
    packed = labelled.packed_set(task, good, bad, source, used=used, own=("packed",), least=least)
    rows = packed.index["row"]
    described = _described(reading, rows[packed.train])
    input = ArraysInput(tuple(described), settings.kind, settings.code, kind.digest())
    profile = _profile(reading, packed, described)
    with files.draft_directory(task.packed) as draft:
        return packed.write(
            draft, describe=lambda: (input, labelled.common_profile(packed, source) | profile),
            arrays=lambda folder, part: {
                name: pack.write_shards_of(
                    folder, name, reading.stacked(name, rows[part]), shard_mib=settings.shard_mib
                )
                for name in input.names
            },
        )  # fmt: skip


def _opened(kind: OwnKind, task: IngestTask) -> Any:
    """Return the user's object, opened."""
    limit = max(task.sample_timeout, LEAST_OPENING) if task.sample_timeout else 0.0
    name = task.settings.path
    path = name if is_url(name) else task.root / expanded(name)
    if isinstance(path, Path) and not path.exists():
        raise DataError(f"data.path: {path} does not exist. Fix: set it to the file or folder that {kind.name} reads")

    def slow(where: str = "") -> str:
        return (
            f"data.kind: {kind.name} did not open {path} within {limit:g} s{where}. Fix: see what the module or the "
            "class waits for, or raise training.sample_timeout (0: no limit)"
        )

    try:
        with interruptible(slow, timeout=limit, stop=never) as begin:
            begin()
            open_it = kind.loaded
            opened = open_it(path)
            count = len(opened)
    except TooSlow as error:
        raise DataError(slow(line_of(error, kind.root))) from error
    except TrainingError:
        raise  # the class cannot be imported, or lacks a method
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        raise DataError(
            f"data.kind: {kind.name} cannot open {path}: {summarize(error, kind.root)}. Fix: correct the class or "
            "data.path"
        ) from error
    if not count:
        raise DataError(f"data.kind: {kind.name} finds no samples in {path}. Fix: correct the class or data.path")
    return opened


@dataclass
class _Reading:
    """The samples, read one after the other.

    Attributes:
        arrays: of the good samples, by row.
    """

    kind: OwnKind
    opened: Any
    task: IngestTask
    arrays: dict[int, Arrays] = field(default_factory=dict)

    def read(self) -> LabelledSamples:
        """Read all samples, or some of them."""
        count = len(self.opened)
        places = range(0, count, -(-count // _SAMPLE)) if self.task.sample else range(count)
        rows, failures = self._rows(places)
        failures += self._other_layouts(rows)
        refused = quarantine.rows(failures)
        rows = [row for row in rows if row["row"] in self.arrays]
        if not rows:
            self.task.check_quarantine(refused, total=len(places))
        return self._labelled(rows, refused)

    def _labelled(self, rows: Sequence[Mapping[str, Any]], refused: pl.DataFrame) -> LabelledSamples:
        """Return good samples with their labels and other entries."""
        settings, where = self.task.settings, f"data.kind: {self.kind.name}"
        frame = _frame([row["cells"] for row in rows])
        for column in settings.label_columns:
            if column not in frame.columns:
                raise DataError(
                    f"{where}: no sample has {column!r}; they have {', '.join(frame.columns) or 'only arrays'}. "
                    "Fix: correct data.label_column, or return it from __getitem__"
                )
        frame = without_private(frame, settings, needed=settings.label_columns)
        columns = labelled.optional_columns(frame, settings, where)
        extra = [name for name in frame.columns if name not in (*columns.values(), *settings.label_columns)]
        check_single_values(frame, where)
        names = labelled.index_names(extra, frame.columns)
        labels = read_labels(frame, settings, where)
        samples = pl.DataFrame(
            [(row["row"], row["id"], None, None, _digest(self.arrays[row["row"]]), None, None) for row in rows],
            schema=labelled.SAMPLE,
            orient="row",
        ).with_columns(
            *(labelled.without_missing(frame[name].cast(pl.String)).alias(role) for role, name in columns.items()),
            *(frame[name].alias(new) for name, new in names.items()),
        )
        name = self.kind.name.rpartition(":")[2].lower()
        return LabelledSamples(name, settings.path, samples, labels, refused, tuple(names.values()))

    def _rows(self, places: Sequence[int]) -> tuple[list[dict[str, Any]], list[tuple[str, int, str, str]]]:
        """Return the good samples (row, id, cells), and source, row, rule and value of the others."""
        rows: list[dict[str, Any]] = []
        failures: list[tuple[str, int, str, str]] = []
        place, timeout = 0, self.task.sample_timeout

        def slow(where: str = "") -> str:
            return (
                f"data.kind: sample {place} of {self.kind.name} was not read within {timeout:g} s{where}. Fix: "
                "see what the class waits for, or raise training.sample_timeout (0: no limit)"
            )

        try:
            with interruptible(slow, timeout=timeout, stop=never) as begin:
                for done, place in enumerate(places, 1):
                    begin()
                    name = f"{place:08d}"
                    try:
                        value, cells = self._sample(place)
                        given = cells.pop(_ID, None)
                        name = name if given is None else str(given)
                        self.arrays[place] = self.kind.arrays(value)
                        if len(rows) < _READ_TWICE:
                            self._check_same(value, name, self.arrays[place])
                        rows.append({"row": place, "id": name, "cells": cells})
                    except NotArrays as error:
                        failures.append((name, place, error.rule, str(error)))
                    self.task.report(done, len(places))
        except TooSlow as error:
            raise DataError(slow(line_of(error, self.kind.root))) from error
        return rows, failures

    def _sample(self, place: int) -> tuple[Any, dict[str, Any]]:
        """Return the raw value of a sample and its other entries."""
        try:
            sample = self.opened[place]
        except (Exception, SystemExit) as error:  # the user's code may raise anything
            raise NotArrays("raised", summarize(error, self.kind.root)) from error
        if not isinstance(sample, Mapping) or _VALUE not in sample:
            has = f"with {', '.join(map(str, sample)) or 'no entry'}" if isinstance(sample, Mapping) else ""
            problem = f"__getitem__ returns a {type(sample).__name__} {has}".rstrip()
            raise NotArrays("not-arrays", f"{problem}, not a dictionary with {_VALUE}")
        cells = {str(name): _plain(cell) for name, cell in sample.items() if name != _VALUE}
        for name, cell in cells.items():
            if cell is not None and not isinstance(cell, _CELLS):
                problem = f"{name} is a {type(cell).__name__}, not a text, a number, a date or None"
                raise NotArrays("not-arrays", problem)
        return sample[_VALUE], cells

    def _check_same(self, value: Any, name: str, arrays: Arrays) -> None:
        """Check that the same value becomes the same arrays again.

        Raises:
            DataError: it does not, so the served model would see other arrays than training did.
        """
        try:
            same = _digest(self.kind.arrays(value)) == _digest(arrays)
        except NotArrays:  # the first call has changed the value
            same = False
        if not same:
            raise DataError(
                f"data.kind: {self.kind.name}.arrays returns other arrays when it gets the value of sample {name} "
                "again. Fix: let it depend on the value alone, leave the value as it is, and put random changes into "
                "augment"
            )

    def _other_layouts(self, rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, int, str, str]]:
        """Take out the samples whose arrays differ from those of most, and return their faults."""
        counts: dict[tuple[Any, ...], int] = {}
        for arrays in self.arrays.values():
            counts[layout_of(arrays)] = counts.get(layout_of(arrays), 0) + 1
        if not counts:
            return []
        common = min(counts, key=lambda layout: (-counts[layout], str(layout)))
        failures = []
        for row in rows:
            layout = layout_of(self.arrays[row["row"]])
            if layout != common:
                value = f"{shown_layout(layout)}, where most have {shown_layout(common)}"
                failures.append((row["id"], row["row"], "other-shape", value))
                del self.arrays[row["row"]]
        return failures

    def stacked(self, name: str, rows: pl.Series) -> NDArray[Any]:
        """Return an array of these samples, (n, *shape)."""
        first = next(iter(self.arrays.values()))[name]
        values = np.empty((len(rows), *first.shape), first.dtype)
        for place, row in enumerate(rows):
            values[place] = self.arrays[row][name]
        return values


def _plain(cell: Any) -> Any:
    """Return a NumPy scalar as the Python value."""
    return cell.item() if isinstance(cell, np.generic) else cell


def _frame(rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Return the entries of the samples as columns: booleans, whole numbers, numbers or texts."""
    names = dict.fromkeys(name for row in rows for name in row)
    return pl.DataFrame([_column(name, [row.get(name) for row in rows]) for name in names])


def _column(name: str, cells: list[Any]) -> pl.Series:
    kinds = {type(cell) for cell in cells if cell is not None}
    for allowed, dtype in (({bool}, pl.Boolean), ({int}, pl.Int64), ({int, float}, pl.Float64)):
        if kinds <= allowed and all(abs(cell) < 2**63 for cell in cells if type(cell) is int):
            column = pl.Series(name, cells, dtype=dtype, strict=False)
            return column.fill_nan(None) if dtype == pl.Float64 else column
    return pl.Series(name, [None if cell is None else str(cell) for cell in cells], dtype=pl.String)


def _digest(arrays: Arrays) -> str:
    """Return the SHA-256 (hex) of arrays with their names, types and shapes."""
    digest = hashlib.sha256(repr(layout_of(arrays)).encode())
    for array in arrays.values():
        digest.update(array.tobytes())
    return digest.hexdigest()


def _described(reading: _Reading, rows: pl.Series) -> list[Array]:
    """Return the description of each array, with mean and standard deviation of the values of these rows."""
    described = []
    for name, dtype, shape in layout_of(reading.arrays[rows[0]]):
        values = reading.stacked(name, rows)
        scale = moments(values)
        usual = scale.range or (float(values.min()), float(values.max()))
        described.append(Array(name, dtype, shape, scale.mean, scale.std, scale.limits, usual))
    return described


def _profile(reading: _Reading, packed: PackedSet, described: Sequence[Array]) -> dict[str, object]:
    """Return what the profile has of arrays alone: statistics of the training values, bins of the samples' means."""
    train = packed.index[packed.train]
    facts, watched, notes = [], [], []
    for array in described:
        values = reading.stacked(array.name, train["row"]).astype(np.float64).reshape(train.height, -1)
        low, middle, high = (float(value) for value in np.quantile(values, [0.0, 0.5, 1.0]))
        statistics = {"mean": array.mean, "std": array.std, "min": low, "median": middle, "max": high}
        facts.append({"name": array.name, "type": array.dtype, "shape": list(array.shape), **statistics})
        watched.append(pl.Series(array.name, values.mean(axis=1)))
        if array.limits:
            is_far = (values < array.limits[0]) | (values > array.limits[1])
            notes.append(
                f"{array.name}: {int(is_far.sum()):,} of {values.size:,} training values are far from the others, such "
                f"as {values[is_far][0]:g}. Networks get {array.limits[0]:g} or {array.limits[1]:g} for them. If they "
                f"mean missing, replace them in {reading.kind.name.rpartition(':')[2]}.arrays"
            )
    watched += [train["class"]] if packed.labels.classes else []
    request = {array.name: [{"rule": "other-shape", "check": array.description}] for array in described}
    return {"arrays": facts, "notes": notes, **contract(request, watched)}
