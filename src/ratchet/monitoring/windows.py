"""Rows of the request log by version and window. The log is read file by file, and answers are counted once."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ratchet.traffic.log_reader import KEY, log_files, read_file
from ratchet.traffic.retention import time_of
from ratchet.traffic.schema import SHADOW, row_schema

if TYPE_CHECKING:
    import polars

__all__ = ["WindowRows", "first_hour", "pieces"]

_HOUR = 3600
_File = tuple[Path, int]
"""A file of the log, and the time of its change in nanoseconds: a merged file can grow."""


class WindowRows(NamedTuple):
    """Rows of one version in one window, from one file. `version`: NAME/VERSION. `start`: seconds since 1970."""

    version: str
    start: int
    rows: "polars.DataFrame"


def first_hour(folder: Path) -> int | None:
    """Return the start of the oldest hour in the log, in seconds since 1970; None: it is empty."""
    return min(_files_by_hour(folder), default=None)


def pieces(
    folder: Path, begin: int, end: int, *, window: int, columns: Sequence[str] | None = None
) -> Iterator[WindowRows]:
    """Yield the answered rows of the log from `begin` to `end`, in the order of hours, files, versions and windows.

    Rows of shadow versions are left out. A row that two files have, after a merge that was interrupted, comes once.

    Args:
        folder: of the log.
        begin, end: seconds since 1970; both are starts of windows.
        window: seconds.
        columns: besides those of the key and the time; None: all.
    """
    wanted = None if columns is None else [*KEY, "time", *columns]
    for hour, files in sorted(_files_by_hour(folder).items()):
        if begin - _HOUR < hour < end:
            for rows in _rows_of_hour(folder, hour, files, wanted):
                yield from _by_window(rows, begin, end, window)


def _rows_of_hour(
    folder: Path, hour: int, files: list[_File], columns: list[str] | None
) -> "Iterator[polars.DataFrame]":
    """Yield the rows of an hour by files, each row once. The log is listed again only if one of them is gone."""
    import polars as pl

    seen, done = np.empty(0, np.uint64), set[_File]()
    while files:
        try:
            rows = read_file(files[0][0], row_schema(), columns=columns)
        except FileNotFoundError:  # merged or deleted
            files = [file for file in _files_by_hour(folder).get(hour, ()) if file not in done]
            continue
        done.add(files[0])
        files = files[1:]
        rows = rows.filter(pl.col("envelope") != SHADOW)
        rows = rows.unique(KEY, maintain_order=True)
        keys = rows.select(KEY).hash_rows().to_numpy()
        is_new = ~np.isin(keys, seen)
        seen = np.concatenate([seen, keys[is_new]])
        yield rows.filter(pl.Series(is_new, dtype=pl.Boolean))


def _files_by_hour(folder: Path) -> dict[int, list[_File]]:
    """Return the files of the log by their hours, in one look at the folder."""
    hours: dict[int, list[_File]] = {}
    for path in log_files(folder):
        with contextlib.suppress(FileNotFoundError):  # merged or deleted
            hours.setdefault(_hour_of(path), []).append((path, path.stat().st_mtime_ns))
    return hours


def _by_window(rows: "polars.DataFrame", begin: int, end: int, window: int) -> Iterator[WindowRows]:
    import polars as pl

    seconds = pl.col("time").dt.epoch("s")
    rows = rows.with_columns(served=pl.format("{}/{}", "model", "version"), start=seconds // window * window)
    rows = rows.filter((pl.col("start") >= begin) & (pl.col("start") < end)).sort(
        "served", "start", maintain_order=True
    )
    for (version, start), group in rows.group_by(("served", "start"), maintain_order=True):
        yield WindowRows(str(version), int(str(start)), group)


def _hour_of(path: Path) -> int:
    return int(time_of(path)) - _HOUR
