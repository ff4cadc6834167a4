"""Read the request log. A damaged file is set aside and named once; the other files are read."""

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.files import DRAFT
from ratchet.traffic.schema import SHADOW, row_schema
from ratchet.workspace import Workspace

if TYPE_CHECKING:
    import polars

__all__ = [
    "DAMAGED",
    "HOURS",
    "KEY",
    "Damaged",
    "clear_drafts",
    "find",
    "log_files",
    "log_folder",
    "read",
    "read_batches",
    "read_file",
    "read_shadow",
    "set_aside",
    "stored_files",
]

DAMAGED = ".damaged"
"""Ends the names of files that could not be read."""
HOURS = "????-??-??T??"
"""Names of the folders of hours. Others, such as .snapshot, are of the file system."""
_LOG = logging.getLogger(__name__)
_BUFFER = 1 << 20  # bytes that are read at once, of each column
_VALUES, _MOST_ROWS = 1 << 19, 256  # of a batch; a row may have a long text

KEY = ("answer", "row", "envelope", "model", "version")
"""Columns that name a row of the log: several versions may have answered it in shadow."""


class Damaged(Exception):
    """A file is damaged, and was set aside."""


def log_folder(workspace: Workspace) -> Path:
    """Return the folder of a project's request log."""
    return workspace.state / "requests"


def read(folder: Path, *, columns: Sequence[str] | None = None) -> "polars.DataFrame":
    """Return all answered rows of the log, in the order of their times; without columns if there are none.

    Columns: see `schema.table_of`. Inputs that were not kept, and columns of other models, are null.

    Args:
        columns: only these, as in `read_file`, and those that name a row and its time. Inputs can take much memory.
    """
    return _read(folder, columns, shadow=False)


def read_shadow(folder: Path, *, columns: Sequence[str] | None = None) -> "polars.DataFrame":
    """Return all rows of shadow versions, as `read` returns those that were answered."""
    return _read(folder, columns, shadow=True)


def _read(folder: Path, columns: Sequence[str] | None, *, shadow: bool) -> "polars.DataFrame":
    import polars

    chosen = None if columns is None else (*KEY, "time", *columns)
    wanted = (polars.col("envelope") == SHADOW) == shadow
    frames = [read_file(path, row_schema(), columns=chosen).filter(wanted) for path in log_files(folder)]
    frames = [rows for rows in frames if not rows.is_empty()]
    if not frames:
        return polars.DataFrame()
    rows = polars.concat(frames, how="diagonal_relaxed")
    return rows.unique(KEY, maintain_order=True).sort("time", "answer", "row")


def find(folder: Path, answer: str) -> "polars.DataFrame":
    """Return the rows of one answer, without inputs; empty if the log does not have it."""
    import polars

    columns = ["answer", "row", "time", "seconds", "envelope", "model", "version", "provenance", "key"]
    wanted = (polars.col("answer") == answer) & (polars.col("envelope") != SHADOW)
    for path in log_files(folder):
        rows = read_file(path, row_schema(), columns=columns).filter(wanted)
        if len(rows):
            return rows.unique("row").sort("row")
    return polars.DataFrame()


def log_files(folder: Path) -> list[Path]:
    """Return the files of the log: those of whole hours, then the parts."""
    return stored_files(folder, "*.parquet", f"{HOURS}/*.parquet")


def clear_drafts(folder: Path) -> None:
    """Remove the drafts of killed writers. No other process may write to the log now."""
    for pattern in (f"{DRAFT}*", f"{HOURS}/{DRAFT}*"):
        for draft in folder.glob(pattern):
            draft.unlink(missing_ok=True)


def stored_files(folder: Path, *patterns: str) -> list[Path]:
    """Return the complete files below a folder whose names match, in the order of the patterns and names."""
    paths = [path for pattern in patterns for path in sorted(folder.glob(pattern))]
    return [path for path in paths if path.is_file() and not path.name.startswith(DRAFT)]


def read_file(
    path: Path, schema: "Mapping[str, polars.DataType]", *, columns: Sequence[str] | None = None
) -> "polars.DataFrame":
    """Return the rows of a Parquet file. A damaged file has none: it is renamed to NAME.damaged, and a warning says so.

    Args:
        path: a file that Ratchet wrote.
        schema: columns that it must have, with their types.
        columns: only these; one that ends with a dot stands for all whose names begin so; None: all.

    Raises:
        FileNotFoundError: it was merged or deleted meanwhile.
        OSError: the system cannot read it now. That is no damage, and the file stays.
    """
    import polars
    import pyarrow.parquet as pq

    try:
        # pyarrow raises errors for damage where Polars can panic.
        with _damage_of(path), pq.ParquetFile(path) as file:
            begins = tuple(name for name in columns or () if name.endswith("."))
            stored = [name for name in file.schema_arrow.names if name.startswith(begins)] if begins else []
            frame = polars.from_arrow(file.read(columns and [*columns, *stored]))
            assert isinstance(frame, polars.DataFrame)
            _check(frame, {name: kind for name, kind in schema.items() if columns is None or name in columns})
            return frame
    except Damaged:
        return polars.DataFrame(schema={name: schema[name] for name in columns or schema if name in schema})


def read_batches(path: Path, schema: "Mapping[str, polars.DataType]") -> "Iterator[polars.DataFrame]":
    """Yield the rows of a Parquet file, a few at a time, after a frame without rows that has all columns.

    Args:
        path, schema: as for `read_file`.

    Raises:
        Damaged: the file is damaged, perhaps after some rows. It is set aside.
        FileNotFoundError, OSError: as `read_file`.
    """
    import polars
    import pyarrow.parquet as pq

    with _damage_of(path), pq.ParquetFile(path, buffer_size=_BUFFER) as file:
        empty = polars.from_arrow(file.schema_arrow.empty_table())
        assert isinstance(empty, polars.DataFrame)
        _check(empty, schema)
        yield empty
        # The stored size says little about the memory: equal images compress a thousandfold.
        groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
        values = sum(group.column(n).num_values for group in groups for n in range(group.num_columns))
        size = _VALUES * file.metadata.num_rows // max(1, values)
        for batch in file.iter_batches(batch_size=min(max(1, size), _MOST_ROWS)):
            rows = polars.from_arrow(batch)
            assert isinstance(rows, polars.DataFrame)
            yield rows


@contextlib.contextmanager
def _damage_of(path: Path) -> Iterator[None]:
    """Set a file aside if what was read of it is wrong.

    Raises:
        Damaged: it is.
    """
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # pyarrow's own have none
            raise OSError(error.errno, os.strerror(error.errno), str(path)) from error
        if isinstance(error, MemoryError):  # of this process; no damage
            raise
        set_aside(path, str(error))
        raise Damaged from error


def _check(frame: "polars.DataFrame", schema: "Mapping[str, polars.DataType]") -> None:
    """Raise ValueError if a column is missing or has another type."""
    for name, kind in schema.items():
        if frame.schema.get(name) != kind:
            raise ValueError(f"column {name!r} is missing or has another type")


def set_aside(path: Path, reason: str) -> None:
    """Rename a damaged file, and name it once in the log."""
    aside = path.with_name(path.name + DAMAGED)
    with contextlib.suppress(FileNotFoundError):  # another process did it
        path.rename(aside)
    lines = reason.splitlines()
    _LOG.warning(
        "%s is damaged (%s): its rows are left out, and it is kept as %s",
        path,
        lines[0] if lines else "no reason",
        aside.name,
    )
