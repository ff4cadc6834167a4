"""Reading the file that lists samples: CSV with any common separator and encoding, Parquet, JSON or JSON Lines."""

import codecs
import difflib
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import BinaryIO

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ratchet.data.reading.identify import HEAD, identify
from ratchet.data.sources.csv_records import Examples, Layout, cells_of, layouts
from ratchet.data.sources.typed_files import nested_cells, read_json, read_json_lines, read_parquet
from ratchet.data.tables.number_formats import point
from ratchet.errors import DataError

__all__ = [
    "BYTE_ORDER_MARKS", "EXACT", "FIRST_ROW", "MISSING", "SEPARATORS", "RowStart", "TableFile", "check_single_values",
    "column_names", "composed", "csv_rows", "encoding_of", "largest", "read_table", "require_column", "stream_csv",
    "text_blocks", "with_label_lists",
]  # fmt: skip

MISSING = ("", "NaN", "nan", "-NaN", "-nan", "None", "null", "NULL", "NA", "<NA>", "N/A", "n/a", "#N/A")
"""Texts that other tools write into an empty cell."""

SEPARATORS = (",", ";", "\t", "|")
EXACT = 2.0**53
"""From here two whole numbers can be one Float64."""
BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_SNIFFED = 4096  # bytes
_SHOWN = 40  # columns that a message lists
_LINES = 50  # that show how the columns are separated
_SAMPLE = 1000  # rows that show which columns may be numbers
_BLOCK = 1 << 18  # bytes that stay in the processor's cache
HEADER_BYTES = 1 << 20  # from the start of a file that hold its header
_STREAMED, _STREAMED_ROWS = 4 << 20, 20_000  # bytes, or rows, of a file that is read in parts
_LONGEST_LINE = 16 << 20  # bytes of a file that is read in parts

IsHeader = Callable[[Sequence[str]], bool]


@dataclass(frozen=True, slots=True)
class RowStart:
    """Start of reading in a file: a byte and its line, or a row group of Parquet, and `skip` rows after it."""

    position: int = 0
    line: int = 1
    skip: int = 0


FIRST_ROW = RowStart()


@dataclass(frozen=True)
class Cells:
    """The cells of a CSV file, below a first line with as many cells as there are columns."""

    content: bytes
    separator: str
    width: int

    def texts(self, columns: Sequence[int], rows: int | None = None) -> pl.DataFrame:
        """Return columns, named by their places, of the first rows (None: all) as texts.

        Cells that a row lacks are null, further cells are dropped.
        """
        table = pl.read_csv(
            self.content, columns=columns, n_rows=rows, infer_schema=False, separator=self.separator,
            truncate_ragged_lines=True,
        )  # fmt: skip
        return table.rename(dict(zip(table.columns, map(str, sorted(columns)), strict=True)))

    def typed(self, numeric: Collection[int]) -> pl.DataFrame:
        """Return all columns: as Float64 those of `numeric` that have an exact number in each cell, others as texts."""
        if not numeric or self._hides_texts():
            return self.texts(range(self.width))
        types = [pl.Float64 if place in numeric else pl.String for place in range(self.width)]
        try:
            table = pl.read_csv(self.content, schema_overrides=types, separator=self.separator)
        except pl.exceptions.ComputeError:  # a later row has a text
            return self.texts(range(self.width))
        table.columns = [str(place) for place in range(self.width)]
        read = (column for column in table if column.dtype == pl.Float64)
        others = [int(column.name) for column in read if not _is_exact(column) or _may_have_thousands(column)]
        return table.with_columns(self.texts(others)) if others else table

    def _hides_texts(self) -> bool:
        """Return whether a cell begins with a space or a further zero, which a number does not keep."""
        header_end = max(0, self.content.find(b"\n"))  # of the first line, if a name has several
        data, mark = np.frombuffer(self.content, np.uint8)[header_end:], ord(self.separator)
        before_cells = [ord(end) for end in ("\n", '"') if end.encode() in self.content]
        spaces = [ord(space) for space in " \t" if space != self.separator and space.encode() in self.content]
        for start in range(0, len(data) - 2, _BLOCK):
            part = data[start : start + _BLOCK + 2]
            before, cell, after = part[:-2], part[1:-1], part[2:]
            is_hidden = (cell == ord("0")) & (after - np.uint8(ord("0")) < 10)
            for space in spaces:
                is_hidden |= cell == space
            is_first = before == mark
            for end in before_cells:
                is_first |= before == end
            if (is_first & is_hidden).any():
                return True
        return False


@dataclass(frozen=True)
class TableFile:
    """A table and the places of its rows in the file.

    Attributes:
        table: the rows. Columns of CSV are numbered from 0; they are texts, or numbers that lose nothing of them.
        header: the names of the columns; of a CSV file without header, empty texts.
        ragged: one row per record whose number of cells differs from the header: `row`, from 1, and `value`, a text.
        nested: the same of records of JSON Lines that have a list or an object where others have a text.
        head: the start of a CSV file.
        notes: warnings.
        lines: line from 1 of each row; None: the file has no lines.
        blank: rows, from 0, that are empty lines.
        cells: of a CSV file some of whose columns may be numbers.
    """

    table: pl.DataFrame
    header: tuple[str, ...]
    ragged: pl.DataFrame
    head: str = ""
    notes: tuple[str, ...] = ()
    lines: NDArray[np.int64] | None = None
    blank: Sequence[int] = ()
    cells: Cells | None = None
    nested: pl.DataFrame = field(default_factory=lambda: _ragged([]))
    row_labels: tuple[str, ...] = ()  # columns that were the index of a pandas data frame

    def places(self, rows: Sequence[int]) -> list[str]:
        """Return the places of rows, counted from 1, for messages: "line 7" of a text file, else "row 6"."""
        if self.lines is None:
            return [f"row {row}" for row in rows]
        return [f"line {self.lines[row - 1]}" for row in rows]

    @property
    def first_lines(self) -> list[str]:
        """The header of a CSV file, also one of several lines, and the next lines that are not empty."""
        lines = self.head.lstrip("\n").split("\n")[:_LINES]
        rows = 1 + sum(name.count("\n") for name in self.header)
        return [line for line in ("\n".join(lines[:rows]), *lines[rows:]) if line.strip()]

    def named(self, names: Sequence[str]) -> pl.DataFrame:
        """Return the rows with these names of their columns."""
        return self.table.rename(dict(zip(self.table.columns, names, strict=True)))

    def faults(self) -> list[str]:
        """Return why each row cannot be read; empty: it can."""
        faults = [""] * self.table.height
        for row, value in self.ragged.rows():
            faults[row - 1] = value
        for row in self.blank if len(self.header) > 1 else ():
            faults[row] = f"{self.places([row + 1])[0]} has no cells, the header has {len(self.header)}"
        return faults

    def without_rows(self) -> "TableFile":
        """Return what gives places, without the cells, which are most of the memory of an ingest."""
        return replace(self, table=self.table.clear(), head="", cells=None)


def composed(name: str) -> str:
    """Return the name of a column without surrounding spaces, in the Unicode form NFC: macOS writes others."""
    return unicodedata.normalize("NFC", name.strip())


def column_names(header: Sequence[str], where: str) -> list[str]:
    """Return the names of the columns without surrounding spaces, in the Unicode form NFC; unnamed ones are numbered.

    Raises:
        DataError: a name is there twice, or polars cannot use it.
    """
    names = [composed(name) or f"column_{place}" for place, name in enumerate(header, start=1)]
    doubled = [name for name, count in Counter(names).items() if count > 1]
    if doubled:
        raise DataError(f"{where}: column {doubled[0]!r} is in the header twice. Fix: rename one")
    pattern = next((name for name in names if name.startswith("^") and name.endswith("$")), None)
    if pattern is not None:
        raise DataError(
            f"{where}: column {pattern!r} begins with ^ and ends with $, as a pattern of names does. Fix: rename it"
        )
    return names


def require_column(column: str, setting: str, existing: Sequence[str], where: str) -> None:
    """Check that a table has a column that a setting names.

    Raises:
        DataError: it has not; the message lists its columns, and names a near one.
    """
    if column not in existing:
        if repr(column) in existing:
            raise DataError(
                f"{where}: the names of its columns are in single quotation marks. Fix: save it with pandas: "
                f"read_csv(FILE, quotechar=\"'\").to_csv('table.csv', index=False)"
            )
        near = "".join(difflib.get_close_matches(column, existing, n=1))
        shown = ", ".join(existing[:_SHOWN]) + (", ..." if len(existing) > _SHOWN else "")
        raise DataError(
            f"{where} has no column {column!r}; it has {shown}. Fix: set {setting}{f' (to {near}?)' if near else ''}"
        )


def check_single_values(table: pl.DataFrame, where: str, *, needed: Collection[str] = ()) -> None:
    """Check that no column has lists, records or bytes; `needed` are those that cannot be dropped.

    Raises:
        DataError: naming the first such column.
    """
    for name, dtype in table.schema.items():
        if dtype.is_nested() or dtype in (pl.Binary, pl.Object):
            fix = "save one text or number in each row" if name in needed else f"set data.drop=[{name}]"
            raise DataError(f"{where}: column {name!r} has {dtype}, not single values. Fix: {fix}")


def with_label_lists(table: pl.DataFrame, labels: Collection[str], where: str) -> pl.DataFrame:
    """Return the table with texts such as ["a", "b"] for the lists of texts or numbers in its label columns.

    Raises:
        DataError: a label has a double quotation mark.
    """
    lists = [
        pl.col(name).cast(pl.List(pl.String)).list.drop_nulls()
        for name, dtype in table.schema.items()
        if name in labels and isinstance(dtype, pl.List | pl.Array) and not dtype.inner.is_nested()
    ]
    for column in table.select(lists):
        if column.explode().str.contains('"').any():
            raise DataError(f"{where}: a label in column {column.name!r} has a double quotation mark. Fix: remove it")
    texts = [pl.format('["{}"]', column.list.join('", "')).str.replace('[""]', "[]", literal=True) for column in lists]
    return table.with_columns(texts)


def read_table(
    content: bytes, *, where: str, needed: Sequence[str], is_header: IsHeader = lambda cells: True,
    drop: Collection[str] = (), may_be_numbers: Callable[[str], bool] | None = None,
) -> TableFile:  # fmt: skip
    """Read a table; the cells of CSV become texts, or numbers where the table allows them.

    Args:
        content: the bytes of the file.
        where: beginning of messages: setting and name of the file.
        needed: columns that it should have; they decide between several possible separators.
        is_header: returns whether the cells of the first line of a CSV file are the names of its columns.
        drop: columns of Parquet whose cells are not read.
        may_be_numbers: returns whether a column of CSV, by its name, may be read as numbers; None: all are texts.

    Raises:
        DataError: the file has another format, or is damaged.
    """
    if content[:4] == b"PAR1":
        table, row_labels = read_parquet(content, where, drop)
        return replace(_whole(table), row_labels=tuple(map(composed, row_labels)))
    require_text(content, where=where)
    content = _utf8(content, where)
    head = content[:HEADER_BYTES].decode(errors="replace")
    if head.lstrip()[:1] in ("[", "{"):
        return _json(content.decode(), where, {*needed, *drop})
    parts = layouts([content], mark := separator_of(head, needed), where)
    (whole,) = _tables(parts, mark, where, is_header, may_be_numbers, head=head)
    return whole


def stream_csv(
    file: BinaryIO, *, where: str, needed: Sequence[str], is_header: IsHeader, start: RowStart = FIRST_ROW,
    rows: int | None = None,
) -> Iterator[TableFile]:  # fmt: skip
    """Yield a CSV file in parts, by the rules of `read_table`; memory does not grow with the file.

    The first part may have no rows. The file can seek.

    Args:
        start: the first row that is yielded.
        rows: how many; None: all.
    """
    separator, head = _csv_head(file, where, needed)
    parts = layouts(text_blocks(file, where=where, start=start), separator, where, _STREAMED_ROWS, start.line)
    yield from _tables(parts, separator, where, is_header, head=head, start=start, rows=rows)


def _csv_head(file: BinaryIO, where: str, needed: Sequence[str]) -> tuple[str, str]:
    """Return the separator of a CSV file, and its beginning."""
    head = next(text_blocks(file, where=where, size=HEADER_BYTES), b"")[:HEADER_BYTES].decode(errors="replace")
    return separator_of(head, needed), head


def csv_rows(
    file: BinaryIO, *, where: str, needed: Sequence[str], is_header: IsHeader
) -> Iterator[tuple[int, RowStart | None]]:
    """Yield the number of rows of each part of a CSV file, and where the next part starts; None: inside a record.

    Raises:
        DataError: as `stream_csv`.
    """
    separator, head = _csv_head(file, where, needed)
    starts, above = list[RowStart](), int(is_header(cells_of(head, separator)))
    for layout in layouts(text_blocks(file, where=where, starts=starts), separator, where, _STREAMED_ROWS):
        if above >= 0:
            above += int(np.flatnonzero(layout.cells)[0])
        count, above = len(layout.lines) - max(above, 0), -1
        is_whole = layout.is_block and int(layout.ends[-1]) + 1 == len(layout.content)
        yield count, starts[-1] if starts and is_whole else None


def text_blocks(
    file: BinaryIO, *, where: str, start: RowStart = FIRST_ROW, starts: list[RowStart] | None = None,
    size: int | None = None,
) -> Iterator[bytes]:  # fmt: skip
    r"""Yield a text file, as `_utf8` returns it, in blocks that end in "\n".

    Args:
        start: position and line of the first block.
        starts: has position and line after the block that was yielded; it stays empty for UTF-16 and UTF-32.
        size: of a block, in bytes; None: 4 MiB.

    Raises:
        DataError: it is no text, it is not in its encoding, or a line is too long.
    """
    file.seek(0)
    head = file.read(HEADER_BYTES)
    require_text(head, where=where)
    mark, encoding = encoding_of(head)
    file.seek(start.position or len(mark))
    blocks: Iterator[bytes] = iter(partial(file.read, size or _STREAMED), b"")
    rest, line = b"", start.line
    for block in blocks if encoding == "utf-8" else _recoded(blocks, encoding, where):
        content = rest + block
        end = max(content.rfind(b"\n"), content.rfind(b"\r", 0, -1)) + 1
        if len(content) - end > _LONGEST_LINE:
            last = line + content.count(b"\n", 0, end)
            raise DataError(
                f"{where}: line {last} has more than {_LONGEST_LINE >> 20} MiB. Fix: save it as UTF-8 CSV or Parquet"
            )
        if end:
            text = _utf8(content[:end], where, line)
            line += text.count(b"\n")
            if starts is not None and encoding == "utf-8":
                starts[:] = [RowStart(file.tell() - len(content) + end, line)]
            yield text
        rest = content[end:]
    if rest:
        if starts is not None:
            starts.clear()
        yield _utf8(rest, where, line)


def _recoded(blocks: Iterable[bytes], encoding: str, where: str) -> Iterator[bytes]:
    """Yield blocks of a file in UTF-16 or UTF-32 in UTF-8."""
    decoder, line = codecs.getincrementaldecoder(encoding)(), 1
    for block in chain(blocks, [b""]):
        try:
            text = decoder.decode(block, final=not block).encode()
        except UnicodeDecodeError as error:
            raise _undecodable(error, encoding, where, line) from None
        line += text.count(b"\n")
        yield text


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


def _whole(table: pl.DataFrame, lines: NDArray[np.int64] | None = None) -> TableFile:
    return TableFile(table, tuple(table.columns), _ragged([]), lines=lines)


def _ragged(rows: Sequence[tuple[int, str]]) -> pl.DataFrame:
    return pl.DataFrame(list(rows), schema={"row": pl.Int64, "value": pl.String}, orient="row")


def _json(text: str, where: str, lists_allowed: Collection[str]) -> TableFile:
    if text.lstrip()[0] == "[":
        return _whole(read_json(text, where))
    lines = text.split("\n")  # other line separators may be part of a text
    kept = [line for line in lines if line.strip()]
    numbers = np.arange(1, len(lines) + 1)
    if len(kept) < len(lines):
        numbers = numbers[[bool(line.strip()) for line in lines]]
    table = read_json_lines(kept, numbers, where)
    nested = {
        place: f"{what} as {name!r}"
        for name, cells in nested_cells(kept, table).items()
        if composed(name) not in lists_allowed
        for place, what in cells.items()
    }
    return replace(_whole(table, numbers), nested=_ragged([(row + 1, nested[row]) for row in sorted(nested)]))


def _utf8(content: bytes, where: str, first: int = 1) -> bytes:
    r"""Return a file, or its lines from the first one on, in UTF-8 without byte order mark. Its lines end in "\n".

    It may have UTF-8, UTF-16 or UTF-32, with or without a byte order mark. Excel's separator line becomes an empty
    line, which keeps the line numbers.
    """
    mark, encoding = encoding_of(content)
    content = content.removeprefix(mark)
    is_ascii = content.isascii() and encoding == "utf-8"
    try:
        if encoding != "utf-8":
            content = content.decode(encoding).encode()
        elif not is_ascii:
            content.decode(encoding)
    except UnicodeDecodeError as error:
        raise _undecodable(error, encoding, where, first) from None
    if b"\r" in content:
        content = content.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    content = content[len(b"sep=;") :] if first == 1 and re.match(rb"sep=.\n", content) else content
    if is_ascii:
        return content
    return content.removeprefix(codecs.BOM_UTF8).replace(b"\n" + codecs.BOM_UTF8, b"\n")  # of appended files


def _undecodable(error: UnicodeDecodeError, encoding: str, where: str, first: int) -> DataError:
    line, byte = error.object[: error.start].count(b"\n") + first, error.object[error.start]
    return DataError(
        f"{where} is not a readable table: line {line} is not {encoding.upper()} (byte 0x{byte:02x}). "
        "Fix: save it as UTF-8 CSV"
    )


def encoding_of(content: bytes) -> tuple[bytes, str]:
    """Return the byte order mark (or nothing) and the encoding of a file that starts with these bytes."""
    mark, encoding = next((known for known in BYTE_ORDER_MARKS if content.startswith(known[0])), (b"", None))
    if encoding is None:
        head = content[:_SNIFFED]
        odd, even = head[1::2].count(0), head[::2].count(0)
        encoding = "utf-16-le" if 3 * odd > len(head) else "utf-16-be" if 3 * even > len(head) else "utf-8"
    return mark, encoding


def separator_of(text: str, needed: Sequence[str]) -> str:
    """Return the separator that gives the header the needed columns, else the most columns."""
    cells = {mark: list(map(composed, cells_of(text, mark))) for mark in SEPARATORS}
    for mark, names in cells.items():
        if needed and set(needed) <= set(names):
            return mark
    return max(cells, key=lambda mark: len(cells[mark]))  # the first of equals; the comma is the first of all


def _tables(
    parts: Iterable[Layout], separator: str, where: str, is_header: IsHeader,
    may_be_numbers: Callable[[str], bool] | None = None, *, head: str, start: RowStart = FIRST_ROW,
    rows: int | None = None,
) -> Iterator[TableFile]:  # fmt: skip
    """Yield the rows of each part of a CSV file that begins with `head`, as `stream_csv` does."""
    names, examples, is_empty, skip = cells_of(head, separator), Examples(head, separator), True, start.skip
    header = tuple(names) if (has_header := is_header(names)) else ("",) * len(names)
    for layout in parts:
        first = int(np.flatnonzero(layout.cells)[0]) + has_header if is_empty and not start.position else 0
        is_empty = False
        if 0 < len(layout.lines) - first <= skip:
            skip -= len(layout.lines) - first
            continue
        warnings = [note for line, text in layout.long() if (note := examples.warning(line, text))]
        more = (f"{len(warnings) - 1} more rows hold whole lines",) if warnings[1:] else ()
        first, skip = first + skip, 0
        part = _rows(layout, slice(first, rows if rows is None else first + rows), header, separator, may_be_numbers)
        yield replace(part, head=head, notes=(*warnings[:1], *more))
        head = ""
        if rows is not None and (rows := rows - part.table.height) <= 0:
            return
    if is_empty:
        raise DataError(
            f"{where} is not a readable table (it is empty). Fix: save it as UTF-8 CSV with one header line, or as "
            "Parquet"
        )


def _rows(
    layout: Layout, chosen: slice, header: tuple[str, ...], separator: str, may_be_numbers: Callable[[str], bool] | None
) -> TableFile:
    """Return the chosen records of a part of a CSV file."""
    lines, cells, ends = layout.lines[chosen], layout.cells[chosen], layout.ends[: chosen.stop]
    start, names = chosen.start, [str(place) for place in range(len(header))]
    ragged = [
        (row + 1, f"line {lines[row]} has {_cells(int(cells[row]))}, the header has {len(header)}")
        for row in np.flatnonzero((cells != len(header)) & (cells > 0)).tolist()
    ]
    table, numeric, all_cells = pl.DataFrame(schema=dict.fromkeys(names, pl.String)), list[int](), None
    if len(lines):
        content = layout.content
        if start != 1 or layout.cells[0] != len(header) or ends[-1] + 1 < len(content):  # else it is not copied
            body = memoryview(content)[ends[start - 1] + 1 if start else 0 : ends[-1] + 1]
            content = b"".join([separator.join(names).encode(), b"\n", body])
        all_cells = Cells(content, separator, len(header))
        if may_be_numbers and len(lines) > _SAMPLE and not ragged:
            numeric = _numeric_columns(
                all_cells, [place for place, cell in enumerate(header) if may_be_numbers(cell.strip())]
            )
        table = all_cells.typed(numeric)
        assert table.height == len(lines), f"polars found {table.height} rows, RFC 4180 has {len(lines)}"
    blank = np.flatnonzero(cells == 0).tolist()
    return TableFile(table, header, _ragged(ragged), lines=lines, blank=blank, cells=all_cells if numeric else None)


def _is_exact(read: pl.Series) -> bool:
    """Return whether each text was a number, and no two whole numbers are one."""
    return not read.null_count() and not read.is_nan().any() and largest(read) <= EXACT


def _may_have_thousands(read: pl.Series) -> bool:
    """Return whether the point of numbers can be between thousands: their texts decide."""
    if largest(read) >= 1000:
        return False
    parts = read.filter(read != read.floor()).abs()
    return bool(len(parts) and parts.min() >= 1 and (parts == parts.round(3)).all())  # type: ignore[operator]


def largest(numbers: pl.Series) -> float:
    """Return the largest absolute value; 0 if all are missing. This takes half the time of a look at each."""
    return float(max(numbers.max() or 0.0, -(numbers.min() or 0.0)))  # type: ignore[operator,arg-type]


def _numeric_columns(cells: Cells, allowed: Sequence[int]) -> list[int]:
    """Return the columns whose first cells are numbers, but no numbers of rows."""
    if not allowed:
        return []
    texts = cells.texts(allowed, _SAMPLE)
    read = texts.cast(pl.Float64, strict=False)
    return [
        int(column.name)
        for column in read
        if not column.null_count()
        and (column.diff().drop_nulls() != 1).any()
        and point(texts[column.name]) == "decimal"
    ]


def _cells(count: int) -> str:
    return "1 cell" if count == 1 else f"{count} cells"
