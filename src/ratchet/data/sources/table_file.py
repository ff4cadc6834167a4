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

__all__ = ["MISSING", "TableFile", "read_table"]

MISSING = (
    "", "NaN", "nan", "-NaN", "-nan", "None", "null", "NULL", "NA", "<NA>", "N/A", "n/a", "#N/A",
)  # fmt: skip
"""Texts that other tools write into an empty cell."""

_SEPARATORS = (",", ";", "\t", "|")
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF32_LE, "utf-32-le"), (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"),
)  # fmt: skip
_SNIFFED = 4096  # bytes


@dataclass(frozen=True)
class TableFile:
    """A table and the places of its rows in the file.

    `ragged` has one row per record whose number of cells differs from the header: `row`, from 1, and `value`, a text.
    """

    table: pl.DataFrame
    ragged: pl.DataFrame
    _text: str | None = None
    _separator: str = ","
    _lines: list[int] = field(default_factory=list)

    def places(self, rows: Sequence[int]) -> list[str]:
        """Return the places of rows, counted from 1, for messages: "line 7" of a CSV file, else "row 6"."""
        if self._text is not None and not self._lines:
            with contextlib.suppress(csv.Error):  # polars accepts some quotation marks that csv refuses
                self._lines.extend(line for line, _ in _records(self._text, self._separator))
        if len(self._lines) != self.table.height + 1:  # one line per record, and one for the header
            return [f"row {row}" for row in rows]
        return [f"line {self._lines[row]}" for row in rows]


def read_table(content: bytes, *, where: str, needed: Sequence[str]) -> TableFile:
    """Read a table; the cells of CSV become texts.

    Args:
        content: the bytes of the file.
        where: name of the file in messages.
        needed: columns that it should have; they decide between several possible separators.

    Raises:
        DataError: the file has another format, or is damaged.
    """
    if content[:4] == b"PAR1":
        return _whole(_parsed(pl.read_parquet, content, where, "Parquet"))
    kind = identify(content[:HEAD])
    if kind is not None and kind.name not in ("text", "json"):
        pointer = kind.name in ("git-lfs", "dvc", "git-annex", "zeros", "html")
        fix = kind.fix if pointer else "save it as UTF-8 CSV, JSON Lines or Parquet"
        raise DataError(f"data.manifest: {where} is {kind.description}, not a table. Fix: {fix}")
    # Excel's separator line becomes an empty line, which keeps the line numbers.
    text = re.sub(r"^sep=.\n", "\n", _decoded(content, where))
    if text.lstrip()[:1] in ("[", "{"):
        return _json(text, where)
    return _csv(text, _separator(text, needed), where)


def _whole(table: pl.DataFrame) -> TableFile:
    return TableFile(table, _ragged([]))


def _ragged(rows: Sequence[tuple[int, str]]) -> pl.DataFrame:
    return pl.DataFrame(list(rows), schema={"row": pl.Int64, "value": pl.String}, orient="row")


def _parsed(read: Callable[[io.BytesIO], pl.DataFrame], content: bytes, where: str, kind: str) -> pl.DataFrame:
    try:
        return read(io.BytesIO(content))
    except (pl.exceptions.PolarsError, OSError, ValueError) as error:
        raise DataError(f"data.manifest: {where} is damaged {kind} ({first_line(error)}). Fix: save it again") from None


def _json(text: str, where: str) -> TableFile:
    if text.lstrip()[0] == "[":
        return _whole(_parsed(_from_json, text.encode(), where, "JSON"))
    lines = [line for line in text.split("\n") if line.strip()]  # other line separators may be part of a text
    if not all(line.lstrip().startswith("{") and line.rstrip().endswith("}") for line in lines):
        raise DataError(
            f"data.manifest: {where} is one JSON object, not a table. Fix: save a list of objects with one path and "
            "one label each, JSON Lines, CSV or Parquet"
        )
    return _whole(_parsed(_from_json_lines, "\n".join(lines).encode(), where, "JSON Lines"))


# Columns and types are inferred from all objects, so that a key of late objects only is not lost.
_from_json = functools.partial(pl.read_json, infer_schema_length=None)
_from_json_lines = functools.partial(pl.read_ndjson, infer_schema_length=None)


def _decoded(content: bytes, where: str) -> str:
    """Decode a file: UTF-8, UTF-16 or UTF-32, with or without a byte order mark."""
    encoding = next((name for mark, name in _BYTE_ORDER_MARKS if content.startswith(mark)), None)
    if encoding is None:
        head = content[:_SNIFFED]
        odd, even = head[1::2].count(0), head[::2].count(0)
        encoding = "utf-16-le" if 3 * odd > len(head) else "utf-16-be" if 3 * even > len(head) else "utf-8"
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise DataError(
            f"data.manifest: {where} is not a readable table: line {line} is not {encoding.upper()} "
            f"(byte 0x{content[error.start]:02x}). Fix: save it as UTF-8 CSV"
        ) from None
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def _separator(text: str, needed: Sequence[str]) -> str:
    """Return the separator that gives the header the needed columns, else the most columns."""
    header = next((line for line in text.splitlines()[:50] if line.strip()), "")
    cells = {mark: [cell.strip() for cell in _cells(header, mark)] for mark in _SEPARATORS}
    for mark, names in cells.items():
        if set(needed) <= set(names):
            return mark
    return max(cells, key=lambda mark: len(cells[mark]))  # the first of equals; the comma is the first of all


def _cells(line: str, separator: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=separator), [])
    except csv.Error:
        return []


def _csv(text: str, separator: str, where: str) -> TableFile:
    table = problem = None
    try:
        table = pl.read_csv(text.encode(), infer_schema=False, separator=separator)
    except (pl.exceptions.PolarsError, OSError, ValueError) as error:
        problem = error
    # polars fills a short record with nulls. Without a null in the last column no record is short.
    if table is not None and table.width > 1 and not table[table.columns[-1]].null_count():
        return TableFile(table, _ragged([]), text, separator)
    damaged = f"data.manifest: {where} is not a readable table"
    fix = "save it as UTF-8 CSV with one header line, or as Parquet"
    lines: list[int] = []
    try:
        records = []
        for line, cells in _records(text, separator):
            lines.append(line)
            records.append(cells)
    except csv.Error as error:
        line = lines[-1] + 1 if lines else 1
        raise DataError(f"{damaged}: line {line} or a line after it is not CSV ({error}). Fix: {fix}") from None
    if not records:
        raise DataError(f"{damaged} ({first_line(problem) if problem else 'it is empty'}). Fix: {fix}")
    header = records.pop(0)
    ragged = [
        (row, f"line {lines[row]} has {_fields(len(cells))}, the header has {len(header)}")
        for row, cells in enumerate(records, start=1)
        if cells and len(cells) != len(header)
    ]
    if table is None:
        doubled = [name for at, name in enumerate(header) if name in header[:at]]
        if doubled:
            raise DataError(f"data.manifest: {where}: column {doubled[0]!r} is in the header twice. Fix: rename one")
        rows = [[cell or None for cell in (*cells, *[""] * len(header))[: len(header)]] for cells in records]
        table = pl.DataFrame(rows, schema=dict.fromkeys(header, pl.String), orient="row")
    elif table.height != len(records):  # the two readers interpret a quotation mark differently
        ragged = []
    return TableFile(table, _ragged(ragged), text, separator, lines)


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
