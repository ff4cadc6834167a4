"""Ingest of a user's own kind of data: read, check and split the samples, and pack their arrays.

Memory holds the arrays of all samples at once, or if they are not packed (`packed = False`), of some.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ratchet import files
from ratchet.data import overrides, pack, quarantine, sample_table
from ratchet.data.checks import exact_duplicates
from ratchet.data.checks.far_values import moments
from ratchet.data.manifest import Manifest, UnpackedRows
from ratchet.data.packed_set import Arrays as PackedArrays
from ratchet.data.packed_set import IngestTask, PackedSet
from ratchet.data.privacy import without_private
from ratchet.data.profile import contract
from ratchet.data.reading import pool
from ratchet.data.sample_table import LabelledSamples
from ratchet.data.sources.table_file import check_single_values
from ratchet.data.tables.reading import with_notes
from ratchet.data.tables.targets import read_labels
from ratchet.errors import DataError
from ratchet.kinds import Array, ArraysInput
from ratchet.training.custom_class import Arrays, BadSample, CustomClass, Layout, digest_of, layout_of, shown_layout
from ratchet.training.custom_samples import CustomSamples, Faulty, Piece, Sample
from ratchet.training.sample_reader import SampleReader

__all__ = ["ingest_custom"]

CHOSEN_BY = {"kind": ("arrays",)}

_SAMPLE = 500  # samples of a trial run
_READ_TWICE = 8  # samples whose arrays are made twice, to see whether they are the same
_CHUNK = 32  # samples that are read together
_MEASURED, _MEASURED_BYTES = 4096, 256 << 20  # training samples for the statistics, if they are not packed


def ingest_custom(task: IngestTask) -> Manifest:
    """Ingest a user's own kind of data; see `ratchet.data.ingest`."""
    settings = task.settings
    custom = CustomClass(settings.kind, task.root.absolute(), settings.code)
    reading = _Reading(custom, CustomSamples(custom, settings.path, timeout=task.sample_timeout), task)
    source = reading.read()
    samples = sample_table.assigned(source.table).with_columns(packed="content", normal="content")
    broken = sample_table.broken(samples, source, settings)
    bad, used = overrides.apply(pl.concat([source.refused, broken]), task.released)
    bad = pl.concat([bad, exact_duplicates.duplicate_ids(samples.select("row", "id", split="assigned"))])
    good, least = quarantine.without(samples, bad), 1 if task.sample else None
    packed = sample_table.packed_set(task, good, bad, source, used=used, own=("packed",), least=least)
    rows = packed.index["row"]
    measured = reading.measured(packed.index[packed.train])
    arrays = _describe(reading, measured["row"])
    input = ArraysInput(tuple(arrays), settings.kind, settings.code, custom.digest())
    profile = _profile(reading, measured, packed, arrays)
    with files.draft_directory(task.packed) as draft:
        return packed.write(
            draft,
            describe=lambda: (input, sample_table.common_profile(packed, source) | profile),
            arrays=lambda folder, part: reading.write(folder, rows[part], packed.index["content"][part], input.names),
        )


@dataclass(frozen=True)
class _Facts:
    """A good sample: its id, its other entries, layout and SHA-256 (hex) of its arrays, and the arrays if packed."""

    id: str
    cells: dict[str, Any]
    layout: Layout
    content: str
    arrays: Arrays


@dataclass
class _Reading:
    """The samples, as they are read.

    Attributes:
        facts: of the good samples, by place.
    """

    custom: CustomClass
    samples: CustomSamples
    task: IngestTask
    facts: dict[int, _Facts] = field(default_factory=dict)

    def read(self) -> LabelledSamples:
        """Read all samples, or some of them."""
        count = len(self.samples.open())
        places = range(0, count, -(-count // _SAMPLE)) if self.task.sample else range(count)
        self._check_same(places[:_READ_TWICE])
        failures = []
        combine = _with_arrays if self.custom.is_packed else _without_arrays
        for done, (place, facts) in enumerate(self._each(places, combine), 1):
            if done % _CHUNK == 0 or done == len(places):
                self.task.report(done, len(places))
            if isinstance(facts, Faulty):
                failures.append((facts.id, place, facts.rule, facts.problem))
            else:
                self.facts[place] = facts
        refused = quarantine.rows([*failures, *self._other_layouts()])
        if not self.facts:
            self.task.check_quarantine(refused, total=len(places))
        return self._labelled(refused)

    def _each(
        self, places: Sequence[int], combine: "Callable[[list[Sample | Faulty]], list[_Facts | Faulty]]"
    ) -> "Iterator[tuple[int, _Facts | Faulty]]":
        """Yield what `combine` makes of each sample. Samples that are not packed are read by data.workers processes."""
        workers = 1 if self.custom.is_packed else pool.threads(self.task.settings.workers)
        reader = SampleReader(self.samples, combine, workers=workers if workers > 1 else 0)
        chunks = [places[start : start + _CHUNK] for start in range(0, len(places), _CHUNK)]
        try:
            for chunk, results in zip(chunks, reader.read(Piece(np.array(each)) for each in chunks), strict=True):
                yield from zip(chunk, results, strict=True)
        finally:
            reader.close()

    def _check_same(self, places: Sequence[int]) -> None:
        """Check that the same value becomes the same arrays again.

        Raises:
            DataError: it does not, so the served model would see other arrays than training did.
        """
        for place in places:
            [sample] = self.samples.__getitems__(Piece(np.array([place])))
            if isinstance(sample, Faulty):
                continue
            try:
                same = digest_of(self.custom.arrays(sample.value)) == digest_of(sample.arrays)
            except BadSample:  # the first call has changed the value
                same = False
            if not same:
                raise DataError(
                    f"data.kind: {self.custom.name}.arrays returns other arrays when it gets the value of sample "
                    f"{sample.id} again. Fix: let it depend on the value alone, leave the value as it is, and put "
                    "random changes into augment"
                )

    def _other_layouts(self) -> list[tuple[str, int, str, str]]:
        """Take out the samples whose arrays differ from those of most, and return their faults."""
        counts: dict[Layout, int] = {}
        for facts in self.facts.values():
            counts[facts.layout] = counts.get(facts.layout, 0) + 1
        common = min(counts, key=lambda layout: (-counts[layout], str(layout)), default=())
        failures = []
        for place, facts in list(self.facts.items()):
            if facts.layout != common:
                value = f"{shown_layout(facts.layout)}, where most have {shown_layout(common)}"
                failures.append((facts.id, place, "other-shape", value))
                del self.facts[place]
        return failures

    def _labelled(self, refused: pl.DataFrame) -> LabelledSamples:
        """Return good samples with their labels and other entries."""
        settings, where = self.task.settings, f"data.kind: {self.custom.name}"
        frame = _frame([facts.cells for facts in self.facts.values()])
        for column in settings.label_columns:
            if column not in frame.columns:
                raise DataError(
                    f"{where}: no sample has {column!r}; they have {', '.join(frame.columns) or 'only arrays'}. "
                    "Fix: correct data.label_column, or return it from __getitem__"
                )
        frame = without_private(frame, settings, needed=settings.label_columns)
        columns = sample_table.optional_columns(frame, settings, where)
        extra = [name for name in frame.columns if name not in (*columns.values(), *settings.label_columns)]
        check_single_values(frame, where)
        names = sample_table.index_names(extra, frame.columns)
        labels = with_notes(read_labels(frame, settings, where), frame.select(extra), columns)
        samples = pl.DataFrame(
            [(place, facts.id, None, None, facts.content, None, None) for place, facts in self.facts.items()],
            schema=sample_table.SAMPLE,
            orient="row",
        ).with_columns(
            *(sample_table.without_missing(frame[name].cast(pl.String)).alias(role) for role, name in columns.items()),
            *(frame[name].alias(new) for name, new in names.items()),
        )
        name = self.custom.name.rpartition(":")[2].lower()
        return LabelledSamples(name, settings.path, samples, labels, refused, tuple(names.values()))

    def measured(self, train: pl.DataFrame) -> pl.DataFrame:
        """Return the training rows whose arrays are in memory: all, or if they are not packed, some, read again."""
        if self.custom.is_packed:
            return train
        size = sum(np.dtype(dtype).itemsize * int(np.prod(shape)) for _, dtype, shape in self._layout) or 1
        count = min(train.height, _MEASURED, max(1, _MEASURED_BYTES // size))
        train = train[np.linspace(0, train.height - 1, count).astype(np.int64)]
        for place, facts in self._each(train["row"].to_list(), _with_arrays):
            if isinstance(facts, Faulty) or facts.content != self.facts[place].content:
                raise DataError(
                    f"data.kind: sample {self.facts[place].id} of {self.custom.name} differs when it is read again. "
                    "Fix: work on a copy of its data, and draw random numbers with random, numpy.random or torch, not "
                    "with a generator of your own: they are seeded for each sample and epoch"
                )
            self.facts[place] = facts
        return train

    @property
    def _layout(self) -> Layout:
        return next(iter(self.facts.values())).layout

    def stacked(self, name: str, rows: pl.Series) -> NDArray[Any]:
        """Return an array of these samples, (n, *shape)."""
        [(dtype, shape)] = [(dtype, shape) for each, dtype, shape in self._layout if each == name]
        values = np.empty((len(rows), *shape), dtype)
        for place, row in enumerate(rows):
            values[place] = self.facts[row].arrays[name]
        return values

    def write(self, folder: Path, rows: pl.Series, contents: pl.Series, names: Sequence[str]) -> PackedArrays:
        """Write the arrays of some rows into a folder; if they are not packed, their places."""
        settings, task = self.task.settings, self.task
        if self.custom.is_packed:
            return {name: pack.write_shards_of(folder, name, self.stacked(name, rows)) for name in names}
        digests = np.frombuffer(bytes.fromhex("".join(contents)), np.uint8).reshape(-1, 32)
        return UnpackedRows(
            os.path.relpath(task.root.resolve(), task.packed.resolve()),
            settings.path,
            len(self.samples.open()),
            pack.write_array(folder, "places", rows.to_numpy().astype(np.int64)),
            pack.write_array(folder, "contents", digests),
        )


def _with_arrays(samples: list[Sample | Faulty]) -> list[_Facts | Faulty]:
    return [
        sample
        if isinstance(sample, Faulty)
        else _Facts(sample.id, sample.cells, layout_of(sample.arrays), digest_of(sample.arrays), sample.arrays)
        for sample in samples
    ]


def _without_arrays(samples: list[Sample | Faulty]) -> list[_Facts | Faulty]:
    return [facts if isinstance(facts, Faulty) else replace(facts, arrays={}) for facts in _with_arrays(samples)]


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


def _describe(reading: _Reading, rows: pl.Series) -> list[Array]:
    """Return the description of each array, with mean and standard deviation of the values of these rows."""
    arrays = []
    for name, dtype, shape in reading.facts[rows[0]].layout:
        values = reading.stacked(name, rows)
        scale = moments(values)
        usual = scale.range or (float(values.min()), float(values.max()))
        arrays.append(Array(name, dtype, shape, scale.mean, scale.std, scale.limits, usual))
    return arrays


def _profile(
    reading: _Reading, measured: pl.DataFrame, packed: PackedSet, arrays: Sequence[Array]
) -> dict[str, object]:
    """Return what the profile has of arrays alone: statistics of the training values, bins of the samples' means."""
    facts, watched, notes = [], [], []
    for array in arrays:
        values = reading.stacked(array.name, measured["row"]).astype(np.float64).reshape(measured.height, -1)
        low, middle, high = (float(value) for value in np.quantile(values, [0.0, 0.5, 1.0]))
        statistics = {"mean": array.mean, "std": array.std, "min": low, "median": middle, "max": high}
        facts.append({"name": array.name, "type": array.dtype, "shape": list(array.shape), **statistics})
        watched.append(pl.Series(array.name, values.mean(axis=1)))
        if array.limits:
            is_far = (values < array.limits[0]) | (values > array.limits[1])
            notes.append(
                f"{array.name}: {int(is_far.sum()):,} of {values.size:,} training values are far from the others, such "
                f"as {values[is_far][0]:g}. Networks get {array.limits[0]:g} or {array.limits[1]:g} for them. If they "
                f"mean missing, replace them in {reading.custom.name.rpartition(':')[2]}.arrays"
            )
    watched += [measured["class"]] if packed.labels.classes else []
    request = {array.name: [{"rule": "other-shape", "check": array.description}] for array in arrays}
    return {"arrays": facts, "notes": notes, **contract(request, watched)}
