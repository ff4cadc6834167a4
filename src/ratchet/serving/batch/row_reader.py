"""The rows of input files in batches, from any row on."""

import io
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeVar

from ratchet.data.sources.table_file import column_names, encoding_of, stream_csv, text_blocks
from ratchet.data.sources.typed_files import damaged_parquet, json_object
from ratchet.data.system_files import Ignored
from ratchet.errors import DataError, first_line
from ratchet.kinds import Input
from ratchet.kinds.protocol import InputError
from ratchet.kinds.registry import kind_of
from ratchet.serving.batch.input_files import InputFile, Storages

__all__ = ["Batch", "RowReader"]

_TABLES: tuple[str, ...] = (".csv", ".tsv", ".parquet", ".json", ".jsonl", ".ndjson")
_BATCH_BYTES = 32 << 20  # of the files of a batch
_LARGEST = 64 << 20  # bytes of an image, a text, or a JSON file that is no JSON Lines


Row = TypeVar("Row")
Rows = tuple[Any, list[str], int]  # values, why a row cannot be read, and the bytes of the file up to their end


@dataclass(frozen=True)
class Batch:
    """Rows that are scored together.

    Attributes:
        files: path of the file of each row.
        rows: number of each row in its file, from 1.
        values: a polars frame, or a list of image files, texts or JSON objects; of a row that cannot be read, anything.
        faults: why a row cannot be read; empty: it can.
        done: bytes of the inputs up to the end of these rows.
    """

    files: list[str]
    rows: list[int]
    values: Any
    faults: list[str]
    done: int

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, start: int, end: int) -> "Batch":
        """Return the rows from `start` to before `end`."""
        rows = slice(start, end)
        return Batch(self.files[rows], self.rows[rows], self.values[rows], self.faults[rows], self.done)


class RowReader:
    """Reads rows for a model.

    Attributes:
        notes: warnings about the files that were read.
    """

    def __init__(self, storages: Storages, input_spec: Input, *, column: str | None) -> None:
        """Take the model's input, and the column with the texts of a text model (None: `text`, or the only column).

        Raises:
            DataError: such a model takes no files.
        """
        self._kind = kind_of(input_spec)
        if not (self._kind.file_suffixes or self._kind.in_tables):
            raise DataError(
                f"files cannot be scored by a model of kind {input_spec.kind}; allowed: image, table, text. "
                "Fix: `ratchet serve`, or `ratchet generate` for a language model"
            )
        self._storages, self._input, self._column, self.notes = storages, input_spec, column, list[str]()
        self._expected = self._kind.columns_expected(input_spec, column)

    def files(self, paths: Sequence[str]) -> list[InputFile]:
        """Return the files at the paths and in the folders, which can be URLs, in the order of their names.

        Raises:
            DataError: a path has no files for the model.
        """
        suffixes = (*(_TABLES if self._kind.in_tables else ()), *self._kind.file_suffixes)
        return [file for path in paths for file in self._storages.files(path, suffixes, self._kind.files_word)]

    @property
    def ignored(self) -> Ignored:
        """Files of the listed folders that are hidden or that systems write."""
        return self._storages.ignored

    def batches(
        self, files: Sequence[InputFile], *, skip: int = 0, on_fault: Callable[[DataError], None] | None = None
    ) -> Iterator[Batch]:
        """Yield the rows of the files after the first `skip`.

        Args:
            on_fault: takes the error of files of which no row could be read; the next files follow. None: raise it.

        Raises:
            DataError: a file cannot be read, or was changed since it was listed.
        """
        done = 0
        for group in self._groups(files):
            is_whole, begun = self._is_one_row(group[0]), False
            if not is_whole or skip < len(group):
                try:
                    for batch in self._contents(group, done, on_fault) if is_whole else self._table(group[0], done):
                        begun = True
                        if part := batch.part(skip, len(batch)):
                            yield part
                        skip = max(0, skip - len(batch))
                except DataError as error:
                    if on_fault is None or begun:
                        raise
                    on_fault(error)
            else:
                skip -= len(group)
            done += sum(file.size for file in group)

    def _is_one_row(self, file: InputFile) -> bool:
        return not self._kind.in_tables or file.suffix in self._kind.file_suffixes

    def _groups(self, files: Sequence[InputFile]) -> Iterator[list[InputFile]]:
        """Yield the files in order: tables alone, and together those that are the rows of a batch."""
        group, size = list[InputFile](), 0
        for file in files:
            is_full = len(group) == self._kind.batch_rows or size + file.size > _BATCH_BYTES
            if group and (is_full or not self._is_one_row(file) or not self._is_one_row(group[0])):
                yield group
                group, size = [], 0
            group.append(file)
            size += file.size
        if group:
            yield group

    def _contents(
        self, files: list[InputFile], done: int, on_fault: Callable[[DataError], None] | None
    ) -> Iterator[Batch]:
        """Yield one batch of images or texts that are files of their own."""
        read = iter(self._storages.contents([file for file in files if file.size <= _LARGEST]))
        paths, values, faults = list[str](), list[Any](), list[str]()
        for file in files:
            content = next(read) if file.size <= _LARGEST else None
            if isinstance(content, DataError):
                if on_fault is None:
                    raise content
                on_fault(content)
                continue
            value, fault = self._value(file, content)
            paths.append(file.path)
            values.append(value)
            faults.append(fault)
        yield Batch(paths, [1] * len(paths), values, faults, done + sum(file.size for file in files))

    def _value(self, file: InputFile, content: bytes | OSError | None) -> tuple[Any, str]:
        """Return the value of a file, and why it cannot be read."""
        if content is None:
            return None, f"has {file.size >> 20:,} MiB; allowed: {_LARGEST >> 20}"
        if isinstance(content, OSError):
            return None, f"cannot be read ({content.strerror or content})"
        try:
            return self._kind.file_value(content), ""
        except InputError as error:
            return None, str(error)

    def _table(self, file: InputFile, done: int) -> Iterator[Batch]:
        first = 1
        try:
            with self._storages.opened(file) as opened:
                head = opened.read(1 << 16)
                mark, encoding = encoding_of(head)
                start = head.removeprefix(mark).decode(encoding, errors="replace").lstrip()[:1]
                read = {"{": self._json_lines, "[": self._json}.get(start, self._csv)
                for values, faults, position in (self._parquet if head[:4] == b"PAR1" else read)(file, opened):
                    rows = list(range(first, first + len(faults)))
                    yield Batch([file.path] * len(rows), rows, values, faults, done + min(position, file.size))
                    first += len(rows)
        except PermissionError as error:
            raise DataError(f"{file.path}: {error.strerror}. Fix: make it readable for this user") from None

    def _parquet(self, file: InputFile, opened: BinaryIO) -> Iterator[Rows]:
        import polars
        import pyarrow
        import pyarrow.parquet as pq
        from polars.exceptions import PanicException, PolarsError

        try:
            table = pq.ParquetFile(opened, pre_buffer=False, buffer_size=1 << 20)
            names, row = self._columns(file, table.schema_arrow.names), 0
            for part in table.iter_batches(self._kind.batch_rows, columns=names, use_threads=False):
                row += part.num_rows
                frame = polars.DataFrame(polars.from_arrow(part))
                position = file.size * row // table.metadata.num_rows
                yield self._kind.table_values(frame), [""] * frame.height, position
        except (pyarrow.ArrowException, PolarsError, PanicException, ValueError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # of the storage
            raise damaged_parquet(error, file.path) from None

    def _csv(self, file: InputFile, opened: BinaryIO) -> Iterator[Rows]:
        import polars

        size, names, notes = self._kind.batch_rows, list[str](), list[str]()
        for table in stream_csv(opened, where=file.path, needed=self._expected, is_header=self._is_header):
            header = column_names(table.header, file.path)
            names = names or self._columns(file, header)
            notes += table.notes
            frame, faults = table.named(header).select(names), table.faults()
            frame = frame.with_columns(polars.when(polars.all() != "").then(polars.all()))
            for rows in (slice(start, start + size) for start in range(0, frame.height, size)):
                yield self._kind.table_values(frame[rows]), faults[rows], opened.tell()
        self.notes += [f"{file.path}: {note}" for note in notes[:1]]

    def _is_header(self, cells: Sequence[str]) -> bool:
        """Return whether the first line of a CSV file is its header. A model of numbered columns has files without."""
        return not self._input.numbered or set(self._expected) <= {cell.strip() for cell in cells}

    def _json_lines(self, file: InputFile, opened: BinaryIO) -> Iterator[Rows]:
        blocks = text_blocks(opened, where=file.path)
        lines = enumerate((line for block in blocks for line in io.StringIO(block.decode())), start=1)
        names: list[str] | None = None
        for part in _batched((each for each in lines if not each[1].isspace()), self._kind.batch_rows):
            objects = [json_object(text) for _, text in part]
            if names is None:
                line, text = part[0]
                if objects[0] is None:
                    raise DataError(
                        f"{file.path} is neither a table nor JSON Lines: line {line} is no JSON object "
                        f"({text.strip()[:60]!r}). Fix: save a list of objects, one for each row, or JSON Lines, CSV "
                        "or Parquet"
                    )
                names = self._names(file, list(objects[0]))
            values, faults = _of_objects(objects, names)
            places = (f"line {line} " if fault else "" for (line, _), fault in zip(part, faults, strict=True))
            yield values, [place + fault for place, fault in zip(places, faults, strict=True)], opened.tell()

    def _json(self, file: InputFile, opened: BinaryIO) -> Iterator[Rows]:
        if file.size > _LARGEST:
            raise DataError(
                f"{file.path}: has {file.size >> 20:,} MiB; allowed: {_LARGEST >> 20} of JSON. Fix: save it as JSON "
                "Lines or Parquet"
            )
        try:
            objects = json.loads(b"".join(text_blocks(opened, where=file.path)))
        except ValueError as error:
            raise DataError(f"{file.path} is damaged JSON ({first_line(error)}). Fix: save it again") from None
        names = self._names(file, list(objects[0]) if objects and isinstance(objects[0], dict) else [])
        for part in _batched(objects, self._kind.batch_rows):
            yield *_of_objects(part, names), file.size

    def _columns(self, file: InputFile, header: Sequence[str]) -> list[str]:
        """Return the columns of a table that are read."""
        names = self._names(file, header)
        missing = [name for name in names if name not in header]
        if missing:
            known = ", ".join(header[:20])
            raise DataError(f"{file.path}: has no column {', '.join(map(repr, missing))}; it has {known}. Fix: add it")
        return names

    def _names(self, file: InputFile, names: Sequence[str]) -> list[str]:
        """Return the columns or keys that are read, of those of a file."""
        try:
            return self._kind.columns_read(self._input, names, self._column)
        except InputError as error:
            raise DataError(f"{file.path}: {error}") from None


def _batched(rows: Iterable[Row], size: int) -> Iterator[list[Row]]:
    waiting = iter(rows)
    while batch := list(itertools.islice(waiting, size)):
        yield batch


def _of_objects(objects: Sequence[Any], needed: Sequence[str]) -> tuple[list[Any], list[str]]:
    """Return JSON objects with the model's keys only. A row that lacks a key cannot be read, as in a request."""
    values, faults = list[Any](), list[str]()
    for value in objects:
        fault = "" if isinstance(value, dict) else "is no JSON object"
        if not fault and (absent := [key for key in needed if key not in value]):
            fault = f"has no {absent[0]!r}. Fix: add it; null is a missing value"
        values.append(None if fault else {key: value[key] for key in needed})
        faults.append(fault)
    return values, faults
