"""Write the request log: one thread, a queue of limited size, and Parquet files that are complete or absent.

Requests are written some seconds after their answer, to a small file (a part). At the end of an hour its parts become
one file. A killed server loses at most the last seconds.
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout

from ratchet.traffic.reading import KEY
from ratchet.traffic.schema import Logged, is_sampled, size_of, table_of

__all__ = ["RequestLog"]

_LOG = logging.getLogger(__name__)
_EVERY = 5.0  # seconds between two parts
_MOST_BYTES = 64 << 20  # of requests that wait to be written
_MOST_REQUESTS = 20_000
_DAY, _MIB = 86_400.0, 1 << 20


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
        self._waiting: list[Logged] = []
        self._bytes, self._parts = 0, 0
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
            if len(self._waiting) >= _MOST_REQUESTS or self._bytes + size > _MOST_BYTES:
                self.lost += 1
                return
            self._waiting.append(request)
            self._bytes += size

    def close(self) -> None:
        """Write what waits, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        tidied, is_last = "", False
        while not is_last:
            with self._changed:
                if not self._closed:
                    self._changed.wait(_EVERY)
                is_last = self._closed
                requests, self._waiting, self._bytes = self._waiting, [], 0
            try:
                self._write(requests)
                if tidied != (hour := _hour(time.time())):
                    self._tidy(hour)
                    tidied = hour
                self.problem = ""
            except Exception as error:  # of the disk or of pyarrow: answers go on, and the next part may succeed
                self.lost += len(requests)
                if not self.problem:
                    _LOG.error("the request log in %s cannot be written: %s", self.folder, error)
                self.problem = f"the request log cannot be written: {error}"

    def _write(self, requests: list[Logged]) -> None:
        """Write the requests as one part for each hour and kind of input."""
        groups: dict[tuple[str, str, str], list[Logged]] = {}
        for request in requests:
            groups.setdefault((_hour(request.time), request.model, request.version), []).append(request)
        for (hour, _, _), group in groups.items():
            self._parts += 1
            name = f"{time.time_ns()}-{os.getpid()}-{self._parts}.parquet"
            self._write_file(self.folder / hour / name, group)

    def _write_file(self, path: Path, requests: list[Logged]) -> None:
        import pyarrow.parquet as pq

        table = table_of(requests, inputs=self._inputs)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".draft")
        try:
            pq.write_table(table, draft, compression="zstd")
            os.chmod(draft, 0o600)  # inputs may be personal
            os.replace(draft, path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise

    def _tidy(self, current: str) -> None:
        """Make one file of each past hour, and delete what is too old or too much. One process at a time."""
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(self.folder / "lock", timeout=0):
                for hour in sorted(path for path in self.folder.iterdir() if path.is_dir() and path.name < current):
                    self._merge(hour)
                self._rotate()
        except Timeout:  # another server of this folder does it
            return

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
