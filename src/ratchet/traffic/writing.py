"""Write the request log: one thread, a queue of limited size, and Parquet files that are complete or absent.

Requests become rows of a table a few at a time: the other threads of the process wait while this one makes many rows.
Some seconds later the rows are written to a small file (a part). At the end of an hour its parts become one file. A
killed server loses at most the last seconds.
"""

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from ratchet.traffic.reading import KEY
from ratchet.traffic.schema import REPEATED, SLICE, Logged, is_sampled, size_of, table_of

if TYPE_CHECKING:
    import pyarrow

__all__ = ["RequestLog"]

_LOG = logging.getLogger(__name__)
_EVERY = 5.0  # seconds between two parts
_AT_ONCE = 100  # requests that become rows without a rest: about 1 ms
_PAUSE, _REST = 0.05, 0.002  # seconds until the next ones, when few and when many wait
_MOST_BYTES = 64 << 20  # of requests and rows that wait to be written
_DAY, _MIB = 86_400.0, 1 << 20


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
        problem: why the latest could not be written; empty: they could.
    """

    def __init__(self, folder: Path, *, share: float, inputs: str, days: float, mib: float) -> None:
        """Start the thread. `inputs`: hash, keep or none."""
        import polars  # noqa: F401  # now: later the import would hold up requests
        import pyarrow.parquet  # noqa: F401

        self.folder, self.lost, self.problem = folder, 0, ""
        self.share, self._inputs, self._days, self._mib = share, inputs, days, mib
        self._waiting: deque[Logged] = deque()
        self._parts: dict[tuple[str, str, str], _Part] = {}  # by hour, model and version
        self._bytes, self._files, self._tidied = 0, 0, ""
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
                return
            self._bytes += size
            self._waiting.append(request)

    def close(self) -> None:
        """Write what waits, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        due, is_last = time.monotonic() + _EVERY, False
        while not is_last:
            with self._changed:
                if not self._closed:
                    self._changed.wait(_PAUSE if len(self._waiting) < _AT_ONCE else _REST)
                requests = [self._waiting.popleft() for _ in range(min(_AT_ONCE, len(self._waiting)))]
                is_last = self._closed and not self._waiting
            try:
                self._take(requests)
                if is_last or time.monotonic() >= due:
                    due = time.monotonic() + _EVERY
                    self._write()
                    self._tidy(_hour(time.time()))
                    self.problem = ""
            except Exception as error:  # of the disk or of pyarrow: answers go on, and the next part may succeed
                if not self.problem:
                    _LOG.error("the request log in %s cannot be written: %s", self.folder, error)
                self.problem = f"the request log cannot be written: {error}"

    def _take(self, requests: list[Logged]) -> None:
        """Make rows of requests: one table for each hour and version."""
        groups: dict[tuple[str, str, str], list[Logged]] = {}
        for request in requests:
            groups.setdefault((_hour(request.time), request.model, request.version), []).append(request)
        for key, group in groups.items():
            with self._counted(len(group), sum(map(size_of, group))):
                table = table_of(group, inputs=self._inputs)
            part = self._parts.setdefault(key, _Part())
            part.tables.append(table)
            part.requests += len(group)
            with self._changed:
                self._bytes += table.nbytes

    def _write(self) -> None:
        """Write the rows, one file for each hour and version."""
        while self._parts:
            (hour, *_), part = self._parts.popitem()
            self._files += 1
            name = f"{time.time_ns()}-{os.getpid()}-{self._files}.parquet"
            with self._counted(part.requests, sum(table.nbytes for table in part.tables)):
                self._write_file(self.folder / hour / name, part)

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

        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".draft")
        try:
            whole = pa.concat_tables(part.tables, promote_options="permissive").combine_chunks()
            # A dictionary of the other columns would double the time and the file: their values differ in each row.
            repeated = [name for name in whole.column_names if name in REPEATED or name.startswith(SLICE)]
            pq.write_table(whole, draft, compression="zstd", use_dictionary=repeated)
            os.chmod(draft, 0o600)  # inputs may be personal
            os.replace(draft, path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise

    def _tidy(self, current: str) -> None:
        """Make one file of each past hour, and delete what is too old or too much. One process at a time."""
        if self._tidied == current:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(self.folder / "lock", timeout=0):
                for hour in sorted(path for path in self.folder.iterdir() if path.is_dir() and path.name < current):
                    self._merge(hour)
                self._rotate()
        except Timeout:  # another server of this folder does it
            pass
        self._tidied = current

    def _merge(self, hour: Path) -> None:
        import polars

        parts = sorted(hour.glob("*.parquet"))
        if parts:
            draft, whole = hour.with_suffix(".draft"), hour.with_suffix(".parquet")
            earlier = [whole] if whole.exists() else []  # a part that came late, of a server that was killed
            frames = [polars.read_parquet(path) for path in (*earlier, *parts)]
            merged = polars.concat(frames, how="diagonal_relaxed").unique(KEY, maintain_order=True)
            merged.write_parquet(draft)
            os.chmod(draft, 0o600)
            os.replace(draft, whole)
        for path in (*parts, *hour.glob("*.draft")):
            path.unlink()
        with contextlib.suppress(OSError):  # another server has just written a part
            hour.rmdir()

    def _rotate(self) -> None:
        total = 0.0
        for path in sorted(self.folder.glob("*.parquet"), reverse=True):
            status = path.stat()
            total += status.st_size
            if time.time() - status.st_mtime > self._days * _DAY or total > self._mib * _MIB:
                path.unlink()


def _hour(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H", time.gmtime(seconds))
