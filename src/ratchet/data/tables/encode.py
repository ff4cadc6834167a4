"""Raw rows to the arrays of a model. Ingest and a served model use this one function."""

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ratchet.data.sources.table_file import MISSING
from ratchet.data.tables.forms import PLAIN, numbers, seconds
from ratchet.errors import DataError
from ratchet.kinds import Column, TableInput

__all__ = ["MISSING_TEXTS", "cleaned", "encode", "plain_values", "texts_of"]

MISSING_TEXTS = (*MISSING, "?")
"""Texts that mean a missing value in any table."""

_ISO = "%Y-%m-%d|%Y-%m-%dT%H:%M:%S%.f|%Y-%m-%d %H:%M:%S%.f|%Y-%m-%dT%H:%M:%S%.f%#z"
_NESTED = (pl.List, pl.Array, pl.Struct, pl.Binary, pl.Object)
_UNSEEN, _FIRST = 1, 2


def encode(frame: pl.DataFrame, input: TableInput) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return numbers, float32 (n, numeric columns), and codes, int64 (n, categorical columns), of raw rows.

    Further columns are ignored. A value may be typed, or a text as in the file that the model learned from. A date may
    also be written in ISO 8601, or be a number of seconds since 1970-01-01 UTC.

    Raises:
        DataError: a column is missing, or a value is no number, no date or infinite.
    """
    missing = [column.name for column in input.columns if column.name not in frame.columns]
    if missing:
        raise DataError(
            f"the rows have no column {', '.join(map(repr, missing))}. The model needs "
            f"{', '.join(column.name for column in input.columns)}. Fix: add it; a value may be empty"
        )
    values = np.empty((frame.height, len(input.numeric)), np.float32)
    codes = np.empty((frame.height, len(input.categorical)), np.int64)
    for place, column in enumerate(input.numeric):
        values[:, place] = _numbers(frame[column.name], column, input.missing)
    for place, column in enumerate(input.categorical):
        codes[:, place] = _codes(frame[column.name], column, input.missing)
    return values, codes


def cleaned(texts: pl.Series, missing: tuple[str, ...]) -> pl.Series:
    """Return texts without surrounding spaces; null where they mean a missing value."""
    plain = texts.str.strip_chars()
    return pl.select(pl.when(~plain.is_in([*MISSING_TEXTS, *missing])).then(plain)).to_series().alias(texts.name)


def plain_values(values: pl.Series, name: str) -> pl.Series | None:
    """Return typed values as Float64, dates as seconds since 1970-01-01 UTC; None for texts.

    Raises:
        DataError: the values are lists, records or bytes.
    """
    kind = values.dtype
    if isinstance(kind, _NESTED):
        raise DataError(f"column {name!r} has {kind.base_type().__name__} values. Fix: save one text or number a cell")
    if isinstance(kind, pl.Date | pl.Datetime):
        return values.cast(pl.Datetime("us")).dt.epoch("us").cast(pl.Float64) / 1e6
    if isinstance(kind, pl.Duration):
        return values.dt.total_microseconds().cast(pl.Float64) / 1e6
    if isinstance(kind, pl.Time):
        return values.cast(pl.Int64).cast(pl.Float64) / 1e9
    if kind.is_numeric() or isinstance(kind, pl.Boolean | pl.Null):
        return values.cast(pl.Float64).fill_nan(None)
    return None


def texts_of(values: pl.Series, name: str) -> pl.Series:
    """Return values as texts. A whole number has no decimal point.

    Raises:
        DataError: the values are lists, records or bytes.
    """
    if isinstance(values.dtype, _NESTED):
        plain_values(values, name)
    if values.dtype.is_float():
        whole = values.fill_nan(None).cast(pl.Int64, strict=False)
        text = pl.when(whole.cast(pl.Float64) == values).then(whole.cast(pl.String)).otherwise(values.cast(pl.String))
        return pl.select(text).to_series().alias(values.name)
    if isinstance(values.dtype, pl.Duration):
        values = values.dt.total_microseconds()
    return values.cast(pl.String)


def _numbers(values: pl.Series, column: Column, missing: tuple[str, ...]) -> NDArray[np.float64]:
    """Return float64 (n,); NaN: missing."""
    read = plain_values(values, column.name)
    if read is None:
        texts = cleaned(values.cast(pl.String), missing)
        if column.type == "datetime":
            read = seconds(texts, f"{column.form}|{_ISO}" if column.form else _ISO)
        else:
            read = numbers(texts, column.form or PLAIN).fill_nan(None)
            if column.form:
                read = pl.select(pl.coalesce(read, numbers(texts, PLAIN).fill_nan(None))).to_series()
        wrong = texts.filter(read.is_null() & texts.is_not_null())
        if len(wrong):
            kind = "date" if column.type == "datetime" else "number"
            raise DataError(f"column {column.name!r}: {wrong[0]!r} is no {kind}. Fix: correct it, or leave it empty")
    result: NDArray[np.float64] = read.fill_null(float("nan")).to_numpy()
    with np.errstate(over="ignore"):
        infinite = np.isinf(result.astype(np.float32)).any()
    if infinite:
        raise DataError(f"column {column.name!r} has an infinite number. Fix: correct it, or leave it empty")
    return result


def _codes(values: pl.Series, column: Column, missing: tuple[str, ...]) -> NDArray[np.int64]:
    """Return int64 (n,): 0 is missing, 1 not among the categories."""
    texts = cleaned(texts_of(values, column.name), missing)
    if values.dtype == pl.Boolean:  # a CSV file may have True, TRUE or true
        texts = texts.replace({name.lower(): name for name in column.categories if name.lower() in ("true", "false")})
    known = texts.cast(pl.Enum(column.categories), strict=False).to_physical().cast(pl.Int64) + _FIRST
    codes: NDArray[np.int64] = (
        pl.select(pl.when(texts.is_null()).then(0).otherwise(known.fill_null(_UNSEEN))).to_series().to_numpy()
    )
    return codes
