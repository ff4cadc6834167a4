"""Write the request log: one thread, a queue of limited size, and Parquet files that are complete or absent.

Requests become rows of a table a few at a time: the other threads of the process wait while this one makes many rows.
Some seconds later the rows are written to a small file (a part). At the end of an hour its parts become one file. A
killed server loses at most the last seconds.
"""

import contextlib
import logging
import math
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from filelock import FileLock, Timeout

from ratchet import files
from ratchet.traffic.log_reader import HOURS, KEY, Damaged, clear_drafts, read_batches, stored_files
from ratchet.traffic.retention import delete_excess, delete_old
from ratchet.traffic.schema import REPEATED, SHADOW, SLICE, Logged, is_sampled, row_schema, size_of, table_of

if TYPE_CHECKING:
    import polars
    import pyarrow

    from ratchet.monitoring.sketch_log import SketchLog

__all__ = ["RequestLog"]

_LOG = logging.getLogger(__name__)
_EVERY = 5.0  # seconds between two parts
_AT_ONCE = 100  # requests that become rows without a rest: about 1 ms
_CLOSE = 60.0  # seconds for which the end waits for the last file, unless its caller knows better
_PAUSE, _REST = 0.05, 0.002  # seconds until the next ones, when few and when many wait
_MOST_BYTES = 64 << 20  # of requests and rows that wait to be written
_MIB = 1 << 20
_ROW_GROUP = 4 << 20  # bytes of rows that are merged at once; compressed they can be a thousandth
_NOT_WRITTEN = "the request log cannot be written"
_AHEAD = (
    "are later than the clock, which is or was wrong. Fix: correct it, or if it is right, delete these files; above "
    "serving.log_mib they are deleted first"
)
_NOT_COUNTED = "requests cannot be counted to find drift"
_SAMPLED, _SLICES, _OPEN = 200, 12, 64  # rows of a window; parts of a window among which they are spread; windows
_PARTS_OF_LIMIT = 8  # a file of the log takes at most one eighth of log_mib, so that deletion of a file leaves the rest


_Key = tuple[str, str, str, bool]
"""Hour, model and version of rows, and whether it answered in shadow: such rows have no columns and no inputs."""


@dataclass
class _InputSample:
    """Chooses rows whose inputs are kept: at most `_SAMPLED` of a version in a window, spread over its time.

    What quiet minutes leave over is for later ones.
    """

    window: int  # seconds
    chosen: Counter[tuple[str, int]] = field(default_factory=Counter)

    def rows(self, request: Logged) -> int:
        """Return how many of the first rows of a request are chosen."""
        if request.envelope == SHADOW:
            return 0
        start = int(request.time // self.window) * self.window
        upto = int((request.time - start) * _SLICES / self.window) + 1
        key = (request.watched, start)
        number = max(0, min(len(request.predictions), math.ceil(_SAMPLED * upto / _SLICES) - self.chosen[key]))
        self.chosen[key] += number
        if len(self.chosen) > _OPEN:
            del self.chosen[min(self.chosen, key=lambda each: each[1])]
        return number


@dataclass
class _Part:
    """Rows that will be one file. `requests`: how many they are of."""

    tables: "list[pyarrow.Table]" = field(default_factory=list)
    requests: int = 0


class RequestLog:
    """The log of one server.

    Attributes:
        share: of the requests that are logged.
        lost: requests that were not written, because the disk is full or slow.
        sketches: of what is asked, to find drift; None: there are none.
        problem: why the latest could not be written, or old ones not deleted, or that files are ahead of the clock.
    """

    def __init__(
        self,
        folder: Path,
        *,
        share: float,
        inputs: str,
        days: float,
        mib: float,
        window: int = 60,
        sketches: "SketchLog | None" = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Start the thread.

        Args:
            inputs: hash, sample, keep or none.
            window: minutes of which 200 rows keep their inputs, for `sample`.
            clock: seconds since 1970.
        """
        import polars  # noqa: F401  # now: later the import would hold up requests
        import pyarrow.parquet  # noqa: F401

        self.folder, self.sketches, self.lost, self.problem = folder, sketches, 0, ""
        self.share, self._inputs, self._days, self._mib, self._clock = share, inputs, days, mib, clock
        self._sample = _InputSample(window * 60) if inputs == "sample" else None
        self._waiting: deque[Logged] = deque()
        self._parts: dict[_Key, _Part] = {}
        self._bytes, self._files = 0, 0
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="request-log", daemon=True)
        self._thread.start()

    def add(self, answer: str, logged: Callable[[], Logged]) -> None:
        """Take a request; `logged` is called only if it is sampled. Returns at once."""
        if not is_sampled(answer, self.share):
            return
        request = logged()
        size = size_of(request)
        with self._changed:
            if self._bytes + size > _MOST_BYTES:
                self.lost += 1
                if self.sketches and request.envelope != SHADOW:
                    self.sketches.count(request.watched, "lost", request.time)
                return
            self._bytes += size
            self._waiting.append(request)

    def close(self, seconds: float = _CLOSE) -> None:
        """Write what waits, and end the thread. A disk that is too slow is not waited for longer than `seconds`."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(seconds)
        if self._thread.is_alive():
            self.problem = f"the request log was not written within {seconds:g} s at the end"
            _LOG.error("%s: %s; the last requests are lost", self.folder, self.problem)

    def _work(self) -> None:
        due, is_last = time.monotonic() + _EVERY, False
        while not is_last:
            with self._changed:
                if not self._closed:
                    self._changed.wait(_PAUSE if len(self._waiting) < _AT_ONCE else _REST)
                requests = [self._waiting.popleft() for _ in range(min(_AT_ONCE, len(self._waiting)))]
                is_last = self._closed and not self._waiting
            if is_due := is_last or time.monotonic() >= due:
                due = time.monotonic() + _EVERY
            steps = self._steps(requests, is_due=is_due)
            failures = [failure for name, step in steps if (failure := self._failure(name, step))]
            if failures or is_due:
                self.problem = "; ".join(dict.fromkeys(failures))

    def _steps(self, requests: list[Logged], *, is_due: bool) -> Iterator[tuple[str, Callable[[], str | None]]]:
        """Yield the steps of a turn, each with the problem if it fails. A step may return another problem."""
        groups: dict[_Key, list[Logged]] = {}
        for request in requests:
            key = _hour(request.time), request.model, request.version, request.envelope == SHADOW
            groups.setdefault(key, []).append(request)
        for key, group in groups.items():
            yield _NOT_WRITTEN, partial(self._take, key, group)
        if self.sketches:
            yield _NOT_COUNTED, partial(self.sketches.take, requests)
        if is_due:
            while self._parts:
                yield _NOT_WRITTEN, partial(self._write, *self._parts.popitem())
            if self.sketches:
                yield _NOT_COUNTED, self.sketches.write
            yield "the request log cannot be merged", self._tidy

    def _failure(self, name: str, step: Callable[[], str | None]) -> str:
        """Do one step; the others do not depend on it. Return its problem, or why it failed; empty: it did not."""
        try:
            problem = step() or ""
        except Exception as error:  # of the disk or of pyarrow: answers go on, and the next part may succeed
            if name not in self.problem:
                _LOG.error("%s: %s: %s", self.folder, name, error)
            return f"{name}: {error}"
        if problem and problem not in self.problem:
            _LOG.warning("%s: %s", self.folder, problem)
        return problem

    def _take(self, key: _Key, group: list[Logged]) -> None:
        """Make a table of requests."""
        with self._counted(len(group), sum(map(size_of, group))):
            sampled = [self._sample.rows(request) for request in group] if self._sample else ()
            table = table_of(group, inputs=self._inputs, sampled=sampled)
        part = self._parts.setdefault(key, _Part())
        part.tables.append(table)
        part.requests += len(group)
        with self._changed:
            self._bytes += table.nbytes

    def _write(self, key: _Key, part: _Part) -> None:
        """Write rows to a file."""
        self._files += 1
        name = f"{time.time_ns()}-{os.getpid()}-{self._files}.parquet"
        with self._counted(part.requests, sum(table.nbytes for table in part.tables)):
            self._write_file(self.folder / key[0] / name, part)

    @contextlib.contextmanager
    def _counted(self, requests: int, size: int) -> Iterator[None]:
        """Free the bytes of requests at the end, and count the requests as lost if it fails."""
        try:
            yield
        except BaseException:
            self.lost += requests
            raise
        finally:
            with self._changed:
                self._bytes -= size

    def _write_file(self, path: Path, part: _Part) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        whole = pa.concat_tables(part.tables, promote_options="permissive").combine_chunks()
        self.folder.mkdir(parents=True, exist_ok=True)
        # Another process that merges deletes drafts. Inputs may be personal.
        with FileLock(self.folder / "lock"), files.draft_file(path, private=True) as draft:
            pq.write_table(whole, draft, compression="zstd", use_dictionary=_repeated(whole.column_names))

    def _tidy(self) -> str:
        """Merge the parts of past hours, and delete what is too old or too much. One process at a time.

        Returns:
            That there are files ahead of the clock; empty: there are none.
        """
        now, ahead = self._clock(), list[Path]()
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(self.folder / "lock", timeout=0):
                clear_drafts(self.folder)  # of killed servers
                if self.sketches:
                    self.sketches.tidy(days=self._days, mib=self._mib, now=now)
                hours = sorted(path for path in self.folder.glob(HOURS) if path.is_dir() and path.name < _hour(now))
                with contextlib.ExitStack() as later:  # a file that cannot be read now keeps no others, and is named
                    later.callback(lambda: ahead.extend(self._delete(now)))
                    for hour in reversed(hours):
                        later.callback(self._merge, hour)
        except Timeout:  # another server of this folder does it
            pass
        return f"{len(ahead)} files, such as {ahead[0]}, {_AHEAD}" if ahead else ""

    def _delete(self, now: float) -> list[Path]:
        """Delete what is too old or too much. Return the files that stay and are ahead of the clock."""
        names = ("*.parquet*", f"{HOURS}/*.parquet*")  # with those that were set aside
        delete_old(self.folder, stored_files(self.folder, *names), days=self._days, now=now)
        return delete_excess(stored_files(self.folder, *names), mib=self._mib, now=now)

    def _merge(self, hour: Path) -> None:
        """Make one file of the parts of an hour; several, if it is large beside log_mib."""
        wholes = stored_files(self.folder, f"{hour.name}.*.parquet")
        last = wholes[-1:]  # a part can come late, of a server that was killed
        number = int(wholes[-1].suffixes[0][1:]) if wholes else 0
        group, size = last, sum(path.stat().st_size for path in last)
        for path in stored_files(hour, "*.parquet"):
            length = path.stat().st_size
            if group and size + length > self._mib * _MIB / _PARTS_OF_LIMIT:
                self._merge_files(group, self.folder / f"{hour.name}.{number:05}.parquet")
                number, group, size = number + 1, [], 0
            group, size = [*group, path], size + length
        if group != last:
            self._merge_files(group, self.folder / f"{hour.name}.{number:05}.parquet")
        with contextlib.suppress(OSError):  # a damaged part is kept here, or another server has just written one
            hour.rmdir()

    def _merge_files(self, paths: list[Path], whole: Path) -> None:
        while paths and paths != [whole]:
            try:
                _write_merged(paths, whole)
            except Damaged:  # without this one
                paths = [path for path in paths if path.exists()]
                continue
            for path in paths:
                if path != whole:
                    path.unlink(missing_ok=True)
            break


def _write_merged(paths: list[Path], whole: Path) -> None:
    """Write the rows of several files to one, each row once, with memory for a few rows at a time."""
    import polars
    import pyarrow.parquet as pq

    schemas = [next(read_batches(path, row_schema())) for path in paths]
    empty = polars.concat(schemas, how="diagonal_relaxed")
    columns, seen = empty.to_arrow().schema, np.empty(0, np.uint64)
    options: dict[str, Any] = {"compression": "zstd", "use_dictionary": _repeated(columns.names)}
    with files.draft_file(whole, private=True) as draft, pq.ParquetWriter(draft, columns, **options) as writer:
        for group in _row_groups(paths):
            rows = polars.concat([empty, *group], how="diagonal_relaxed").unique(KEY, maintain_order=True)
            keys = rows.select(KEY).hash_rows().to_numpy()
            is_new = ~np.isin(keys, seen)
            seen = np.concatenate([seen, keys[is_new]])
            writer.write_table(rows.filter(polars.Series(is_new, dtype=polars.Boolean)).to_arrow())


def _row_groups(paths: list[Path]) -> "Iterator[list[polars.DataFrame]]":
    """Yield the rows of files in groups of about `_ROW_GROUP` bytes, each column with the type that its file has."""
    waiting: list[polars.DataFrame] = []
    size = 0
    for path in paths:
        for rows in read_batches(path, row_schema()):
            waiting.append(rows)
            size += int(rows.estimated_size())
            if size >= _ROW_GROUP:
                yield waiting
                waiting, size = [], 0
    if waiting:
        yield waiting


def _repeated(names: list[str]) -> list[str]:
    """Return the columns to store by a dictionary. Of others it doubles time and size: each row differs."""
    return [name for name in names if name in (*REPEATED, "source") or name.startswith(SLICE)]


def _hour(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H", time.gmtime(seconds))
