"""Packing of the good rows of a table: their splits, arrays, index and descriptions."""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
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
from ratchet.data.tables.digests import array_digests, column_digests, hexadecimal, repeats, row_ids
from ratchet.data.tables.encode import arrays_of
from ratchet.data.tables.reading import RawTable
from ratchet.data.tables.special_columns import SpecialColumns
from ratchet.data.tables.targets import TargetTable
from ratchet.errors import DataError
from ratchet.kinds import TableInput

__all__ = ["TableColumns", "TableWriter"]

_GROUP = 1 << 16  # rows of the index that are in memory as texts

Array = NDArray[np.float32] | NDArray[np.int64]


@dataclass(frozen=True)
class TableColumns:
    """The good rows: their numbers in the file from 1, features, other columns and targets."""

    rows: pl.Series
    features: Sequence[TypedColumn]
    special: SpecialColumns
    labels: TargetTable

    def filter(self, kept: pl.Series) -> "TableColumns":
        """Return the rows that are kept."""
        if kept.all():
            return self
        places = np.flatnonzero(kept.to_numpy())
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
        features, special: columns in the order of the file.
        order: places in them of the rows, int64 (rows,).
        labels: of the rows.
        index: one row for each: row (its number in the file), split, label and class.
        digest: of features and target, uint64 (rows, 2).
        assigned: the split of each good row, and the rows that are left out.
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
        names = self._class_names(content.labels)
        self.assigned = splits.assigned(task.settings, digest, content.special, classes=names)
        split = self.assigned.places
        if not (used := self.assigned.kept).all():
            content, split, digest = content.filter(pl.Series(used)), split[used], digest[used]
            names = self._class_names(content.labels)
        special, labels = content.special, content.labels
        index = pl.DataFrame({"row": content.rows, "split": pl.Series(split).cat.to(pl.Enum(SPLITS))}).with_columns(
            (pl.Series(labels.values) if self.classes else pl.lit(None, pl.Int64)).alias("label"),
            (labels.shown.cast(pl.String) if names is None else names).alias("class"),
        )
        if special.given is not None:
            copies = exact_duplicates.cross_split_duplicates(_copied(index, digest))
            kept = ~content.rows.is_in(copies["row"].implode())
            bad, content, index = pl.concat([bad, copies]), content.filter(kept), index.filter(kept)
            split, digest = split[kept.to_numpy()], digest[kept.to_numpy()]
        self.bad, self.features, self.special = bad, content.features, content.special
        self.order = np.argsort(split.astype(np.int8), kind="stable")
        self.index, self.labels = index[self.order], content.labels.take(self.order)
        self.digest = digest.take(self.order, axis=0)

    def _class_names(self, labels: TargetTable) -> pl.Series | None:
        return pl.Series(labels.values).cat.to(pl.Enum(self.classes)) if self.classes else None

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Number of rows of each split."""
        counts = dict(self.index.group_by("split").len().rows())
        return {split: counts.get(split, 0) for split in SPLITS}

    @cached_property
    def repeats(self) -> NDArray[np.uint64]:
        """A first lane of `digest` for each row that is a copy of another row."""
        return repeats(self.digest)

    @property
    def train(self) -> slice:
        """The training rows."""
        return slice(0, self.sizes["train"])

    @cached_property
    def statistics(self) -> dict[str, FeatureStatistics]:
        """The features by name."""
        features, train = [column for column in self.features if column.is_feature], pl.Series(self.order[self.train])
        train = train.cast(pl.UInt32)
        statistics = each(lambda column: describe.feature(column, column.values.gather(train)), features)
        return {feature.column.name: feature for feature in statistics if feature is not None}

    def write(self) -> Manifest:
        """Write the packed set."""
        if not self.statistics:
            reasons = ", ".join(f"{column.name} ({column.why})" for column in self.features)
            raise DataError(
                f"{self.source.where} has no column to learn from: {reasons or 'only labels'}. "
                "Fix: set the type of a column in data.columns"
            )
        settings = self.task.settings
        columns = tuple(feature.column for feature in self.statistics.values())
        input = TableInput(columns, settings.missing, self.source.widths(settings.label_columns))
        values = {column.name: column.values for column in self.features}
        numbers, codes = arrays_of(
            [values[column.name] for column in input.numeric], [values[column.name] for column in input.categorical],
            input, rows=self.order,
        )  # fmt: skip
        arrays: dict[str, Array] = {"numbers": numbers, "codes": codes}
        packed_digest = array_digests(list(arrays.values()), len(self.digest))
        packed = PackedSet(
            name=self.source.name, source=settings.path, index=self.index, labels=self.labels, bad=self.bad,
            released=self.released, keys=column_digests([self.index["row"]], len(self.digest))[:, 0],
        )  # fmt: skip
        with files.draft_directory(self.task.packed) as draft:
            return packed.write(
                draft, write_index=lambda folder, index, _: self._write_index(folder, packed_digest),
                describe=lambda: (input, describe.profile_of(self, _copied(self.index, packed_digest))),
                arrays=lambda folder, part: {
                    name: pack.write_shards_of(folder, name, values[part])
                    for name, values in arrays.items()
                },
            )  # fmt: skip

    def _write_index(self, draft: Path, packed: NDArray[np.uint64]) -> None:
        """Write index.parquet. Categories, ids and the order are copied from the file."""
        index = self.index.with_columns(file_row="row", row=np.concatenate([np.arange(n) for n in self.sizes.values()]))
        if self.special.groups is not None:
            index = index.with_columns(self.special.groups[self.order].alias("group"))
        columns = [column for column in self.features if column.type in ("categorical", "id")]
        columns += [column for column in self.special.columns if column.why == "data.order_by"]
        own = {*pack.index_columns(pack.INDEX_COLUMNS, ()), "place", "group", "content", "packed", "file_row"}
        extra = {
            f"{column.name} (column)" if column.name in own else column.name: column.shown[self.order]
            for column in columns
        }
        index = index.with_columns(texts.alias(name) for name, texts in extra.items())
        digests = {"content": self.digest, "pixels": packed}
        names = pack.index_columns([*index.columns, "id", "source", *digests], list(extra))
        file_rows = index["file_row"].to_numpy()

        def table(rows: slice) -> pa.Table:
            part = index[rows].to_arrow(compat_level=pl.CompatLevel.oldest())
            ids = row_ids(file_rows[rows])
            texts = {"id": ids, "source": ids} | {name: hexadecimal(values[rows]) for name, values in digests.items()}
            for name, column in texts.items():
                part = part.append_column(name, column)
            return part.select(names)

        schema = table(slice(0, 0)).schema
        texts = {field.name for field in schema if pa.types.is_large_string(field.type)} - {*digests}
        with pq.ParquetWriter(
            draft / "index.parquet", schema, store_schema=False, write_statistics=False,
            use_dictionary=[name for name in names if name not in {"row", "id", "source", *digests}],
            compression={name: "zstd" if name in texts else "none" for name in names},
        ) as file:  # fmt: skip
            for start in range(0, index.height, _GROUP):
                file.write_table(table(slice(start, start + _GROUP)))
            file.add_key_value_metadata({"ARROW:schema": b64encode(_without_categories(schema).serialize())})


def _without_categories(schema: pa.Schema) -> pa.Schema:
    """Return a schema with texts in place of categories, which also says what Parquet cannot, such as a duration."""
    return pa.schema(
        field.with_type(pa.large_string()) if pa.types.is_dictionary(field.type) else field for field in schema
    )


def _copied(index: pl.DataFrame, digest: NDArray[np.uint64]) -> pl.DataFrame:
    """Return the rows of an index whose digest occurs more than once, with it as `pixels`."""
    places = np.flatnonzero(np.isin(digest[:, 0], repeats(digest)))
    copied = index[places]
    texts = {"id": row_ids(copied["row"].to_numpy()), "pixels": hexadecimal(digest[places])}
    columns = {name: pl.Series(pl.from_arrow(values), dtype=pl.String) for name, values in texts.items()}
    return copied.with_columns(pl.col("split", "class").cast(pl.String), **columns).with_columns(source="id")
