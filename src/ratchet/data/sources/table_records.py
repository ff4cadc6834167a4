"""Read a CSV file record by record, in memory that does not grow with the file."""

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import BinaryIO

from ratchet.data.sources.csv_records import Examples, Record, strict_records
from ratchet.data.sources.table_file import HEADER_BYTES, column_names, encoding_of, require_text, separator_of
from ratchet.errors import DataError

__all__ = ["RecordFile", "text_lines"]

_LONGEST = 16 << 20  # characters of one record
_FIX = "save it as UTF-8 CSV with one header line, or as Parquet"


class RecordFile:
    """A CSV file, read by the rules of `ratchet.data.sources.csv_records`.

    Attributes:
        header: names of the columns, without surrounding spaces.
        notes: warnings about the records that were read.
    """

    def __init__(self, file: BinaryIO, *, where: str, needed: Sequence[str], numbered: bool = False) -> None:
        """Read the header.

        Args:
            file: opened at its start; it can seek.
            where: beginning of messages.
            needed: columns that it should have; they decide between several possible separators.
            numbered: whether these are numbered. Then a file whose first line does not name them has no header.

        Raises:
            DataError: it is no CSV file, or a name is in the header twice.
        """
        self._where, self.notes = where, list[str]()
        head = "".join(_first(text_lines(file, where=where), HEADER_BYTES))
        self._separator = separator_of(head, needed)
        self._examples = Examples(head, self._separator)
        self._records = strict_records(_bounded(text_lines(file, where=where), where), self._separator, where)
        first = next((record for record in self._records if record.cells), None)
        if first is None:
            raise DataError(f"{where} is not a readable table (it is empty). Fix: {_FIX}")
        self._first = list[Record]()
        if numbered and not set(needed) <= {name.strip() for name in first.cells}:
            self._first, first = [first], replace(first, cells=[""] * len(first.cells))
        self.header = column_names(first.cells, where)

    def records(self) -> Iterator[Record]:
        """Yield the rows after the header. Empty lines at the end of the file are no rows.

        Raises:
            DataError: a line cannot be decoded, or a quotation mark is wrong.
        """
        empty = list[Record]()
        for record in chain(self._first, self._records):
            if not record.cells:
                empty.append(record)
                continue
            if "\n" in record.text:
                self.notes += filter(None, [self._examples.check(record.line, record.text, self._where)])
            yield from empty
            empty.clear()
            yield record


def _first(lines: Iterable[str], characters: int) -> Iterator[str]:
    """Yield the lines up to this number of characters."""
    for line in lines:
        yield line
        characters -= len(line)
        if characters <= 0:
            return


def _bounded(lines: Iterable[str], where: str) -> Iterator[str]:
    """Check that no quotation mark stays open for very long: then the rest of the file would be one row in memory."""
    size, start, is_open = 0, "", False
    for line in lines:
        size, start = (size, start) if is_open else (0, line)
        size, is_open = size + len(line), is_open ^ bool(line.count('"') % 2)
        if size > _LONGEST:
            raise DataError(
                f"{where}: a row has more than {_LONGEST >> 20} MiB, from {start[:40]!r} on: "
                "a quotation mark is not closed. Fix: close it, or write it twice where it is part of a text"
            )
        yield line


def text_lines(file: BinaryIO, *, where: str) -> Iterator[str]:
    r"""Yield the lines of a text file from its start, each with its "\n", in any encoding that `encoding_of` knows.

    Raises:
        DataError: it is no text, it is not in this encoding, or a line is too long.
    """
    file.seek(0)
    head = file.read(HEADER_BYTES)
    require_text(head, where=where)
    mark, encoding = encoding_of(head)
    file.seek(len(mark))
    text, number = io.TextIOWrapper(file, encoding=encoding), 0
    try:
        while line := text.readline(_LONGEST + 1):
            number += 1
            if len(line) > _LONGEST:
                raise DataError(f"{where}: line {number} has more than {_LONGEST >> 20} MiB. Fix: {_FIX}")
            yield "\n" if number == 1 and re.fullmatch(r"sep=.\n", line) else line.removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where} is not a readable table: line {number + 1} or a line after it is not {encoding.upper()} "
            f"(byte 0x{error.object[error.start]:02x}). Fix: save it as UTF-8 CSV"
        ) from None
    finally:
        if not file.closed:
            text.detach()  # the file stays open
