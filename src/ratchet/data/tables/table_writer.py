"""Packing of the good rows of a table: their splits, arrays, index and descriptions."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ratchet import files
from ratchet.data import pack
from ratchet.data.checks import exact_duplicates
from ratchet.data.manifest import Manifest
from ratchet.data.packed_set import IngestTask, PackedSet
from ratchet.data.split import SPLITS
from ratchet.data.tables import describe, splits
from ratchet.data.tables.columns import TypedColumn, each
from ratchet.data.tables.describe import FeatureStatistics
from ratchet.data.tables.digests import array_digests, column_digests, hexadecimal, repeats
from ratchet.data.tables.encode import arrays_of
from ratchet.data.tables.reading import RawTable
from ratchet.data.tables.targets import TargetTable
from ratchet.errors import DataError
from ratchet.kinds import TableInput

__all__ = ["SpecialColumns", "TableColumns", "TableWriter"]

Array = NDArray[np.float32] | NDArray[np.int64]


@dataclass(frozen=True)
class SpecialColumns:
    """Columns with another role than a feature, in all rows.

    Attributes:
        given: the split of each row in the file; null: none.
        groups: rows of one group share a split.
        order: numbers or dates by which rows are sorted.
        columns: these columns as they are listed in the profile.
    """

    given: pl.Series | None = None
    groups: pl.Series | None = None
    order: pl.Series | None = None
    columns: tuple[TypedColumn, ...] = ()

    def take(self, places: NDArray[np.int64]) -> "SpecialColumns":
        """Return the rows at these places."""
        given, groups, order = (
            values if values is None else values[places] for values in (self.given, self.groups, self.order)
        )
        return SpecialColumns(given, groups, order, tuple(column.take(places) for column in self.columns))


@dataclass(frozen=True)
class TableColumns:
    """The good rows: their numbers in the file from 1, features, other columns and targets."""

    rows: pl.Series
    features: Sequence[TypedColumn]
    special: SpecialColumns
    labels: TargetTable

    def filter(self, kept: pl.Series) -> "TableColumns":
        """Return the rows that are kept."""
        return self if kept.all() else self.take(np.flatnonzero(kept.to_numpy()))

    def take(self, places: NDArray[np.int64]) -> "TableColumns":
        """Return the rows at these places."""
        features = each(lambda column: column.take(places), self.features)
        return TableColumns(self.rows[places], features, self.special.take(places), self.labels.take(places))

    def digest(self) -> NDArray[np.uint64]:
        """Return the digest of features and target of each row, uint64 (rows, 2)."""
        targets = self.labels.values.reshape(len(self.rows), -1)
        columns = [column.values for column in self.features if column.is_feature]
        return column_digests([*columns, *map(pl.Series, targets.T)], len(self.rows))


class TableWriter:
    """The packed set of a table, before it is written. Rows are in the order of the splits, then of the file.

    Attributes:
        content: the rows.
        index: one row for each: row (its number in the file), id, source, split, label and class.
        digest: of features and target, uint64 (rows, 2).
        bad: the quarantine table, with the rows that are also in a split of a higher rank.
        released: releases by hand that let rows in.
        classes: names of the classes; empty if the targets are none.
    """

    def __init__(
        self, task: IngestTask, source: RawTable, content: TableColumns, bad: pl.DataFrame, released: pl.DataFrame
    ) -> None:
        self.task, self.source, self.released = task, source, released
        self.classes = content.labels.classes
        digest = content.digest()
        special = content.special
        names = content.labels.shown.cast(pl.String) if self.classes else None
        split = splits.assigned(
            task.settings, digest, given=special.given, groups=special.groups, order=special.order, classes=names
        )
        order = np.argsort(split, kind="stable")
        self.content, self.digest = content.take(order), digest[order]
        self.index, self.bad = self._index(split[order]), bad
        if special.given is not None:
            self._refuse_copies()

    def _index(self, split: NDArray[np.int64]) -> pl.DataFrame:
        rows, labels = self.content.rows, self.content.labels
        numbers = (
            pl.Series(labels.values) if self.classes else pl.Series([None], dtype=pl.Int64).new_from_index(0, len(rows))
        )
        names = pl.Series(list(SPLITS)).gather(split)
        index = pl.DataFrame({"row": rows, "split": names, "label": numbers, "class": labels.shown.cast(pl.String)})
        return index.with_columns(id=pl.format("row {}", pl.col("row").cast(pl.String).str.zfill(7))).with_columns(
            source="id"
        )

    def _refuse_copies(self) -> None:
        """Move rows that are also in a split of a higher rank to the quarantine table."""
        copies = exact_duplicates.cross_split_duplicates(self._copied(self.digest))
        kept = ~self.content.rows.is_in(copies["row"].implode())
        self.bad = pl.concat([self.bad, copies])
        self.index, self.content, self.digest = self.index.filter(kept), self.content.filter(kept), self.digest[kept]

    def _copied(self, digest: NDArray[np.uint64]) -> pl.DataFrame:
        """Return the rows of the index whose digest occurs more than once, with it as `pixels`."""
        places = np.flatnonzero(np.isin(digest[:, 0], repeats(digest)))
        texts = pl.Series(pl.from_arrow(hexadecimal(digest[places])), dtype=pl.String)
        return self.index[places].with_columns(pixels=texts)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Number of rows of each split."""
        counts = dict(self.index.group_by("split").len().rows())
        return {split: counts.get(split, 0) for split in SPLITS}

    @property
    def copies(self) -> int:
        """Number of rows that are copies of another row."""
        return len(repeats(self.digest))

    @property
    def train(self) -> slice:
        """The training rows."""
        return slice(0, self.sizes["train"])

    @cached_property
    def statistics(self) -> dict[str, FeatureStatistics]:
        """The features by name."""
        features = [column for column in self.content.features if column.is_feature]
        statistics = each(lambda column: describe.feature(column, self.train), features)
        return {feature.column.name: feature for feature in statistics if feature is not None}

    def write(self) -> Manifest:
        """Write the packed set."""
        if not self.statistics:
            reasons = ", ".join(f"{column.name} ({column.why})" for column in self.content.features)
            raise DataError(
                f"{self.source.where} has no column to learn from: {reasons or 'only labels'}. "
                "Fix: set the type of a column in data.columns"
            )
        settings = self.task.settings
        input = TableInput(tuple(feature.column for feature in self.statistics.values()), settings.missing)
        values = {column.name: column.values for column in self.content.features}
        numbers, codes = arrays_of(
            [values[column.name] for column in input.numeric], [values[column.name] for column in input.categorical],
            input, rows=len(self.digest),
        )  # fmt: skip
        arrays: dict[str, Array] = {"numbers": numbers, "codes": codes}
        packed_digest = array_digests(list(arrays.values()), len(self.digest))
        packed = PackedSet(
            name=self.source.name, source=settings.path, index=self.index, labels=self.content.labels, bad=self.bad,
            released=self.released, keys=column_digests([self.content.rows], len(self.digest))[:, 0],
        )  # fmt: skip
        with files.draft_directory(self.task.packed) as draft:
            return packed.write(
                draft, write_index=lambda folder, index, _: self._write_index(folder, packed_digest),
                describe=lambda: (input, describe.profile_of(self, self._copied(packed_digest))),
                arrays=lambda folder, part: {
                    name: pack.write_shards_of(folder, name, values[part])
                    for name, values in arrays.items()
                },
            )  # fmt: skip

    def _write_index(self, draft: Path, packed: NDArray[np.uint64]) -> None:
        """Write index.parquet. Categories, ids and the order are copied from the file."""
        index, content = self.index.with_columns(row=pl.int_range(pl.len()).over("split")), self.content
        if content.special.groups is not None:
            index = index.with_columns(content.special.groups.alias("group"))
        columns = [column for column in content.features if column.type in ("categorical", "id")]
        columns += [column for column in content.special.columns if column.why == "data.order_by"]
        own = {*pack.index_columns(pack.INDEX_COLUMNS, ()), "place", "group", "content", "packed"}
        extra = {f"{column.name} (column)" if column.name in own else column.name: column.texts for column in columns}
        index = index.with_columns(
            (texts.cast(pl.String) if texts.dtype == pl.Enum else texts).alias(name) for name, texts in extra.items()
        )
        digests = {"content": hexadecimal(self.digest), "pixels": hexadecimal(packed)}
        table = index.to_arrow(compat_level=pl.CompatLevel.oldest())
        for name, texts in digests.items():
            table = table.append_column(name, texts)
        unlike = {"row", "id", "source", *digests}  # have no value twice
        pq.write_table(
            table.select(pack.index_columns(table.column_names, list(extra))), draft / "index.parquet",
            use_dictionary=[name for name in table.column_names if name not in unlike], row_group_size=1 << 17,
            write_statistics=[name for name in table.column_names if name not in unlike],
            compression={name: "none" if name == "content" else "zstd" for name in table.column_names},
        )  # fmt: skip
