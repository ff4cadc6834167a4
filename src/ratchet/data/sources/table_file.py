"""Reading the file that lists samples: CSV with any common separator and encoding, Parquet, JSON or JSON Lines."""

import codecs
import contextlib
import csv
import functools
import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import polars as pl

from ratchet.data.reading.identify import HEAD, identify
from ratchet.errors import DataError, first_line

__all__ = [
    "HEADER_BYTES", "MISSING", "SEPARATORS", "TableFile", "cells_of", "encoding_of", "read_table", "require_text",
    "separator_of",
]  # fmt: skip

MISSING = (
    "", "NaN", "nan", "-NaN", "-nan", "None", "null", "NULL", "NA", "<NA>", "N/A", "n/a", "#N/A",
)  # fmt: skip
"""Texts that other tools write into an empty cell."""

SEPARATORS = (",", ";", "\t", "|")
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF32_LE, "utf-32-le"), (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"),
)  # fmt: skip
_LONG_CELLS = 1000  # cells of several lines in a column that are checked
_SNIFFED = 4096  # bytes
_LINES = 50  # that show how the columns are separated
HEADER_BYTES = 1 << 20
"""Bytes from the start of a file that hold its header."""


@dataclass(frozen=True)
class TableFile:
    """A table and the places of its rows in the file.

    `ragged` has one row per record whose number of cells differs from the header: `row`, from 1, and `value`, a text.
    """

    table: pl.DataFrame
    ragged: pl.DataFrame
    _content: bytes | None = None  # of a CSV file, as UTF-8
    _separator: str = ","
    _has_header: bool = True
    _lines: list[int] = field(default_factory=list)

    def places(self, rows: Sequence[int]) -> list[str]:
        """Return the places of rows, counted from 1, for messages: "line 7" of a CSV file, else "row 6"."""
        if not rows:
            return []
        shift = 0 if self._has_header else 1  # the line of the names that were given
        if self._content is not None and not self._lines:
            if b'"' not in self._content and self._content.rstrip(b"\n").count(b"\n") == self.table.height:
                return [f"line {row + 1 - shift}" for row in rows]  # every line is a record
            with contextlib.suppress(csv.Error):  # polars accepts some quotation marks that csv refuses
                self._lines.extend(line for line, _ in _records(self._content.decode(), self._separator))
        if len(self._lines) != self.table.height + 1:  # one line per record, and one for the header
            return [f"row {row}" for row in rows]
        return [f"line {self._lines[row] - shift}" for row in rows]

    @property
    def first_lines(self) -> list[str]:
        """The first lines of a CSV file that are not empty."""
        lines = (self._content or b"")[:HEADER_BYTES].decode(errors="replace").split("\n")
        return [line for line in lines[:_LINES] if line.strip()]

    @property
    def header(self) -> tuple[str, ...]:
        """The cells of the header as they are in the file."""
        if self._content is None:
            return tuple(self.table.columns)
        head = self._content[:HEADER_BYTES].decode(errors="replace")
        return tuple(next(_records(head, self._separator), (1, list(self.table.columns)))[1])


def read_table(content: bytes, *, where: str, needed: Sequence[str], names: Sequence[str] | None = None) -> TableFile:
    """Read a table; the cells of CSV become texts.

    Args:
        content: the bytes of the file.
        where: beginning of messages: setting and name of the file.
        needed: columns that it should have; they decide between several possible separators.
        names: columns of a CSV file without header; None: the first line is the header.

    Raises:
        DataError: the file has another format, or is damaged.
    """
    if content[:4] == b"PAR1":
        return _whole(_parsed(pl.read_parquet, content, where, "Parquet"))
    require_text(content, where=where)
    content = _utf8(content, where)
    # Excel's separator line becomes an empty line, which keeps the line numbers.
    content = content[len(b"sep=;") :] if re.match(rb"sep=.\n", content) else content
    head = content[:HEADER_BYTES].decode(errors="replace")
    if head.lstrip()[:1] in ("[", "{"):
        return _json(content.decode(), where)
    separator = separator_of(head, needed)
    if names is not None:
        content = separator.join(names).encode() + b"\n" + content
    return _csv(content, separator, where, has_header=names is None)


def require_text(content: bytes, *, where: str) -> None:
    """Check that a file that starts with these bytes is a text.

    Raises:
        DataError: it has another format.
    """
    kind = identify(content[:HEAD])
    if kind is not None and kind.name not in ("text", "json"):
        pointer = kind.name in ("git-lfs", "dvc", "git-annex", "zeros", "html")
        fix = kind.fix if pointer else "save it as UTF-8 CSV, JSON Lines or Parquet"
        raise DataError(f"{where} is {kind.description}, not a table. Fix: {fix}")


def _whole(table: pl.DataFrame) -> TableFile:
    return TableFile(table, _ragged([]))


def _ragged(rows: Sequence[tuple[int, str]]) -> pl.DataFrame:
    return pl.DataFrame(list(rows), schema={"row": pl.Int64, "value": pl.String}, orient="row")


def _parsed(read: Callable[[io.BytesIO], pl.DataFrame], content: bytes, where: str, kind: str) -> pl.DataFrame:
    try:
        return read(io.BytesIO(content))
    except (pl.exceptions.PolarsError, OSError, ValueError) as error:
        raise DataError(f"{where} is damaged {kind} ({first_line(error)}). Fix: save it again") from None


def _json(text: str, where: str) -> TableFile:
    if text.lstrip()[0] == "[":
        return _whole(_parsed(_from_json, text.encode(), where, "JSON"))
    lines = [line for line in text.split("\n") if line.strip()]  # other line separators may be part of a text
    if not all(line.lstrip().startswith("{") and line.rstrip().endswith("}") for line in lines):
        raise DataError(
            f"{where} is one JSON object, not a table. Fix: save a list of objects, one for each row, "
            "or JSON Lines, CSV or Parquet"
        )
    return _whole(_parsed(_from_json_lines, "\n".join(lines).encode(), where, "JSON Lines"))


# Columns and types are inferred from all objects, so that a key of late objects only is not lost.
_from_json = functools.partial(pl.read_json, infer_schema_length=None)
_from_json_lines = functools.partial(pl.read_ndjson, infer_schema_length=None)


def _utf8(content: bytes, where: str) -> bytes:
    """Return a file in UTF-8 without byte order mark, with lines that end in a newline.

    It may have UTF-8, UTF-16 or UTF-32, with or without a byte order mark.
    """
    mark, encoding = encoding_of(content)
    content = content.removeprefix(mark)
    try:
        if encoding != "utf-8":
            content = content.decode(encoding).encode()
        elif not content.isascii():
            content.decode(encoding)
    except UnicodeError as error:
        start = error.start if isinstance(error, UnicodeDecodeError) else 0
        line = content[:start].count(b"\n") + 1
        raise DataError(
            f"{where} is not a readable table: line {line} is not {encoding.upper()} "
            f"(byte 0x{content[start]:02x}). Fix: save it as UTF-8 CSV"
        ) from None
    if b"\r" in content:
        content = content.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return content.replace(b"\n" + codecs.BOM_UTF8, b"\n")  # of a file that was appended to another one


def encoding_of(content: bytes) -> tuple[bytes, str]:
    """Return the byte order mark (or nothing) and the encoding of a file that starts with these bytes."""
    mark, encoding = next((known for known in _BYTE_ORDER_MARKS if content.startswith(known[0])), (b"", None))
    if encoding is None:
        head = content[:_SNIFFED]
        odd, even = head[1::2].count(0), head[::2].count(0)
        encoding = "utf-16-le" if 3 * odd > len(head) else "utf-16-be" if 3 * even > len(head) else "utf-8"
    return mark, encoding


def separator_of(text: str, needed: Sequence[str]) -> str:
    """Return the separator that gives the header the needed columns, else the most columns."""
    header = next((line for line in text.splitlines()[:_LINES] if line.strip()), "")
    cells = {mark: [cell.strip() for cell in cells_of(header, mark)] for mark in SEPARATORS}
    for mark, names in cells.items():
        if set(needed) <= set(names):
            return mark
    return max(cells, key=lambda mark: len(cells[mark]))  # the first of equals; the comma is the first of all


def cells_of(line: str, separator: str) -> list[str]:
    """Return the cells of one line of a CSV file; none if it is no CSV."""
    try:
        return next(csv.reader([line], delimiter=separator), [])
    except csv.Error:
        return []


def _csv(content: bytes, separator: str, where: str, *, has_header: bool) -> TableFile:
    table = problem = None
    try:
        table = pl.read_csv(content, infer_schema=False, separator=separator)
    except (pl.exceptions.PolarsError, OSError, ValueError) as error:
        problem = error
    # polars fills a short record with nulls. Without a null in the last column no record is short.
    is_quoted = b'"' in content
    inner = is_quoted and re.search(rb'[^%b\n"]"[^%b\n"]' % ((re.escape(separator).encode(),) * 2), content)
    if table is not None and table.width > 1 and not inner and not table[table.columns[-1]].null_count():
        if is_quoted:
            _check_closed(table, separator, where)
        return TableFile(table, _ragged([]), content, separator, has_header)
    plain = _without_quotes(content, separator, has_header=has_header)
    return _by_records(content, separator, where, table, problem, has_header=has_header) if plain is None else plain


def _check_closed(table: pl.DataFrame, separator: str, where: str) -> None:
    """Check that no cell holds whole lines of the table, because a quotation mark was never closed."""
    for name in table.columns:
        long = table[name].filter(table[name].str.contains("\n", literal=True).fill_null(False))
        for cell in long.head(_LONG_CELLS):
            inner = cell.split("\n")[1:-1]
            if inner and all(line.count(separator) == table.width - 1 for line in inner):
                raise DataError(
                    f"{where}: one cell of column {name!r} holds {len(inner)} whole lines of the table, from "
                    f"{cell[:40]!r} on: a quotation mark is not closed. Fix: close it, or write it twice where it is "
                    "part of a text"
                )


def _without_quotes(content: bytes, separator: str, *, has_header: bool) -> TableFile | None:
    """Read a file in which every line is a record, because nothing is quoted; None if it is another file."""
    if b'"' in content:
        return None
    try:
        table = pl.read_csv(content, infer_schema=False, separator=separator, truncate_ragged_lines=True)
        listed = pl.read_csv(content, infer_schema=False, separator="\x01", has_header=False, quote_char=None)
    except (pl.exceptions.PolarsError, OSError, ValueError):
        return None
    lines = listed.to_series().drop_nulls() if listed.width == 1 else pl.Series([], dtype=pl.String)
    if table.width < 2 or len(lines) != table.height + 1 or any("_duplicated_" in name for name in table.columns):
        return None
    cells = lines.str.count_matches(separator, literal=True) + 1
    wrong = (cells != cells[0]).arg_true()
    if len(wrong) and b"\n\n" in content:  # then a row is not its line
        return None
    first = 1 if has_header else 0
    ragged = [
        (row, f"line {row + first} has {_fields(count)}, the header has {cells[0]}")
        for row, count in zip(wrong, cells.gather(wrong), strict=True)
    ]
    return TableFile(table, _ragged(ragged), content, separator, has_header)


def _by_records(
    content: bytes, separator: str, where: str, table: pl.DataFrame | None, problem: Exception | None, *,
    has_header: bool,
) -> TableFile:  # fmt: skip
    """Read a file record by record. `table` is the result of polars; None: it has the `problem`."""
    damaged = f"{where} is not a readable table"
    fix = "save it as UTF-8 CSV with one header line, or as Parquet"
    shift = 0 if has_header else 1
    lines: list[int] = []
    try:
        records = []
        for line, cells in _records(content.decode(), separator):
            lines.append(line)
            records.append(cells)
    except csv.Error as error:
        line = (lines[-1] + 1 if lines else 1) - shift
        raise DataError(f"{damaged}: line {line} or a line after it is not CSV ({error}). Fix: {fix}") from None
    if not records:
        raise DataError(f"{damaged} ({first_line(problem) if problem else 'it is empty'}). Fix: {fix}")
    header = records.pop(0)
    ragged = [
        (row, f"line {lines[row] - shift} has {_fields(len(cells))}, the header has {len(header)}")
        for row, cells in enumerate(records, start=1)
        if cells and len(cells) != len(header)
    ]
    if table is None:
        doubled = [name for at, name in enumerate(header) if name in header[:at]]
        if doubled:
            raise DataError(f"{where}: column {doubled[0]!r} is in the header twice. Fix: rename one")
        rows = [[cell or None for cell in (*cells, *[""] * len(header))[: len(header)]] for cells in records]
        table = pl.DataFrame(rows, schema=dict.fromkeys(header, pl.String), orient="row")
    elif table.height != len(records):  # the two readers interpret a quotation mark differently
        ragged = []
    return TableFile(table, _ragged(ragged), content, separator, has_header, lines)


def _records(text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Yield each record with the line that it begins in. Empty lines before the header are skipped."""
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))  # the default is 128 KiB; polars has no limit
    reader = csv.reader(io.StringIO(text), delimiter=separator, strict=True)
    started, before = False, 0
    for cells in reader:
        started = started or bool(cells)
        if started:
            yield before + 1, cells
        before = reader.line_num


def _fields(count: int) -> str:
    return "1 field" if count == 1 else f"{count} fields"
