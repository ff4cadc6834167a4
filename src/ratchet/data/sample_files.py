"""Samples, with labels and splits, as files that ingest reads. `kinds/ingest.py` lists the classes."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ratchet.data.tables.digests import column_digests, hexadecimal
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
        self, folder: Path, values: Values, labels: Mapping[str, NDArray[Any]], splits: Sequence[str],
        settings: DataSettings,
    ) -> tuple[str, dict[str, Any]]:  # fmt: skip
        """Write the samples; return the file to read (empty: the folder), and further settings of the section data."""


class RowsFile(SampleFiles["pandas.DataFrame"]):
    """A Parquet file with the columns that a model takes, the label columns and the split."""

    def digests(self, values: "pandas.DataFrame") -> list[str]:
        columns = [_plain(column) for column in pl.from_pandas(values).select(sorted(values.columns))]
        digests: list[str] = hexadecimal(column_digests(columns, len(values))).to_pylist()
        return digests

    def write(
        self, folder: Path, values: "pandas.DataFrame", labels: Mapping[str, NDArray[Any]], splits: Sequence[str],
        settings: DataSettings,
    ) -> tuple[str, dict[str, Any]]:  # fmt: skip
        columns = pl.from_pandas(values).get_columns()
        columns = [column.cast(pl.String) if column.dtype == pl.Null else column for column in columns]
        columns += [pl.Series(name, label.tolist()) for name, label in labels.items()]
        pl.DataFrame([*columns, pl.Series(settings.split_column, splits)]).write_parquet(folder / "table.parquet")
        return "table.parquet", {"columns": {name: _type(values[name]) for name in values}, "drop": [], "hash": []}


class ImageFiles(SampleFiles[NDArray[Any]]):
    """PNG files, and the table that lists them."""

    def digests(self, values: NDArray[Any]) -> list[str]:
        return [hashlib.sha256(np.ascontiguousarray(pixels).tobytes()).hexdigest() for pixels in values]

    def write(
        self, folder: Path, values: NDArray[Any], labels: Mapping[str, NDArray[Any]], splits: Sequence[str],
        settings: DataSettings,
    ) -> tuple[str, dict[str, Any]]:  # fmt: skip
        from PIL import Image

        paths = [f"images/{place:08}.png" for place in range(len(values))]
        (folder / "images").mkdir()
        for path, pixels in zip(paths, values, strict=True):
            Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(folder / path)
        listed = {name: label.tolist() for name, label in labels.items()}
        table = {settings.path_column: paths, **listed, settings.split_column: splits}
        pl.DataFrame(table).write_parquet(folder / "images.parquet")
        size = {"image_size": values.shape[1], "channels": values.shape[-1], "depth": "auto"}
        return "", {"source": "image-manifest", "manifest": "images.parquet", **size}


def _plain(column: pl.Series) -> pl.Series:
    """Return a column of numbers or texts; dates are seconds."""
    if column.dtype == pl.Null:
        return column.cast(pl.String)
    return column.dt.epoch("us").cast(pl.Float64) / 1e6 if column.dtype.is_temporal() else column


def _type(column: "pandas.Series") -> str:
    """Return the type of a column for data.columns."""
    return {"f": "numeric", "M": "datetime"}.get(column.dtype.kind, "categorical")
