"""The type of each column of a table, and its values in that type."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ratchet.data.reading import pool
from ratchet.data.sources.table_file import EXACT, largest
from ratchet.data.tables.digests import by_text, coded
from ratchet.data.tables.encode import cleaned, known_texts, plain_values, texts_of, without
from ratchet.data.tables.notes import far_notes, merged_notes, missing_fix, mixed_notes, point_notes, stamp_notes
from ratchet.data.tables.number_formats import (
    ONE_NUMBER,
    PLAIN,
    Ambiguous,
    Form,
    date_form,
    number_form,
    numbers,
    numeric_date_form,
    point,
    seconds,
)
from ratchet.errors import DataError

__all__ = ["CONSTANT", "GROUP_NAME", "ID_NAME", "Type", "TypedColumn", "each", "form_notes", "typed_column"]

CONSTANT = "all values are equal"
Type = Literal["numeric", "categorical", "datetime", "text", "id", "ignored"]

Item = TypeVar("Item")
Result = TypeVar("Result")

_NEARLY_ALL = 0.9  # share of the known cells that must be numbers or dates
_FEWEST_IDS = 20  # different values that a column of ids has at least
_LONG = 60  # mean characters of a text that is no category
_MOSTLY = 0.5  # share of numbers or dates from which a column of texts gets a note
_DISTINCT = 0.5  # share of different texts from which a column has texts, not categories
GROUP_NAME = re.compile(
    r"(?:^|[\W_])(?:id|uid|uuid)$|patient|subject|person|customer|client|user|member|speaker|student", re.IGNORECASE
)
"""Names of columns whose equal values are rows of one person or thing."""

ID_NAME = re.compile(
    r"(?i:(^|[\W_])(id|ids|uuid|guid|key|index|idx|nr|no|number|unnamed.*|column_1)$)|[a-z](Id|ID|No|Nr|Number)$"
)
_DATED = (
    r"^\d{1,4}[-/. ]\S+[-/. ]\d|^[A-Za-z]{3,9} \d{1,2}, \d{4}|^\d{1,2}:\d\d|^\d{4}[-/]\d\d?$|^\d\d?[-/]\d{4}$"
    r"|^[A-Za-z]{3,9}(?:-\d\d|[- ]\d{4})$|^\d{4}-?[QW]\d\d?$"
)
_MONTH = (
    r"(?:jan|ene|f[eé][bv]|m[aä]r|mrz|a[bpv]r|ma[iy]|jui?[nl]|ao[uû]|a[gu]o|aug|sep|o[ck]t|nov|d[eéi][cz])\p{L}*\.?"
)
_OTHER_DATED = (
    rf"(?i)^(?:\d\d?(?:\.|st|nd|rd|th)?[-/ ]?)?{_MONTH}[-/ ]?\d{{2,4}}(?:$|[ :T]\d)"
    rf"|^{_MONTH} +\d\d?(?:st|nd|rd|th)?,? +\d{{4}}"
    r"|^(?:\d{4}[-/.]\d\d?[-/.]\d\d?|\d\d?[-/.]\d\d?[-/.]\d{4})[- T]\D{0,4}\d\d?[:.]\d\d|^\d{8}T\d{4}(?:\d\d|Z)"
    r"|^\d{4}[-/ ]?[qw]\d\d?(?:-\d)?$|^[qw]\d\d?[-/ ]?\d{4}$"
    r"|^(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*[, ].*\d{4}|^\d\d?/[a-z]{3}/\d{4}|^\d{2,4} ?[年년]"
)
"""Months in other languages, quarters, weeks, and dates of e-mails and logs that no form reads."""
_OTHER_NUMBERS = (
    r"^\D{0,4}\d+(?:[.,]\d+)? ?(?:[kKmMbBT\x{2030}]|bn|mn|Mio\.?|Mrd\.?)$|^\D{0,4}\d\d?(?:,\d\d)+,\d{3}(?:\.\d+)?$"
    r"|^\D{0,4}\d{1,3}(?:[\x{2019}\x{b4}\x{66c}`]\d{3})+(?:[.,]\d+)?$|^(?:\d+ )?\d+/\d+$|^[-+]?\d*\.\d+D[-+]?\d+$"
    r"|^(?:\d+ ?(?:d|h|hrs?|m|min|s|sec)\.? ?){2,}$|^\d+' ?\d+\D?$|^\d+\x{b0} ?\d+"
    r"|^[+-]?[\p{Nd}.,\x{66b}\x{66c}]*[\p{Nd}--0-9][\p{Nd}.,\x{66b}\x{66c}]*$"
)
"""Factors such as 1.3k, other marks between thousands, fractions, durations and digits of other scripts."""
_MARKED_NUMBERS = (
    r"^\D{0,4}\d+[.,]\d+\D{0,4}$|^[<>~=\x{2248}\x{2264}\x{2265}\"']{1,3} ?\d+\D{0,3}$|^\d+:\d\d(?:[:.]\d+)*$"
    r"|^\D{0,3}\d+(?:[.,]\d+)? ?(?:\x{b1}|\+/?-) ?\d+(?:[.,]\d+)?\D{0,4}$"
)
"""Numbers with marks, tolerances, and minutes with seconds: of a column that is left out."""
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class TypedColumn:
    """A column with its type.

    Attributes:
        values: Float64 for numbers and dates (seconds since 1970-01-01 UTC), Enum for categories, else String;
            null: missing.
        texts: the cells as they were, for messages and the index.
        faults: rows (places in the table) of cells that are not of this type, by rule.
        form: how the cells write numbers or dates.
        why: reason for the type.
        distinct: number of different known values.
        notes: what the cells hold beside usual values, with the setting that changes it.
    """

    name: str
    type: Type
    values: pl.Series
    texts: pl.Series
    why: str
    distinct: int
    form: str = ""
    faults: Mapping[str, pl.Series] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def take(self, places: NDArray[np.int64]) -> "TypedColumn":
        """Return the column with the rows at these places."""
        return replace(self, values=self.values[places], texts=self.shown[places], faults={})

    @property
    def shown(self) -> pl.Series:
        """The values as the index has them."""
        return self.texts if self.values.dtype == pl.Float64 else self.values

    @property
    def is_feature(self) -> bool:
        return self.type in ("numeric", "categorical", "datetime")


def each(act: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Return the result for each item, such as a column; NumPy and polars work on several at once."""
    return list(pool.in_order(act, items, workers=pool.threads(0)))


def typed_column(
    values: pl.Series, *, wanted: Type | None, missing: tuple[str, ...], where: str, is_csv: bool = False
) -> TypedColumn:
    """Return a column with its type: `wanted`, or as its cells suggest.

    Raises:
        DataError: numbers or dates can be read in two ways, or values are no single values.
    """
    name = values.name
    try:
        column = _inferred(values, wanted, missing, is_csv=is_csv)
    except Ambiguous as error:
        raise DataError(
            f"{where}: column {name!r}: {error}, or set data.columns to {{{name}: categorical}} or {{{name}: ignored}}"
        ) from None
    except DataError as error:
        raise DataError(f"{where}: {error}, or list it in data.drop") from None
    if column.values.dtype == pl.Float64 and column.is_feature:
        notes = far_notes(name, values, column.values, missing) + merged_notes(name, values, column.values)
        if wanted is None and column.type == "numeric":
            notes += stamp_notes(name, column.values)
        if values.dtype == pl.String and column.type == "numeric":
            notes += point_notes(name, values.filter(column.values.is_not_null()).str.strip_chars())
        column = replace(column, notes=notes)
    is_mixed = wanted is None and column.type != "ignored" and column.values.dtype == pl.String
    if values.dtype == pl.String and (column.faults or is_mixed):
        texts = cleaned(values, missing) if missing or column.values.dtype != pl.String else column.values
        column = replace(column, notes=column.notes + _mixed_notes(column, texts, missing))
    if wanted is None and column.values.dtype == pl.String and not column.notes:
        notes = form_notes(name, column.values.drop_nulls(), is_left_out=column.type in ("id", "text"))
        column = replace(column, notes=notes)
    if wanted is not None:
        column = replace(column, type=wanted, why="data.columns")
    return replace(column, values=coded(column.values)) if column.type == "categorical" else column


def _mixed_notes(column: TypedColumn, texts: pl.Series, missing: tuple[str, ...]) -> tuple[str, ...]:
    """Return a note about a column with numbers or dates, and with other texts."""
    kind, others = "dates" if column.type == "datetime" else "numbers", pl.Series([], dtype=pl.String)
    present = texts.drop_nulls()
    if column.faults:
        odd = [places for rule, places in column.faults.items() if rule.startswith("not-a-")]
        others = texts[odd[0]] if odd else others
    elif column.distinct >= _FEWEST_IDS and _looks_mixed(present):
        form = number_form(present)
        read = numbers(present, form.form)
        if form.matches < _MOSTLY * len(present) and _looks_dated(present):
            kind, dates = "dates", date_form(present)
            read = seconds(present, dates.form) if dates.form else read
        is_other = read.is_null()
        others = present.filter(is_other) if is_other.mean() <= 1 - _MOSTLY else others  # type: ignore[operator]
    return mixed_notes(column.name, kind, others, len(present), partial(missing_fix, missing=missing, what="values"))


def _looks_mixed(texts: pl.Series) -> bool:
    """Return whether a sample has nearly enough numbers or dates: a look at all texts takes longer than the typing."""
    sample = texts.gather_every(len(texts) // 1000 + 1)
    return bool((sample.str.contains(f"{ONE_NUMBER}|{_DATED}").mean() or 0.0) >= 0.8 * _MOSTLY)  # type: ignore[operator]


def form_notes(name: str, texts: pl.Series, *, is_left_out: bool = False) -> tuple[str, ...]:
    """Return a note about texts of a column that may be dates or numbers in a form that is not read; none is null."""
    others = f"{_OTHER_NUMBERS}|{_MARKED_NUMBERS}" if is_left_out else _OTHER_NUMBERS
    for pattern, kind, form in ((_OTHER_DATED, "dates", "YYYY-MM-DD"), (others, "numbers", "1234.5")):
        if _looks_dated(texts, pattern):
            return (f"{name}: texts such as {texts[0]!r} may be {kind}. If so, write them as {form}",)
    return ()


def _inferred(values: pl.Series, wanted: Type | None, missing: tuple[str, ...], *, is_csv: bool) -> TypedColumn:
    typed = plain_values(values, values.name)
    if typed is not None and values.dtype != pl.Boolean:
        is_date = isinstance(values.dtype, pl.Date | pl.Datetime)
        typed = without(typed, missing, values)
        if wanted in ("categorical", "text", "id"):
            return _categorical(values, texts_of(values, values.name), wanted)
        if wanted == "datetime" and values.dtype.is_numeric():
            texts = cleaned(texts_of(values, values.name), missing)
            return _written(values, texts, len(texts) - texts.null_count(), wanted)
        why = "numbers" if is_csv else f"type {values.dtype} of the file"
        return _numeric(values, typed, "datetime" if is_date else "numeric", "", why)
    if values.dtype == pl.Boolean:
        texts = texts_of(values, values.name)
        plain = pl.Series(values.name, [None], dtype=pl.Float64).new_from_index(0, len(values))
    else:
        texts, codes = by_text(values)
        texts, plain = _read(texts, missing)
        if codes is not None:
            is_number = wanted in ("numeric", "datetime") or plain.count() or texts.str.contains(r"\d").any()
            if not is_number:  # and no date
                return _categorical(values, coded(texts).gather(codes), wanted)
            texts, plain = texts.gather(codes), plain.gather(codes)
    if wanted in ("categorical", "text", "id", "ignored"):
        return _categorical(values, texts, wanted)
    known = len(texts) - texts.null_count()
    is_plain = len(plain) - plain.null_count() == known and wanted != "datetime"
    if known and is_plain and point(texts.drop_nulls()) != "thousands":
        if wanted is None and _has_codes(texts, plain):
            return _categorical(values, texts, None, "numbers with leading zeros")
        return _numeric(values, plain, "numeric", "", "numbers")
    return _written(values, texts, known, wanted)


def _read(texts: pl.Series, missing: tuple[str, ...]) -> tuple[pl.Series, pl.Series]:
    """Return texts, null where they mean a missing value, and their plain numbers."""
    texts = texts_of(texts, texts.name)
    plain = numbers(texts, PLAIN)
    if plain.null_count() > texts.null_count() or missing or plain.is_nan().any():  # else there is nothing to clean
        texts = cleaned(texts, missing)
        plain = numbers(texts, PLAIN)
        texts = known_texts(texts, plain, missing)
        plain = pl.select(pl.when(texts.is_not_null()).then(plain)).to_series().fill_nan(None)
    return texts, plain


def _written(values: pl.Series, texts: pl.Series, known: int, wanted: Type | None) -> TypedColumn:
    """Return a column of texts: numbers in some form, dates, or neither."""
    present = texts.drop_nulls()
    least = 1 if wanted else max(1, int(np.ceil(_NEARLY_ALL * known)))
    if known and wanted != "datetime" and texts.dtype == pl.String:
        form = number_form(present)
        if form.matches >= least or wanted == "numeric":
            why = "numbers" if form.form == PLAIN else f"numbers written as {form.form}"
            read = numbers(texts, form.form).fill_nan(None)
            return _numeric(values, read, "numeric", "" if form.form == PLAIN else form.form, why, texts)
    if known and wanted in (None, "datetime") and values.dtype != pl.Boolean:
        form = date_form(present) if wanted or _looks_dated(present) else Form("", 0)
        if form.matches >= least or wanted == "datetime":
            written = form.form or numeric_date_form(present)
            return _numeric(values, seconds(texts, written), "datetime", written, f"dates as {written}", texts)
    return _categorical(values, texts, wanted)


def _looks_dated(texts: pl.Series, pattern: str = _DATED) -> bool:
    return bool((texts.head(1000).str.contains(pattern).mean() or 0.0) >= 0.5)  # type: ignore[operator]


def _has_codes(texts: pl.Series, plain: pl.Series) -> bool:
    """Whether numbers have leading zeros, as postal codes do."""
    zero = texts.str.starts_with("0")
    return bool(zero.any()) and bool(texts.filter(zero & ((plain >= 1) | (plain == 0))).str.contains(r"^0\d").any())


def _numeric(
    values: pl.Series, read: pl.Series, kind: Type, form: str, why: str, texts: pl.Series | None = None
) -> TypedColumn:
    """Return a column of numbers or dates."""
    read, faults = read.rechunk(), {}  # NumPy reads one chunk without a copy
    if texts is not None:
        odd = (read.is_null() & texts.is_not_null()).arg_true()
        if len(odd):
            faults["not-a-date" if kind == "datetime" else "not-a-number"] = odd
    most = largest(read)
    if most > _LARGEST:
        infinite = (read.abs() > _LARGEST).fill_null(False)
        faults["infinite-number"] = infinite.arg_true()
        read = read.set(infinite, None)
    distinct = _distinct(read) if most <= EXACT else values.filter(read.is_not_null()).n_unique()
    column = TypedColumn(values.name, kind, read, values, why, distinct, form, faults)
    known = len(read) - read.null_count()
    if not known:
        return replace(column, type="ignored", why="all values are missing")
    if distinct == 1 and known == len(read):
        return replace(column, type="ignored", why=CONSTANT)
    if kind == "numeric" and distinct == known == len(read) and distinct >= _FEWEST_IDS:
        if bool((read.diff().drop_nulls() == 1).all()) and read[0] in (0, 1):
            return replace(column, type="id", why="row numbers")
        if ID_NAME.search(values.name) and bool((read == read.floor()).all()):
            return replace(column, type="id", why="all values are different, and the name is that of an id")
    return column


def _distinct(read: pl.Series) -> int:
    """Return the number of different known values. NumPy sorts numbers faster than polars hashes them."""
    known = np.sort((read.drop_nulls() if read.null_count() else read).to_numpy())
    return int(np.count_nonzero(known[1:] != known[:-1])) + bool(len(known))


def _categorical(values: pl.Series, texts: pl.Series, wanted: Type | None, why: str = "texts") -> TypedColumn:
    """Return a column of texts: categories, ids or long texts."""
    distinct = texts.drop_nulls().n_unique()
    column = TypedColumn(values.name, "categorical", texts, values, why, distinct)
    if wanted is not None:
        return column
    present = texts.count()
    if not present:
        return replace(column, type="ignored", why="all values are missing")
    if distinct == 1 and present == len(texts):
        return replace(column, type="ignored", why=CONSTANT)
    if distinct == present and distinct >= _FEWEST_IDS:
        return replace(column, type="id", why="all values are different")
    texts, codes = by_text(texts)
    lengths = texts.str.len_chars()
    if float((lengths if codes is None else lengths.gather(codes)).mean()) > _LONG:  # type: ignore[arg-type]
        return replace(column, type="text", why="long texts")
    if distinct > _DISTINCT * present and distinct >= _FEWEST_IDS:
        return replace(column, type="text", why="most values occur once")
    return column
