"""Samples, with labels and splits, as files that ingest reads. `kinds/ingest.py` lists the classes."""

import hashlib
from abc import ABC, abstractmethod
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
from ratchet.kinds import Column, ImageInput, TableInput
from ratchet.settings.model import DataSettings

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]

__all__ = ["ImageFiles", "RowsFile", "SampleFiles"]

Values = TypeVar("Values")


class SampleFiles(ABC, Generic[Values]):
    """Files of the samples of a kind, which are given as `Kind.values` returns them."""

    @abstractmethod
    def digests(self, values: Values) -> list[str]:
        """Return a digest (hex) of each sample, which is equal for equal samples of whatever packed set."""

    @abstractmethod
    def write(
        self, folder: Path, values: Values, input_spec: Any, columns: pl.DataFrame, settings: DataSettings
    ) -> tuple[str, dict[str, Any]]:
        """Write the samples; return the file to read (empty: the folder), and further settings of the section data.

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
        self, folder: Path, values: "pandas.DataFrame", input_spec: TableInput, columns: pl.DataFrame,
        settings: DataSettings,
    ) -> tuple[str, dict[str, Any]]:  # fmt: skip
        cells = [each.cast(pl.String) if each.dtype == pl.Null else each for each in pl.from_pandas(values)]
        forms = {column.name: column for column in input_spec.columns if column.form}
        cells = [_in_form(each, forms[each.name], settings) if each.name in forms else each for each in cells]
        pl.DataFrame([*cells, *columns]).write_parquet(folder / "table.parquet")
        roles = {*settings.label_columns, settings.split_column, settings.group_column}
        types = {name: "id" for name in columns.columns if name not in roles}
        return "table.parquet", {"columns": types | {name: _type(values[name]) for name in values}}


class ImageFiles(SampleFiles[NDArray[Any]]):
    """PNG files, and the table that lists them."""

    def digests(self, values: NDArray[Any]) -> list[str]:
        return [hashlib.sha256(np.ascontiguousarray(pixels).tobytes()).hexdigest() for pixels in values]

    def write(
        self, folder: Path, values: NDArray[Any], input_spec: ImageInput, columns: pl.DataFrame, settings: DataSettings
    ) -> tuple[str, dict[str, Any]]:
        from PIL import Image

        paths = [f"images/{place:08}.png" for place in range(len(values))]
        (folder / "images").mkdir()
        for path, pixels in zip(paths, values, strict=True):
            Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(folder / path)
        columns.insert_column(0, pl.Series(settings.path_column, paths)).write_parquet(folder / "images.parquet")
        side, depth = values.shape[1], input_spec.depth or "auto"
        size = {"image_size": side, "channels": values.shape[-1], "depth": depth, "formats": ["png"]}
        limits = {"min_side": min(side, settings.min_side), "max_pixels": max(side * side, settings.max_pixels)}
        return "", {"source": "image-manifest", "manifest": "images.parquet", **size, **limits}


def _plain(column: pl.Series) -> pl.Series:
    """Return a column of numbers or texts; dates are seconds."""
    if column.dtype == pl.Null:
        return column.cast(pl.String)
    return column.dt.epoch("us").cast(pl.Float64) / 1e6 if column.dtype.is_temporal() else column


def _type(column: "pandas.Series") -> str:
    """Return the type of a column for data.columns."""
    return {"f": "numeric", "M": "datetime"}.get(column.dtype.kind, "categorical")


def _in_form(values: pl.Series, column: Column, settings: DataSettings) -> pl.Series:
    """Return a column as the source wrote it, because the next model reads requests in the form that it learns here.

    Raises:
        DataError: ingest would not read the same values in the same form.
    """
    numbers = plain_values(values, column.name)
    assert numbers is not None
    if column.type == "numeric":
        texts = written_numbers(numbers, column.form)
    else:  # packed in float32, whose error may be seconds
        error = np.spacing(np.abs(numbers.to_numpy() - column.offset).astype(np.float32))
        texts = written_dates(numbers, column.form, pl.Series(error))
    try:
        read = typed_column(texts, wanted=column.type, missing=settings.missing, where="")
        is_same = read.form == column.form and (read.values.is_null() == numbers.is_null()).all()
    except DataError:
        is_same = False
    if is_same:
        return texts
    raise NoRequests(
        f"column {column.name!r}: its values are written as {column.form}, and as such they cannot be written again. "
        "Fix: write numbers as 1234.5 and dates as YYYY-MM-DD in the data, ingest and train, then try again"
    )
