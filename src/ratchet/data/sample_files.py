"""Samples, with labels and splits, as files that ingest reads. `kinds/ingest.py` lists the classes."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ratchet.data.tables.columns import typed_column
from ratchet.data.tables.digests import column_digests, hexadecimal
from ratchet.data.tables.encode import plain_values
from ratchet.data.tables.number_formats import written_dates, written_numbers
from ratchet.errors import DataError, NoRequests
from ratchet.kinds import ArraysInput, Column, ImageInput, TableInput
from ratchet.settings.model import DataSettings
from ratchet.training.custom_class import digest_of
from ratchet.training.stored_arrays import ARRAYS_FORMAT, COLUMNS

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]

__all__ = ["ArrayFiles", "ImageFiles", "RowsFile", "SampleFiles", "TextsFile"]

Values = TypeVar("Values")


class SampleFiles(ABC, Generic[Values]):
    """Files of the samples of a kind, which are given as `Kind.values` returns them."""

    @abstractmethod
    def digests(self, values: Values) -> list[str]:
        """Return a digest (hex) of each sample, which is equal for equal samples of whatever packed set."""

    @abstractmethod
    def write(
        self, folder: Path, parts: Iterable[Values], input_spec: Any, columns: pl.DataFrame, settings: DataSettings
    ) -> tuple[str, dict[str, Any]]:
        """Write the samples part by part. Return the file to read, and further settings of the section data.

        An empty file name means the folder.

        `columns`: label, split and group columns as `settings` name them, and those that are no features.

        Raises:
            DataError: no file has these samples so that ingest reads them as before.
        """


class RowsFile(SampleFiles["pandas.DataFrame"]):
    """A Parquet file with the columns that a model takes, the label columns and the split."""

    def digests(self, values: "pandas.DataFrame") -> list[str]:
        columns = [_plain(column) for column in pl.from_pandas(values).select(sorted(values.columns))]
        digests: list[str] = hexadecimal(column_digests(columns, len(values))).to_pylist()
        return digests

    def write(
        self, folder: Path, parts: "Iterable[pandas.DataFrame]", input_spec: TableInput, columns: pl.DataFrame,
        settings: DataSettings,
    ) -> tuple[str, dict[str, Any]]:  # fmt: skip
        forms = {column.name: column for column in input_spec.columns if column.form}
        types: dict[str, str] = {}

        def cells() -> Iterator[list[pl.Series]]:
            for values in parts:
                types.update({name: _type(values[name]) for name in values})
                texts = [each.cast(pl.String) if each.dtype == pl.Null else each for each in pl.from_pandas(values)]
                yield [_in_form(each, forms[each.name]) if each.name in forms else each for each in texts]

        path = folder / "table.parquet"
        _write_parts(path, cells(), columns)
        for column in forms.values():
            _check_form(pl.read_parquet(path, columns=[column.name]).to_series(), column, settings)
        return path.name, {"columns": _ids(columns, settings) | types}


class TextsFile(SampleFiles[list[str]]):
    """A Parquet file with the texts, the label columns and the split."""

    def digests(self, values: list[str]) -> list[str]:
        return [hashlib.sha256(text.encode()).hexdigest() for text in values]

    def write(
        self, folder: Path, parts: Iterable[list[str]], input_spec: Any, columns: pl.DataFrame, settings: DataSettings
    ) -> tuple[str, dict[str, Any]]:
        path, name = folder / "texts.parquet", settings.text_column
        while name in columns.columns:
            name += "_"
        _write_parts(path, ([pl.Series(name, texts, dtype=pl.String)] for texts in parts), columns)
        return path.name, {"text_column": name}


class ImageFiles(SampleFiles[NDArray[Any]]):
    """PNG files, and the table that lists them."""

    def digests(self, values: NDArray[Any]) -> list[str]:
        return [hashlib.sha256(np.ascontiguousarray(pixels).tobytes()).hexdigest() for pixels in values]

    def write(
        self, folder: Path, parts: Iterable[NDArray[Any]], input_spec: ImageInput, columns: pl.DataFrame,
        settings: DataSettings,
    ) -> tuple[str, dict[str, Any]]:  # fmt: skip
        from PIL import Image

        paths = [f"images/{place:08}.png" for place in range(len(columns))]
        (folder / "images").mkdir()
        for path, pixels in zip(paths, chain.from_iterable(parts), strict=True):
            Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(folder / path)
        columns.insert_column(0, pl.Series(settings.path_column, paths)).write_parquet(folder / "images.parquet")
        side, depth = input_spec.height, input_spec.depth or "auto"
        size = {"image_size": side, "channels": input_spec.channels, "depth": depth, "formats": ["png"]}
        limits = {"min_side": min(side, settings.min_side), "max_pixels": max(side * side, settings.max_pixels)}
        return "", {"source": "image-manifest", "manifest": "images.parquet", **size, **limits}


class ArrayFiles(SampleFiles[dict[str, NDArray[Any]]]):
    """NumPy files of the arrays that a user's class has made, which ingest reads instead of calling it."""

    def digests(self, values: dict[str, NDArray[Any]]) -> list[str]:
        rows = zip(*values.values(), strict=True)
        return [digest_of(dict(zip(values, map(np.ascontiguousarray, row), strict=True))) for row in rows]

    def write(
        self, folder: Path, parts: Iterable[dict[str, NDArray[Any]]], input_spec: ArraysInput, columns: pl.DataFrame,
        settings: DataSettings,
    ) -> tuple[str, dict[str, Any]]:  # fmt: skip
        whole = {
            each.name: np.lib.format.open_memmap(
                folder / f"{each.name}.npy", "w+", each.dtype, (len(columns), *each.shape)
            )
            for each in input_spec.arrays
        }
        begin = 0
        for values in parts:
            for name, array in values.items():
                whole[name][begin : begin + len(array)] = array
            begin += len(array)
        for stored in whole.values():
            stored.flush()
        content = json.dumps({"format": ARRAYS_FORMAT, "columns": columns.to_dict(as_series=False)}, default=str)
        (folder / COLUMNS).write_text(content, encoding="utf-8")
        return "", {}


def _write_parts(path: Path, parts: Iterable[list[pl.Series]], columns: pl.DataFrame) -> None:
    """Write a table whose first columns come in parts of the rows. `columns`: the others, of all rows."""
    import pyarrow.parquet as pq

    begin, writer = 0, None
    try:
        for cells in parts:
            table = pl.DataFrame([*cells, *columns[begin : begin + len(cells[0])]]).to_arrow()
            writer = writer or pq.ParquetWriter(path, table.schema, compression="zstd")
            writer.write_table(table.cast(writer.schema))
            begin += len(table)
    finally:
        if writer is not None:
            writer.close()


def _ids(columns: pl.DataFrame, settings: DataSettings) -> dict[str, str]:
    """Return the columns that are neither features nor have a role, as ids for data.columns."""
    roles = {*settings.label_columns, settings.split_column, settings.group_column}
    return {name: "id" for name in columns.columns if name not in roles}


def _plain(column: pl.Series) -> pl.Series:
    """Return a column of numbers or texts; dates are seconds."""
    if column.dtype == pl.Null:
        return column.cast(pl.String)
    return column.dt.epoch("us").cast(pl.Float64) / 1e6 if column.dtype.is_temporal() else column


def _type(column: "pandas.Series") -> str:
    """Return the type of a column for data.columns."""
    return {"f": "numeric", "M": "datetime"}.get(column.dtype.kind, "categorical")


def _in_form(values: pl.Series, column: Column) -> pl.Series:
    """Return a column as the source wrote it, because the next model reads requests in the form that it learns here.

    Raises:
        DataError: a date cannot be written.
    """
    numbers = plain_values(values, column.name)
    assert numbers is not None
    if column.type == "numeric":
        return written_numbers(numbers, column.form)
    # packed in float32, whose error may be seconds
    error = np.spacing(np.abs(numbers.to_numpy() - column.offset).astype(np.float32))
    texts = written_dates(numbers, column.form, pl.Series(error))
    if (texts.is_null() & numbers.fill_nan(None).is_not_null()).any():
        raise _unwritable(column)
    return texts


def _check_form(texts: pl.Series, column: Column, settings: DataSettings) -> None:
    """Check that ingest reads a written column in the same form, with the same missing values."""
    try:
        read = typed_column(texts, wanted=column.type, missing=settings.missing, where="")
        is_same = read.form == column.form and (read.values.is_null() == texts.is_null()).all()
    except DataError:
        is_same = False
    if not is_same:
        raise _unwritable(column)


def _unwritable(column: Column) -> NoRequests:
    return NoRequests(
        f"column {column.name!r}: its values are written as {column.form}, and as such they cannot be written again. "
        "Fix: write numbers as 1234.5 and dates as YYYY-MM-DD in the data, ingest and train, then try again"
    )
