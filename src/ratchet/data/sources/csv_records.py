"""The records of a CSV file by RFC 4180, the one grammar of ingest and of batch scoring.

A cell that begins with a quotation mark ends at the next single one, and a separator or a line end follows it. Inside
other cells quotation marks are ordinary characters. A file that breaks this is refused: no reader can know its rows.
"""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray

from ratchet.errors import DataError

__all__ = ["Examples", "Layout", "Record", "cells_of", "layouts", "strict_records"]

_QUOTE, _NEWLINE = b'"', ord("\n")
_BLOCK = 1 << 18  # bytes that are scanned at a time; they stay in the processor's cache
_WORD = np.dtype(">u8")  # 64 bits, the first one highest, as packbits has them in a byte
_LATER = np.array([(1 << 64 - place) - 1 for place in range(64)], np.uint64)  # bits of a word from a place on
_NOWHERE = np.zeros(0, np.int64)
_LONGEST = 16 << 20  # bytes of one record of a file that is read in blocks
_FEWEST = 10  # rows that show how the values of a column look
_ROWS = 1000  # at most
_MOST = 0.8  # share of the lines of a record that look like rows
_DISTINCT = 0.2  # largest share of distinct values in a column of classes


@dataclass(frozen=True, slots=True)
class Record:
    """One record: the line from 1 in which it begins, and its cells. An empty line has no cells."""

    line: int
    cells: list[str]


@dataclass(frozen=True)
class Layout:
    """The records of a CSV file, also of its header.

    Attributes:
        content: of the records, perhaps with more after them. Every quotation mark follows RFC 4180.
        ends: place after the last byte of each record, without its line end.
        lines: line from 1 in which each record begins.
        cells: number of cells of each record; 0: an empty line.
        is_block: whether the content is as it is in the file.
    """

    content: bytes
    ends: NDArray[np.int64]
    lines: NDArray[np.int64]
    cells: NDArray[np.int64]
    is_block: bool = True

    def record(self, number: int) -> str:
        """Return the text of a record."""
        start = self.ends[number - 1] + 1 if number else 0
        return self.content[start : self.ends[number]].decode()

    def long(self) -> Iterator[tuple[int, str]]:
        """Yield line and text of the records that have several lines."""
        last = len(self.lines) - 1
        end = self.lines[-1:] + 1 + (self.record(last).count("\n") if last >= 0 else 0)
        for number in np.flatnonzero(np.diff(self.lines, append=end) > 1):
            yield int(self.lines[number]), self.record(int(number))


def _saved(separator: str, option: str) -> str:
    return (
        f"read_csv(FILE, sep={separator!r}, {option}, dtype='str', keep_default_na=False).to_csv('table.csv', "
        "index=False); without a header line with header=None in both calls"
    )


def _unquoted(separator: str) -> str:
    save = _saved(separator, "quoting=3")
    return f"If quotation marks are ordinary characters in this file, save it with pandas: {save}"


class Examples:
    """Values of the columns, from rows at the start of the file that have no quotation mark."""

    def __init__(self, head: str, separator: str) -> None:
        """Take the start of the file."""
        self._head, self._separator, self._width = head, separator, len(cells_of(head, separator))

    @cached_property
    def _checks(self) -> dict[int, frozenset[str] | None]:
        """Known values by place of a column of few values; None: of a column of numbers."""
        plain = (line for line in self._head.split("\n")[1:-1] if line and '"' not in line)
        rows = list(islice((row for line in plain if len(row := line.split(self._separator)) == self._width), _ROWS))
        checks: dict[int, frozenset[str] | None] = {}
        for place, column in enumerate(zip(*rows, strict=True) if len(rows) >= _FEWEST else ()):
            values = [cell.strip() for cell in column if cell.strip()]
            distinct = frozenset(values)
            if values and sum(map(_is_number, values)) >= _MOST * len(values):
                checks[place] = None
            elif values and len(distinct) <= _DISTINCT * len(values):
                checks[place] = distinct
        return checks

    def warning(self, line: int, text: str) -> str | None:
        """Return a warning if the lines of a record look like rows: perhaps a quotation mark was never closed.

        The file may still be right: a text may quote rows.
        """
        is_several = self._is_several(text)
        if is_several is False:
            return None
        lines = text.split("\n")
        return (
            f"the row of line {line} holds {len(lines)} whole lines of the table, from {lines[0][:40]!r} on. It is one "
            f"row if its quotation marks are right{f'. {_unquoted(self._separator)}' if is_several else ''}"
        )

    def _is_several(self, text: str) -> bool | None:
        """Return whether the lines of a record are rows. None: they can be, and nothing decides.

        Each line of a broken record was a row, so that it has as many cells as the header, with values such as others.
        """
        lines = [line for line in text.split("\n") if line.strip()]
        if self._width < 2 or len(lines) < 2 or lines[0].count(self._separator) != self._width - 1:
            return False
        rows = [line.split(self._separator) for line in lines]
        rows = [row for row in rows if len(row) == self._width]
        if len(rows) < _MOST * len(lines):
            return False
        if not self._checks:
            return None
        return sum(map(self._fits, rows)) >= _MOST * len(lines)

    def _fits(self, row: Sequence[str]) -> bool:
        for place, known in self._checks.items():
            cell = row[place].strip(' "')
            if cell and not (_is_number(cell) if known is None else cell in known):
                return False
        return True


def _is_number(text: str) -> bool:
    return re.fullmatch(r"\s*[-+]?[\d.,]*\d[\d.,]*(?:[eE][-+]?\d+)?\s*", text) is not None


def cells_of(text: str, separator: str) -> list[str]:
    """Return the cells of the first record that is not empty; none if there is none."""
    _raise_limit()
    try:
        return next((cells for cells in csv.reader(io.StringIO(text), delimiter=separator) if cells), [])
    except csv.Error:
        return []


def _raise_limit() -> None:
    """Let cells be longer than the 128 KiB of Python's parser."""
    csv.field_size_limit(max(csv.field_size_limit(), 1 << 40))


def strict_records(lines: Iterable[str], separator: str, where: str, line: int = 1) -> Iterator[Record]:
    """Yield the records of a CSV file from a line on.

    Raises:
        DataError: a quotation mark breaks the grammar.
    """
    _raise_limit()
    pulled = list[str]()
    reader = csv.reader(_noted(lines, pulled), delimiter=separator, strict=True)
    try:
        for cells in reader:
            yield Record(line, cells)
            line += len(pulled)
            pulled.clear()
    except csv.Error as error:
        raise _broken(where, line, pulled, str(error), separator) from None


def _inner(records: Iterable[Record]) -> Iterator[Record]:
    """Yield the records without the empty lines at the end."""
    empty = list[Record]()
    for record in records:
        empty.append(record)
        if record.cells:
            yield from empty
            empty.clear()


def _noted(lines: Iterable[str], pulled: list[str]) -> Iterator[str]:
    """Pass lines on, and remember those of the current record."""
    for line in lines:
        pulled.append(line)
        yield line


def _broken(where: str, first: int, pulled: list[str], problem: str, separator: str) -> DataError:
    damaged, last = f"{where} is not a readable table", first + len(pulled) - 1
    fix = f"Fix: close it, or write it twice where it is part of a text. {_unquoted(separator)}"
    if "unexpected end of data" in problem:
        return DataError(f"{damaged}: a quotation mark in the row of line {first} is not closed. {fix}")
    row = f", in the row that begins in line {first}" if first != last else ""
    if '\\"' in pulled[-1]:
        fix = "Fix: write a quotation mark inside a cell twice, not with a backslash, such as with pandas: " + _saved(
            separator, r"escapechar='\\'"
        )
    return DataError(
        f"{damaged}: line {last}{row}: a text follows a closing quotation mark ({pulled[-1].strip()[:60]!r}). {fix}"
    )


def layouts(
    blocks: Iterable[bytes], separator: str, where: str, at_once: int | None = None, line: int = 1
) -> Iterator[Layout]:
    """Yield the records of a file in UTF-8, given in blocks that end in a newline; of one block all at once.

    `at_once`: records at a time of a file with quotation marks inside unquoted cells; None: all. `line`: of the start.

    Empty lines at the end of the file are left out.

    Raises:
        DataError: a quotation mark breaks the grammar, or a record is too long.
    """
    rest, waiting = b"", iter(blocks)
    for block in waiting:
        content = rest + block if rest else block
        layout = _scan(content, separator)
        if layout is None:
            yield from _requoted(chain([content], waiting), separator, where, line, at_once)
            return
        records = int(np.flatnonzero(layout.cells)[-1]) + 1 if layout.cells.any() else 0
        done = min(int(layout.ends[records - 1]) + 1, len(content)) if records else 0
        rest = content[done:]
        if len(rest) > _LONGEST:
            raise DataError(
                f"{where}: a row has more than {_LONGEST >> 20} MiB, from {rest[:40].decode(errors='replace')!r} on: "
                "a quotation mark is not closed. Fix: close it, or write it twice where it is part of a text"
            )
        if records:
            places = slice(0, records)
            part = Layout(content, layout.ends[places], layout.lines[places] + line - 1, layout.cells[places])
            line = int(part.lines[-1]) + part.record(records - 1).count("\n") + 1
            yield part
    if rest.strip(b"\n"):
        yield from _requoted([rest], separator, where, line, at_once)


def _requoted(blocks: Iterable[bytes], separator: str, where: str, line: int, at_once: int | None) -> Iterator[Layout]:
    """Yield the records of blocks, with each quotation mark inside an unquoted cell quoted, and lines as they were."""
    lines = chain.from_iterable(io.StringIO(block.decode()) for block in blocks)
    records = _inner(strict_records(lines, separator, where, line))
    while part := list(islice(records, at_once)):
        text = io.StringIO()
        csv.writer(text, delimiter=separator, lineterminator="\n").writerows(record.cells for record in part)
        layout = _scan(text.getvalue().encode(), separator)
        assert layout is not None, "it was written by Python's csv"
        yield replace(layout, lines=np.array([record.line for record in part]), is_block=False)


def _scan(content: bytes, separator: str) -> Layout | None:
    """Return the records that end in the content; None if a quotation mark is not where RFC 4180 has it."""
    data, mark, has_quotes = np.frombuffer(content, np.uint8), ord(separator), _QUOTE in content
    ends, marks, newlines = [_NOWHERE], [_NOWHERE], [_NOWHERE]  # marks: separators before each end
    quoted, total = False, 0  # whether the block begins inside quotation marks; separators before it
    for first in range(0, len(data), _BLOCK):
        part = data[first : first + _BLOCK]
        is_mark, closed = part == mark, np.flatnonzero(part == _NEWLINE)
        if has_quotes:
            newlines.append(closed + first)
            quotes = part == ord(_QUOTE)
            if not _is_strict(data, np.flatnonzero(quotes) + first, mark, quoted=quoted):
                return None
            inside = np.bitwise_xor.accumulate(quotes) ^ quoted
            quoted, is_mark, closed = bool(inside[-1]), is_mark & ~inside, closed[~inside[closed]]
        bits = _bits(is_mark)  # counting bits costs a quarter of listing the places of all separators
        counts, word = np.cumsum(np.bitwise_count(bits.view(np.uint64)), dtype=np.int64), closed >> 6
        ends.append(closed + first)
        later = bits[word].astype(np.uint64) & _LATER[closed & 63]
        marks.append(counts[word] - np.bitwise_count(later) + total)
        total += int(counts[-1])
    if len(data) and data[-1] != _NEWLINE and not quoted:  # the last line has no end
        ends.append(np.array([len(data)]))
        marks.append(np.array([total]))
    end = np.concatenate(ends)
    lines = np.arange(1, len(end) + 1)
    line_end = np.concatenate(newlines)
    if len(line_end) > np.count_nonzero(end < len(data)):  # cells hold line ends
        lines = np.searchsorted(line_end, np.append(-1, end[:-1]), side="right") + 1
    cells = np.where(np.diff(end, prepend=-1) == 1, 0, np.diff(np.concatenate(marks), prepend=0) + 1)
    return Layout(content, end, lines, cells)


def _bits(flags: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """Return flags as bits, 64 in a word; those of the last word that are too many are 0."""
    bits = np.packbits(flags)
    return np.pad(bits, (0, -len(bits) % _WORD.itemsize)).view(_WORD)


def _is_strict(data: NDArray[np.uint8], quotes: NDArray[np.int64], mark: int, *, quoted: bool) -> bool:
    """Return whether each quotation mark of a block opens, closes or escapes as RFC 4180 has it."""
    opening, closing = (quotes[1::2], quotes[::2]) if quoted else (quotes[::2], quotes[1::2])
    before = np.where(opening > 0, data[opening - 1], _NEWLINE)
    after = np.where(closing + 1 < len(data), data[np.minimum(closing + 1, len(data) - 1)], _NEWLINE)
    return all(
        bool(((beside == ord(_QUOTE)) | (beside == _NEWLINE) | (beside == mark)).all()) for beside in (before, after)
    )
