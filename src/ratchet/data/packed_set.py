"""Writing of a packed set, the same for every kind of data: splits, quarantine table, arrays, index, profile, manifest.

A kind reads its source into a frame of samples, with quarantine rows of the others. It supplies the arrays of a split,
and afterwards the description of its input and its part of the profile.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ratchet import files
from ratchet.data import overrides, pack, quarantine, set_rules, split
from ratchet.data.checks import exact_duplicates
from ratchet.data.manifest import FORMAT, Manifest, Shard, SplitFiles, UnpackedRows
from ratchet.data.system_files import Ignored
from ratchet.data.tables.targets import TargetTable
from ratchet.kinds import Input
from ratchet.settings.model import DataSettings

__all__ = ["LABEL_PLACE", "Arrays", "IngestTask", "PackedSet", "Report", "divide", "without_copies"]

LABEL_PLACE = "place of the label (ratchet)"
"""Column of samples on the way to the index: their places in a `TargetTable`. No source may have one of this name."""

Report = Callable[[int, int], None]
Arrays = Mapping[str, tuple[Shard, ...]] | UnpackedRows


@dataclass(frozen=True)
class IngestTask:
    """One ingest: its source, its outputs, and the options of the caller.

    Attributes:
        settings: the `data` section; its path is relative to `root`.
        packed: folder of the packed set; it stays as it is after an error.
        quarantine: path of the quarantine table (Parquet). It is written even if it is empty or too much is bad.
        root: the project folder.
        report: called with (done, total) samples.
        cache: path of the cache for the next ingest; None: no cache.
        releases: path of the table of samples released by hand; None: no releases.
        sample: take only a few samples of each class, from all over the source.
        sample_timeout: seconds that a user's own kind may take for one sample; 0: no limit.
        say_ignored: called with the files of a folder that are no samples.
    """

    settings: DataSettings
    packed: Path
    quarantine: Path
    root: Path
    report: Report = lambda done, total: None
    cache: Path | None = None
    releases: Path | None = None
    sample: bool = False
    sample_timeout: float = 0.0
    say_ignored: Callable[[Ignored], None] = lambda _: None

    @cached_property
    def released(self) -> pl.DataFrame:
        """The table of samples released by hand."""
        return overrides.read(self.releases)

    def check_quarantine(self, bad: pl.DataFrame, *, total: int, notes: Sequence[str] = ()) -> None:
        """Write the quarantine table, and check that not too many of `total` samples are in it.

        Raises:
            DataError: more than data.max_bad_fraction are bad. The table has the reasons, the message also `notes`.
        """
        quarantine.write(self.quarantine, bad)
        limit = self.settings.max_bad_fraction
        set_rules.check_bad_fraction(bad, total=total, limit=limit, table=self.quarantine, notes=notes)


def divide(
    good: pl.DataFrame, labels: TargetTable, settings: DataSettings, *, declared: Collection[split.SplitName]
) -> pl.DataFrame:
    """Return the samples as rows of an index: split by split, each in the order of `good`.

    Raises:
        DataError: a group is in several given splits.

    Args:
        good: id, the split that the source assigns, group, and `normal`, the digest in which duplicates are equal.
        labels: of the same samples. Column `LABEL_PLACE` of the result has their places.
        settings: fractions and folds.
        declared: the splits that the source assigns.
    """
    good = good.with_columns(pl.col("group").str.normalize("NFC").str.strip_chars())  # as tables are read
    identity = pl.when(pl.col("group").is_null()).then("normal").otherwise("group " + pl.col("group"))
    shown = labels.shown.cast(pl.String)
    given, declared = split.for_folds(good["split"], settings, declared=declared)
    assigned = split.assign(
        good.select(identity).to_series(),
        split.of_groups(given, good["group"], settings),
        settings,
        declared=declared,
        classes=shown if labels.classes else None,
    )
    index = good.with_columns(
        pl.Series("split", assigned, dtype=pl.String),
        pl.Series("label", labels.values if labels.classes else [None] * good.height, dtype=pl.Int64),
        shown.alias("class"),
        pl.int_range(pl.len()).alias(LABEL_PLACE),
        source=pl.col("id"),
    )
    return pl.concat([index.filter(pl.col("split") == name) for name in split.SPLITS])


def without_copies(index: pl.DataFrame, bad: pl.DataFrame, *, digest: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Move the samples whose `digest` is also in a split of a higher rank from the index to the quarantine rows."""
    duplicates = exact_duplicates.cross_split_duplicates(index.with_columns(pixels=digest))
    return quarantine.without(index, duplicates), pl.concat([bad, duplicates])


@dataclass(frozen=True, kw_only=True)
class PackedSet:
    """The rows of a packed set, before it is written.

    Attributes:
        name: of the data.
        source: setting that names its source.
        index: one row for each sample, split by split.
        labels: of the same rows.
        bad: the quarantine table.
        released: releases by hand that let samples in.
        extra: columns of the index that come from the source.
        rows: number of rows of each split, if they are not those of the index.
        keys: uint64, stable hashes of the rows' ids; None: of `id`.
    """

    name: str
    source: str
    index: pl.DataFrame
    labels: TargetTable
    bad: pl.DataFrame
    released: pl.DataFrame
    extra: Sequence[str] = ()
    rows: Mapping[str, int] | None = None
    keys: NDArray[np.uint64] | None = None

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Number of rows of each split in the index."""
        counts = dict(self.index.group_by("split").len().rows())
        return {name: counts.get(name, 0) for name in split.SPLITS}

    @property
    def train(self) -> slice:
        """The training rows."""
        return slice(0, self.sizes["train"])

    def write(
        self,
        draft: Path,
        *,
        arrays: Callable[[Path, slice], Arrays],
        describe: Callable[[], tuple[Input, Mapping[str, object]]],
        write_index: Callable[[Path, pl.DataFrame, Sequence[str]], None] = pack.write_index,
    ) -> Manifest:
        """Write arrays, index, profile and manifest into the folder `draft`.

        Args:
            draft: an empty folder.
            arrays: writes the arrays of some rows of the index into a folder.
            describe: called after all arrays are written; returns the input, and the kind's part of the profile.
            write_index: writes index.parquet into a folder, with these extra columns.
        """
        with ThreadPoolExecutor(1) as pool:
            index = pool.submit(write_index, draft, self.index, self.extra)
            splits = dict(self._splits(draft, arrays))
            index.result()
        input, part = describe()
        files.write_json(draft / "profile.json", self._profile(part))
        notes = {
            "source": self.source,
            "quarantined": quarantine.samples(self.bad),
            "quarantined_by_rule": quarantine.by_rule(self.bad),
            "released": tuple(self.released.to_dicts()),
        }
        target = self.labels.target(self.train)
        manifest = Manifest.sealed(notes, format=FORMAT, name=self.name, input=input, target=target, splits=splits)
        manifest.write(draft)
        return manifest

    def _splits(self, draft: Path, arrays: Callable[[Path, slice], Arrays]) -> Iterator[tuple[str, SplitFiles]]:
        keys, start = split.keys(self.index["id"]) if self.keys is None else self.keys, 0
        for name, rows in self.sizes.items():
            folder, part = draft / name, slice(start, start + rows)
            folder.mkdir()
            written = arrays(folder, part)
            packed, own = ({}, written) if isinstance(written, UnpackedRows) else (written, None)
            targets = pack.write_array(folder, "targets", self.labels.values[part])
            key_file = pack.write_array(folder, "keys", keys[part])
            yield name, SplitFiles((self.rows or self.sizes)[name], packed, targets, key_file, own)
            start += rows

    def _profile(self, part: Mapping[str, object]) -> dict[str, object]:
        """Return the content of profile.json."""
        classes = self.labels.classes
        counts = self.index.group_by("split", "class").len().rows() if classes else ()
        counted = {(name, label): number for name, label, number in counts}
        return {
            "rows": dict(self.rows or self.sizes),
            **self.labels.described(self.train),
            "classes": {name: {label: counted.get((name, label), 0) for label in classes} for name in split.SPLITS},
            **part,
            "quarantined_by_rule": quarantine.by_rule(self.bad),
        }
