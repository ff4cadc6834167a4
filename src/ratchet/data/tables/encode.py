"""Raw rows to the arrays of a model. Ingest and a served model use this one function."""

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ratchet.data.sources.table_file import EXACT, MISSING
from ratchet.data.tables.digests import coded
from ratchet.data.tables.number_formats import PLAIN, are_numbers, numbers, seconds
from ratchet.errors import DataError
from ratchet.kinds import Column, TableInput

__all__ = [
    "MISSING_TEXTS", "PlainRows", "arrays_of", "cleaned", "encode", "known_texts", "other_spellings", "plain_values",
    "texts_of", "without",
]  # fmt: skip

MISSING_TEXTS = (*MISSING, "?")
"""Texts that mean a missing value in any table."""

_ISO = "|".join(
    ["%Y-%m-%d"] + [f"%Y-%m-%d{gap}%H:%M{end}" for end in (":%S%.f", ":%S%.f%#z", "", "%#z") for gap in ("T", " ")]
)
_NESTED = (pl.List, pl.Array, pl.Struct, pl.Binary, pl.Object)
_NOT_A_TIME = "NaT"  # how pandas and MLflow's client write a missing date
_UNSEEN, _FIRST = 1, 2
_BLOCK = 1 << 12  # rows


def encode(frame: pl.DataFrame, input: TableInput) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return numbers, float32 (n, numeric columns), and codes, int64 (n, categorical columns), of raw rows.

    Further columns are ignored. A text is read as in the file that the model learned from. A typed value is taken as it
    is. A date may also be a text in ISO 8601, or a number as the file has it, else of seconds since 1970-01-01 UTC. A
    typed number means the category that is the same number, so 7 is "007".

    Raises:
        DataError: a column is missing, or a value is no number, no date or infinite.
    """
    frame = frame.rename(other_spellings(frame.columns, [column.name for column in input.columns]))
    missing = [column.name for column in input.columns if column.name not in frame.columns]
    if missing:
        raise DataError(
            f"the rows have no column {', '.join(map(repr, missing))}. The model needs "
            f"{', '.join(column.name for column in input.columns)}. Fix: add it; a value may be empty"
        )
    values = [_numbers(frame[column.name], column, input.missing) for column in input.numeric]
    texts = [_categories(frame[column.name], column, input.missing) for column in input.categorical]
    return arrays_of(values, texts, input, rows=np.arange(frame.height))


def other_spellings(names: Iterable[str], columns: Iterable[str]) -> dict[str, str]:
    """Return the `columns` of a model that `names` write with other code points of the same characters (NFC)."""
    known, given = set(columns), set(names)
    if known >= given:
        return {}
    forms = {unicodedata.normalize("NFC", name): name for name in known - given}
    longest = 4 * max(map(len, forms), default=0)  # no other spelling is longer; the form of one can take hours
    others = {name: forms.get(unicodedata.normalize("NFC", name)) for name in given - known if len(name) <= longest}
    return {name: other for name, other in others.items() if other}


class PlainRows:
    """Encodes rows that need no reading: of numbers, and of texts that are categories of the training rows.

    For a few rows it takes a hundredth of the time of `encode`, which is about .3 ms for each column.
    """

    def __init__(self, input: TableInput) -> None:
        self._numeric, self._categorical = input.numeric, input.categorical
        missing = {*MISSING_TEXTS, *input.missing}
        self._codes: list[dict[str | None, int]] = [
            {None: 0}
            | {
                name: code
                for code, name in enumerate(column.categories, _FIRST)
                if name == name.strip() and name not in missing
            }
            for column in input.categorical
        ]
        texts = pl.Series(input.missing, dtype=pl.String)
        has_missing_numbers = numbers(texts, PLAIN).is_not_null().any()
        self._is_possible = not has_missing_numbers and all(column.type == "numeric" for column in input.numeric)

    def encode(self, columns: Mapping[str, Sequence[Any]]) -> tuple[NDArray[np.float32], NDArray[np.int64]] | None:
        """Return what `encode` returns, for all columns of the model; None: a value needs `encode`."""
        rows = len(next(iter(columns.values()), ()))
        if not self._is_possible or not rows:
            return None
        values = np.empty((rows, len(self._numeric)), np.float32)
        codes = np.empty((rows, len(self._categorical)), np.int64)
        for place, column in enumerate(self._numeric):
            read = [_plain_number(value) for value in columns[column.name]]
            if None in read:
                return None
            with np.errstate(over="ignore"):
                values[:, place] = np.array(read, np.float64) - column.offset
        for place, (column, known) in enumerate(zip(self._categorical, self._codes, strict=True)):
            cells = columns[column.name]
            if not {type(cell) for cell in cells} <= {str, type(None)} or not known.keys() >= set(cells):
                return None
            codes[:, place] = [known[cell] for cell in cells]
        return None if np.isinf(values).any() else (values, codes)


def _plain_number(value: Any) -> float | None:
    """Return a number as float64, a missing one as NaN; None: it is no number, or no float64 has its value."""
    if value is None or value != value:
        return float("nan")
    if type(value) is float or (type(value) is int and -EXACT <= value <= EXACT):
        return float(value)
    return None


def arrays_of(
    numbers: Sequence[pl.Series], texts: Sequence[pl.Series], input: TableInput, *, rows: NDArray[np.int64]
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the arrays of columns that are already read.

    Args:
        numbers: Float64, of the numeric columns; null: missing.
        texts: String or Enum, of the categorical columns; null: missing.
        input: the columns.
        rows: places in them of the rows of the arrays.

    Raises:
        DataError: a number is infinite in float32.
    """
    values = np.empty((len(rows), len(input.numeric)), np.float32)
    codes = np.empty((len(rows), len(input.categorical)), np.int64)
    shifted = (
        read - column.offset if column.offset else read for column, read in zip(input.numeric, numbers, strict=True)
    )
    with np.errstate(over="ignore"):
        _fill(values, [read.fill_null(float("nan")).to_numpy() for read in shifted], rows)
    if np.isinf(values).any():
        name = next(column.name for column, read in zip(input.numeric, values.T, strict=True) if np.isinf(read).any())
        raise DataError(f"column {name!r} has an infinite number. Fix: correct it, or leave it empty")
    for place, (column, cells) in enumerate(zip(input.categorical, texts, strict=True)):
        _fill(codes[:, place : place + 1], [_codes(cells, column.categories)], rows)
    return values, codes


def _codes(cells: pl.Series, categories: Sequence[str]) -> NDArray[np.integer]:
    """Return the code of each text: 0 if it is missing, 1 if it is no category of the training rows.

    1.0 is the category 1 if there is no category 1.0, and 1 is 1.0: so pandas writes whole numbers of a column with a
    missing value.
    """
    cells, known = coded(cells), {name: code for code, name in enumerate(categories, _FIRST)}
    names: Sequence[str] = cells.dtype.categories  # type: ignore[attr-defined]
    whole = [name[:-2] if re.fullmatch(r"-?\d+\.0", name) else re.sub(r"^-?\d+$", r"\g<0>.0", name) for name in names]
    codes = [known.get(name, known.get(other, _UNSEEN)) for name, other in zip(names, whole, strict=True)]
    table = np.array([*codes, 0], np.min_scalar_type(len(known) + _FIRST))
    places = cells.to_physical()
    if places.null_count():
        places = places.cast(pl.UInt32).fill_null(len(names))
    result: NDArray[np.integer] = table[places.to_numpy()]
    return result


def _fill(array: NDArray[Any], columns: Sequence[NDArray[Any]], rows: NDArray[np.int64]) -> None:
    """Copy rows of columns into an array, a few rows at a time, which stay in the processor's cache."""
    for start in range(0, len(rows), _BLOCK):
        block = rows[start : start + _BLOCK]
        for place, column in enumerate(columns):
            array[start : start + _BLOCK, place] = column[block]


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
        numbers = values.cast(pl.Float64)
        return numbers.fill_nan(None) if numbers.is_nan().any() else numbers  # a copy costs more than the look
    return None


def texts_of(values: pl.Series, name: str) -> pl.Series:
    """Return values as texts in the Unicode form NFC. A whole number has no decimal point.

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
    texts = values.cast(pl.String)
    is_ascii = texts.str.len_bytes().sum() == texts.str.len_chars().sum()
    return texts if is_ascii else texts.str.normalize("NFC")


def without(values: pl.Series, missing: tuple[str, ...], cells: pl.Series) -> pl.Series:
    """Return Float64 values, with nulls for those that data.missing names.

    `cells`: the same values as they are in the file. A date is named by its text, such as 9999-12-31.
    """
    if not missing:
        return values
    if isinstance(cells.dtype, pl.Date | pl.Datetime):
        days = cells.dt.to_string("iso").str.strip_suffix(" 00:00:00.000000")
        is_missing = days.is_in(list(missing)).fill_null(False)
    else:
        named = numbers(pl.Series(values.name, missing, dtype=pl.String), PLAIN).drop_nulls()
        is_missing = values.is_in(named.implode()).fill_null(False)
    return pl.select(pl.when(~is_missing).then(values)).to_series().alias(values.name)


def known_texts(texts: pl.Series, read: pl.Series, missing: tuple[str, ...]) -> pl.Series:
    """Return texts, null where data.missing has the same number: 1e12 is 1000000000000.0."""
    if not missing:
        return texts
    kept = without(read, missing, texts).is_not_null() | read.is_null()
    return pl.select(pl.when(kept).then(texts)).to_series().alias(texts.name)


def _numbers(values: pl.Series, column: Column, missing: tuple[str, ...]) -> pl.Series:
    """Return a column of raw rows as Float64; null: missing. Dates are seconds since 1970-01-01 UTC."""
    read = plain_values(values, column.name)
    is_date = column.type == "datetime"
    if read is not None and not (is_date and values.dtype.is_numeric() and are_numbers(column.form)):
        return without(read, missing, values)
    texts = cleaned(texts_of(values, column.name), (*missing, _NOT_A_TIME) if is_date else missing)
    if is_date:
        read = seconds(texts, f"{column.form}|{_ISO}" if column.form else _ISO)
    else:
        read = numbers(texts, column.form or PLAIN).fill_nan(None)
        texts = known_texts(texts, read, missing)
        read = without(read, missing, texts)
    wrong = texts.filter(read.is_null() & texts.is_not_null())
    if len(wrong):
        form = f" written as {column.form}" if column.form else ""
        raise DataError(
            f"column {column.name!r}: {wrong[0]!r} is no {'date' if is_date else 'number'}{form}. Fix: correct it, or "
            "leave it empty"
        )
    return read


def _categories(values: pl.Series, column: Column, missing: tuple[str, ...]) -> pl.Series:
    """Return a column of raw rows as texts; null: missing."""
    texts = cleaned(texts_of(values, column.name), missing)
    forms = {unicodedata.normalize("NFC", name): name for name in column.categories if not name.isascii()}
    if forms:  # a model of an earlier release can have categories in another form
        texts = texts.replace({form: name for form, name in forms.items() if form not in column.categories})
    flags = {name.lower(): name for name in column.categories if name.lower() in ("true", "false")}
    if values.dtype == pl.Boolean or (values.dtype == pl.String and len(flags) == len(column.categories)):
        written = {way(text): name for text, name in flags.items() for way in (str.lower, str.upper, str.title)}
        return texts.replace(written)  # a CSV file has True, TRUE or true, and Parquet and JSON have booleans
    if not values.dtype.is_numeric():
        return texts
    named = pl.Series(column.categories, dtype=pl.String)
    same = pl.DataFrame({"number": numbers(named, PLAIN), "name": named}).drop_nulls()
    exact = pl.col("number").abs() < EXACT  # of longer numbers several are one float64
    same = same.filter(pl.col("number").is_unique() & exact)
    equal = values.cast(pl.Float64).replace_strict(same["number"], same["name"], default=None, return_dtype=pl.String)
    is_known = texts.is_null() | texts.is_in(named.implode())
    return pl.select(pl.when(is_known).then(texts).otherwise(pl.coalesce(equal, texts))).to_series()
