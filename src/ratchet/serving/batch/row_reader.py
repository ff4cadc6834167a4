"""Rows of input files: counted, and read in batches from any row on."""

import io
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeVar

from ratchet.data.reading.input_files import InputFile, Storages
from ratchet.data.sources.table_file import (
    FIRST_ROW,
    HEADER_BYTES,
    RowStart,
    column_names,
    csv_rows,
    encoding_of,
    stream_csv,
    text_blocks,
)
from ratchet.data.sources.typed_files import DoubledKey, damaged_parquet, unique_keys
from ratchet.data.tables.encode import other_spellings
from ratchet.errors import DataError
from ratchet.kinds import Input
from ratchet.kinds.protocol import InputError
from ratchet.kinds.registry import kind_of
from ratchet.serving.formats.request_formats import read_json_value

__all__ = ["Batch", "RowRange", "RowReader"]

_TABLES: tuple[str, ...] = (".csv", ".tsv", ".parquet", ".json", ".jsonl", ".ndjson")
_BATCH_BYTES = 32 << 20  # of the files of a batch
_LARGEST = 64 << 20  # bytes of an image, a text, or a JSON file that is no JSON Lines


_NO_OBJECT = "is no JSON object with finite numbers"
Row = TypeVar("Row")
Rows = tuple[Any, list[str]]  # values, and why a row cannot be read
Counted = Iterator[tuple[int, RowStart | None]]  # rows of a part of a file, and where the next part starts


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows of a file.

    Attributes:
        first: number of the first row, from 1.
        rows: how many; None: all.
        start: where reading starts.
    """

    file: InputFile
    first: int = 1
    rows: int | None = None
    start: RowStart = FIRST_ROW


@dataclass(frozen=True)
class Batch:
    """Rows that are scored together.

    Attributes:
        files: path of the file of each row.
        rows: number of each row in its file, from 1.
        values: a polars frame, or a list of image files, texts or JSON objects; of a row that cannot be read, anything.
        faults: why a row cannot be read; empty: it can.
    """

    files: list[str]
    rows: list[int]
    values: Any
    faults: list[str]

    def __len__(self) -> int:
        return len(self.rows)


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
                "models of this kind of data score no files; allowed: models of images, tables and texts. Fix: "
                "`ratchet serve` or MLflow's predict; `ratchet generate` for a language model"
            )
        self._storages, self._input, self._column, self.notes = storages, input_spec, column, list[str]()
        self._expected = self._kind.columns_expected(input_spec, column)

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Endings of the files that are read in a folder."""
        return (*(_TABLES if self._kind.in_tables else ()), *self._kind.file_suffixes)

    def files(self, paths: Sequence[str]) -> list[InputFile]:
        """Return the files at the paths and in the folders, which can be URLs, in the order of their names.

        Raises:
            DataError: a path has no files for the model.
        """
        return [file for path in paths for file in self._storages.files(path, self.suffixes, self._kind.files_word)]

    @property
    def left_out(self) -> list[str]:
        """Say how many files of the listed folders are not read: hidden ones, those of systems, and other kinds."""
        return [each.text for each in (self._storages.ignored, self._storages.others) if each.files]

    def batches(
        self, ranges: Sequence[RowRange], *, on_fault: Callable[[DataError], None] | None = None
    ) -> Iterator[Batch]:
        """Yield the rows of the ranges.

        Args:
            on_fault: takes the error of files of which no row could be read; the next files follow. None: raise it.

        Raises:
            DataError: a file cannot be read, or was changed since it was listed.
        """
        for group in self._groups(ranges):
            is_begun = False
            try:
                files = [each.file for each in group]
                for batch in self._contents(files, on_fault) if self._is_one_row(files[0]) else self._table(group[0]):
                    is_begun = True
                    yield batch
            except DataError as error:
                if on_fault is None or is_begun:
                    raise
                on_fault(error)

    def count(self, file: InputFile) -> list[tuple[int, RowStart]]:
        """Return the places in a file where reading can start, each with the number of rows before it; all rows last.

        Raises:
            DataError: the file cannot be read, or was changed since it was listed.
        """
        starts = [(0, FIRST_ROW)]
        if self._is_one_row(file):
            return [*starts, (1, FIRST_ROW)]
        total = 0
        with self._opened_table(file) as (opened, layout):
            for rows, start in layout.count(file, opened):
                total += rows
                starts += [(total, start)] if start else []
        return [*starts, (total, FIRST_ROW)]

    def _is_one_row(self, file: InputFile) -> bool:
        return not self._kind.in_tables or file.suffix in self._kind.file_suffixes

    def _groups(self, ranges: Sequence[RowRange]) -> Iterator[list[RowRange]]:
        """Yield the ranges in order: tables alone, and together files that are the rows of a batch."""
        group, size = list[RowRange](), 0
        for each in ranges:
            is_full = len(group) == self._kind.batch_rows or size + each.file.size > _BATCH_BYTES
            if group and (is_full or not self._is_one_row(each.file) or not self._is_one_row(group[0].file)):
                yield group
                group, size = [], 0
            group.append(each)
            size += each.file.size
        if group:
            yield group

    def _contents(self, files: list[InputFile], on_fault: Callable[[DataError], None] | None) -> Iterator[Batch]:
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
        yield Batch(paths, [1] * len(paths), values, faults)

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

    def _table(self, chosen: RowRange) -> Iterator[Batch]:
        first = chosen.first
        with self._opened_table(chosen.file) as (opened, layout):
            for values, faults in layout.read(chosen, opened):
                rows = list(range(first, first + len(faults)))
                yield Batch([chosen.file.path] * len(rows), rows, values, faults)
                first += len(rows)

    @contextmanager
    def _opened_table(self, file: InputFile) -> Iterator[tuple[BinaryIO, "_Layout"]]:
        """Open a table, and find out how it is laid out."""
        try:
            with self._storages.opened(file) as opened:
                head = opened.read(1 << 16)
                mark, encoding = encoding_of(head)
                start = head.removeprefix(mark).decode(encoding, errors="replace").lstrip()[:1]
                texts = {"{": _Layout(self._json_lines, _count_json_lines), "[": _Layout(self._json, _count_json)}
                csv = _Layout(self._csv, self._count_csv)
                yield opened, _Layout(self._parquet, _count_parquet) if head[:4] == b"PAR1" else texts.get(start, csv)
        except OSError as error:
            if file.size >= 0 and not isinstance(error, PermissionError):
                raise
            reason = error.strerror or error
            raise DataError(f"{file.path}: {reason}. Fix: make it readable for this user, or remove it") from None

    def _parquet(self, chosen: RowRange, opened: BinaryIO) -> Iterator[Rows]:
        import polars

        file, size, skip = chosen.file, self._kind.batch_rows, chosen.start.skip
        with _parquet_errors(file):
            table = _parquet_file(opened)
            header = self._spelled(table.schema_arrow.names)
            names = self._columns(file, header)
            read = set(names)
            stored = {old: new for old, new in zip(table.schema_arrow.names, header, strict=True) if new in read}
            groups = range(chosen.start.position, table.metadata.num_row_groups)
            rows = table.metadata.num_rows if chosen.rows is None else chosen.rows
            for part in table.iter_batches(size, row_groups=groups, columns=list(stored), use_threads=False):
                part, skip = part[skip:], max(0, skip - part.num_rows)
                if not part.num_rows:
                    continue
                part = part[:rows]
                rows -= part.num_rows
                frame = polars.DataFrame(polars.from_arrow(part)).rename(stored)
                yield self._kind.table_values(frame), [""] * frame.height
                if not rows:
                    return

    def _csv(self, chosen: RowRange, opened: BinaryIO) -> Iterator[Rows]:
        import polars

        file, size, names, notes = chosen.file, self._kind.batch_rows, list[str](), list[str]()
        layout = self._csv_layout(file)
        for table in stream_csv(opened, start=chosen.start, rows=chosen.rows, **layout):
            header = self._spelled(column_names(table.header, file.path))
            self._check_width(file, table.header)
            names = names or self._columns(file, header)
            notes += table.notes
            frame, faults = table.named(header).select(names), table.faults()
            frame = frame.with_columns(polars.when(polars.all() != "").then(polars.all()))
            for rows in (slice(start, start + size) for start in range(0, frame.height, size)):
                yield self._kind.table_values(frame[rows]), faults[rows]
        self.notes += [f"{file.path}: {note}" for note in notes[:1]]

    def _check_width(self, file: InputFile, header: Sequence[str]) -> None:
        """Check that the rows of a file without a header have the columns of the training file, which has none."""
        widths = self._input.widths
        if widths and not any(header) and len(header) not in widths:
            names = ", ".join(
                self._expected if len(self._expected) <= 20 else (*self._expected[:3], "...", self._expected[-1])
            )
            raise DataError(
                f"{file.path}: has no header, and {len(header)} cells in a row, where the training file has "
                f"{widths[0]}; only labels after all other columns may be absent. Fix: keep each column in its "
                f"place, empty if it is not known, or add a header line that names each cell in order, with {names}"
            )

    def _csv_layout(self, file: InputFile) -> dict[str, Any]:
        return {"where": file.path, "needed": self._expected, "is_header": self._is_header}

    def _count_csv(self, file: InputFile, opened: BinaryIO) -> Counted:
        return csv_rows(opened, **self._csv_layout(file))

    def _is_header(self, cells: Sequence[str]) -> bool:
        """Return whether the first line of a CSV file is its header. A model of numbered columns has files without."""
        return not self._input.numbered or set(self._expected) <= {cell.strip() for cell in cells}

    def _json_lines(self, chosen: RowRange, opened: BinaryIO) -> Iterator[Rows]:
        file, start = chosen.file, chosen.start
        line, text = next(_json_texts(text_blocks(opened, where=file.path, size=HEADER_BYTES)))
        if not isinstance(first := _line_value(text), dict):
            raise DataError(
                f"{file.path} is neither a table nor JSON Lines: line {line} {_NO_OBJECT} "
                f"({text.strip()[:60]!r}). Fix: save a list of objects, one for each row, or JSON Lines, CSV "
                "or Parquet"
            )
        names = self._names(file, self._spelled(list(first)))
        lines = _json_texts(text_blocks(opened, where=file.path, start=start), start.line)
        for part in _batched(_chosen(lines, chosen), self._kind.batch_rows):
            values, faults = _of_objects([unique_keys(text, _line_value(text)) for _, text in part], names)
            places = (f"line {line} " if fault else "" for (line, _), fault in zip(part, faults, strict=True))
            yield values, [place + fault for place, fault in zip(places, faults, strict=True)]

    def _json(self, chosen: RowRange, opened: BinaryIO) -> Iterator[Rows]:
        objects = _json_objects(chosen.file, opened)
        first = next((row for row in objects if isinstance(row, dict)), {})
        names = self._names(chosen.file, self._spelled(list(first)))
        for part in _batched(_chosen(objects, chosen), self._kind.batch_rows):
            yield _of_objects(part, names)

    def _spelled(self, names: Sequence[str]) -> list[str]:
        """Return the names of a file, those that mean a column of the model as the model writes it."""
        others = other_spellings(names, self._expected)
        return [others.get(name, name) for name in names]

    def _columns(self, file: InputFile, header: Sequence[str]) -> list[str]:
        """Return the columns of a table that are read."""
        names = self._names(file, header)
        columns = set(header)
        missing = [name for name in names if name not in columns]
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


@dataclass(frozen=True)
class _Layout:
    """Functions that read and count the rows of a table."""

    read: Callable[[RowRange, BinaryIO], Iterator[Rows]]
    count: Callable[[InputFile, BinaryIO], Counted]


def _parquet_file(opened: BinaryIO) -> Any:
    import pyarrow.parquet as pq

    return pq.ParquetFile(opened, pre_buffer=False, buffer_size=1 << 20)


@contextmanager
def _parquet_errors(file: InputFile) -> Iterator[None]:
    """Turn errors of a damaged file into user errors."""
    import pyarrow
    from polars.exceptions import PanicException, PolarsError

    try:
        yield
    except (pyarrow.ArrowException, PolarsError, PanicException, ValueError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of the storage
        raise damaged_parquet(error, file.path) from None


def _count_parquet(file: InputFile, opened: BinaryIO) -> Counted:
    with _parquet_errors(file):
        groups = _parquet_file(opened).metadata
        for group in range(groups.num_row_groups):
            yield groups.row_group(group).num_rows, RowStart(group + 1)


def _json_texts(blocks: Iterable[bytes], line: int = 1) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not empty, with their numbers from `line` on."""
    lines = enumerate((text for block in blocks for text in io.StringIO(block.decode())), line)
    return ((number, text) for number, text in lines if not text.isspace())


def _line_value(text: str) -> Any:
    """Return what a line of JSON says; None if it is damaged or has an infinite number."""
    try:
        return read_json_value(text.encode(), "")
    except InputError:
        return None


def _count_json_lines(file: InputFile, opened: BinaryIO) -> Counted:
    starts = list[RowStart]()
    for block in text_blocks(opened, where=file.path, starts=starts):
        yield sum(1 for _ in _json_texts([block])), starts[-1] if starts else None


def _json_objects(file: InputFile, opened: BinaryIO) -> list[Any]:
    if file.size > _LARGEST:
        raise DataError(
            f"{file.path}: has {file.size >> 20:,} MiB; allowed: {_LARGEST >> 20} of JSON. Fix: save it as JSON "
            "Lines or Parquet"
        )
    try:
        content = b"".join(text_blocks(opened, where=file.path))
        objects: list[Any] = unique_keys(content.decode(), read_json_value(content, file.path))
    except InputError as error:
        raise DataError(f"{error}. Fix: save it again") from None
    return objects


def _count_json(file: InputFile, opened: BinaryIO) -> Counted:
    yield len(_json_objects(file, opened)), None


def _chosen(rows: Iterable[Row], chosen: RowRange) -> Iterator[Row]:
    skip = chosen.start.skip
    return itertools.islice(rows, skip, None if chosen.rows is None else skip + chosen.rows)


def _batched(rows: Iterable[Row], size: int) -> Iterator[list[Row]]:
    waiting = iter(rows)
    while batch := list(itertools.islice(waiting, size)):
        yield batch


def _of_objects(objects: Sequence[Any], needed: Sequence[str]) -> tuple[list[Any], list[str]]:
    """Return JSON objects with the model's keys only. A row that lacks a key cannot be read, as in a request."""
    values, faults = list[Any](), list[str]()
    for value in objects:
        fault = "" if isinstance(value, dict) else value.fault if isinstance(value, DoubledKey) else _NO_OBJECT
        if not fault and not value.keys() >= set(needed):
            others = other_spellings(value, needed)
            value = {others.get(key, key): cell for key, cell in value.items()}
        if not fault and (absent := [key for key in needed if key not in value]):
            fault = f"has no {absent[0]!r}. Fix: add it; null is a missing value"
        values.append(None if fault else {key: value[key] for key in needed})
        faults.append(fault)
    return values, faults
