"""Read a CSV file record by record, in memory that does not grow with the file."""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from ratchet.data.sources.table_file import HEADER_BYTES, encoding_of, require_text, separator_of
from ratchet.errors import DataError

__all__ = ["Record", "RecordFile", "text_lines"]

_LONGEST = 16 << 20  # characters of one record
_FIX = "save it as UTF-8 CSV with one header line, or as Parquet"


@dataclass(frozen=True, slots=True)
class Record:
    """One row of the file: the line in which it begins, and its cells. An empty line has no cells."""

    line: int
    cells: list[str]


class RecordFile:
    """A CSV file with a header.

    Attributes:
        header: names of the columns, without surrounding spaces.
    """

    def __init__(self, file: BinaryIO, *, where: str, needed: Sequence[str]) -> None:
        """Read the header.

        Args:
            file: opened at its start; it can seek.
            where: beginning of messages.
            needed: columns that it should have; they decide between several possible separators.

        Raises:
            DataError: it is no CSV file, or a name is in the header twice.
        """
        self._where, self._pulled, self._size = where, list[str](), 0
        lines = text_lines(file, where=where)
        head = "".join(line for line, _ in zip(lines, range(100), strict=False))
        self._separator = separator_of(re.sub(r"^sep=.\n", "\n", head), needed)
        self._records = self._read(text_lines(file, where=where))
        first = next((record for record in self._records if record.cells), None)
        if first is None:
            raise DataError(f"{where} is not a readable table (it is empty). Fix: {_FIX}")
        self.header = [name.strip() for name in first.cells]
        doubled = [name for at, name in enumerate(self.header) if name in self.header[:at]]
        if doubled:
            raise DataError(f"{where}: column {doubled[0]!r} is in the header twice. Fix: rename one")

    def records(self) -> Iterator[Record]:
        """Yield the rows after the header. Empty lines at the end of the file are no rows.

        Raises:
            DataError: a line cannot be decoded, or a quotation mark is wrong.
        """
        empty = list[Record]()
        for record in self._records:
            if not record.cells:
                empty.append(record)
                continue
            yield from empty
            empty.clear()
            yield record

    def _read(self, lines: Iterator[str]) -> Iterator[Record]:
        """Yield the records of the whole file. Python's parser takes as many lines as a record has."""
        csv.field_size_limit(max(csv.field_size_limit(), 2 * _LONGEST))  # the default is 128 KiB
        reader = csv.reader(self._note(lines), delimiter=self._separator, strict=True)
        line = 1
        try:
            for cells in reader:
                if len(self._pulled) > 2:
                    self._check_closed(line, len(cells))
                self._pulled.clear()
                self._size = 0
                yield Record(line, cells)
                line = reader.line_num + 1
        except csv.Error as error:
            raise DataError(
                f"{self._where} is not a readable table: line {line} or a line after it is not CSV ({error}). "
                f"Fix: {_FIX}"
            ) from None

    def _note(self, lines: Iterator[str]) -> Iterator[str]:
        """Pass lines on, and remember those of the current record."""
        for line in lines:
            self._pulled.append(line)
            self._size += len(line)
            if self._size > _LONGEST:
                raise DataError(
                    f"{self._where}: a row has more than {_LONGEST >> 20} MiB, from {self._pulled[0][:40]!r} on: "
                    "a quotation mark is not closed. Fix: close it, or write it twice where it is part of a text"
                )
            yield line

    def _check_closed(self, line: int, width: int) -> None:
        """Check that no cell holds whole lines of the table, because a quotation mark was never closed."""
        inner = self._pulled[1:-1]
        if width > 1 and all(text.count(self._separator) == width - 1 for text in inner):
            raise DataError(
                f"{self._where}: the row of line {line} holds {len(inner)} whole lines of the table: a quotation mark "
                "is not closed. Fix: close it, or write it twice where it is part of a text"
            )


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
        text.detach()  # the file stays open
