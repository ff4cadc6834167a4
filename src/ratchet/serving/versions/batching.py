"""Batches without a timer: a model that is free computes all that waits, and what arrives meanwhile is the next batch.

One thread computes, so that the event loop stays free for requests. A batch that takes about as long as waking that
thread is computed in the event loop. A request waits in a queue of limited size, and is refused at once if it would not
be answered within its deadline.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ratchet.serving.formats.raw_inputs import Arrays
from ratchet.serving.versions.loaded import SIZES, LoadedVersion

__all__ = ["Batcher", "Overloaded"]

_FORGET = 0.98  # of the times of earlier batches, per batch
_LARGEST = SIZES[-1]
_SHORT = 0.001  # seconds of a batch that the event loop computes; waking the thread and the loop takes about 0.2 ms
Key = tuple[object, ...]


class Overloaded(Exception):
    """The request would not be answered within its deadline. `retry_after`: seconds until it may be."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"the server is busy for about {retry_after:.2f} s")
        self.retry_after = retry_after


@dataclass
class _Job:
    """A request in the queue. Jobs with the same key can be computed together; a job without arrays runs alone."""

    key: Key
    rows: int
    deadline: float  # on the clock of `time.monotonic`
    future: "asyncio.Future[Any]"
    loop: asyncio.AbstractEventLoop
    run: Callable[[Arrays], Any]
    arrays: Arrays = ()
    may_be_short: bool = False  # its code is not a user's, and cannot hang


@dataclass
class _Duration:
    """Seconds of a batch as a + b * rows, by least squares over the latest batches."""

    sums: tuple[float, ...] = (0.0,) * 5  # of 1, n, n*n, t, n*t

    def add(self, rows: int, seconds: float) -> None:
        latest = (1, rows, rows * rows, seconds, rows * seconds)
        self.sums = tuple(_FORGET * before + value for before, value in zip(self.sums, latest, strict=True))

    def of(self, rows: int) -> float:
        """Return the expected seconds for this many rows in batches of the largest size; 0 before the first batch."""
        count, n, nn, t, nt = self.sums
        if not count:
            return 0.0
        spread = count * nn - n * n
        slope = max(0.0, (count * nt - n * t) / spread) if spread > 1e-9 * nn * count else t / max(n, 1.0)
        start = max(0.0, (t - slope * n) / count)
        return float(start * -(-rows // _LARGEST) + slope * rows)


class Batcher:
    """The queue and the thread that computes.

    Attributes:
        computed: called with the rows of each batch.
    """

    def __init__(self, *, queue_rows: int) -> None:
        """Start the thread. `queue_rows`: rows that may wait."""
        self.computed: Callable[[int], None] = lambda rows: None
        self._queue_rows = queue_rows
        self._jobs: deque[_Job] = deque()
        self._waiting = 0  # rows
        self._busy_until = 0.0  # expected end of the batch that is computed
        self._changed = threading.Condition()
        self._closed = False
        self._idle = False  # the thread waits to be notified
        self._dispatching = False  # `_dispatch` is about to run
        self._duration = _Duration()
        self._thread = threading.Thread(target=self._work, name="batches", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Rows in the queue."""
        return self._waiting

    @property
    def is_busy(self) -> bool:
        """Whether a request would wait for others."""
        return self._waiting > 0 or not self._idle

    async def predict(self, loaded: LoadedVersion, arrays: Arrays, *, deadline: float) -> NDArray[np.float32]:
        """Return the version's predictions for the rows, computed together with other requests for it.

        Args:
            arrays: as `LoadedVersion.predict` takes them.
            deadline: on the clock of `time.monotonic`.

        Raises:
            Overloaded: it would be exceeded, or too many rows wait.
        """
        # Texts of another length would be filled up, and rows of other requests must not change the result.
        key = (id(loaded), *(array.shape[1:] for array in arrays))
        may_be_short = loaded.engine == "onnxruntime"
        predictions: NDArray[np.float32] = await self._submit(
            key, len(arrays[0]), deadline, loaded.predict, arrays, may_be_short=may_be_short
        )
        return predictions

    async def call(self, function: Callable[[], Any], *, rows: int, deadline: float) -> Any:
        """Return the function's result. It runs in the thread between two batches.

        Raises:
            Overloaded: too much waits.
        """
        return await self._submit((object(),), rows, deadline, lambda _: function())

    def _submit(
        self,
        key: Key,
        rows: int,
        deadline: float,
        run: Callable[[Arrays], Any],
        arrays: Arrays = (),
        *,
        may_be_short: bool = False,
    ) -> "asyncio.Future[Any]":
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        with self._changed:
            now = time.monotonic()
            wait = max(0.0, self._busy_until - now) + self._duration.of(self._waiting)
            # An idle model tries each request, since the estimate may be that of an unusual batch.
            too_late = wait > 0 and now + wait + self._duration.of(rows) > deadline
            if too_late or (self._waiting and self._waiting + rows > self._queue_rows):
                raise Overloaded(max(wait, 0.01))
            self._jobs.append(_Job(key, rows, deadline, future, loop, run, arrays, may_be_short))
            self._waiting += rows
            if self._idle and not self._dispatching:
                self._dispatching = True
                loop.call_soon(self._dispatch)  # after the other requests that have arrived
        return future

    def _dispatch(self) -> None:
        """Compute what waits if it is a short batch; otherwise wake the thread. Runs in the event loop."""
        with self._changed:
            self._dispatching = False
            if not self._idle:  # the thread takes what waits
                return
            is_short = 0.0 < self._duration.of(self._waiting) < _SHORT and all(job.may_be_short for job in self._jobs)
            jobs = self._taken() if is_short else []
            if self._jobs:
                self._idle = False
                self._changed.notify()
        if jobs:
            _settle(list(zip([job.future for job in jobs], self._results(jobs), strict=True)))

    def close(self) -> None:
        """Answer what waits, and end the thread."""
        with self._changed:
            self._closed, self._idle = True, False
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while jobs := self._next():
            results = self._results(jobs)
            self._busy_until = 0.0  # before the answers: a client may ask again at once
            _answer(jobs, results)
            del jobs, results  # so that an idle thread keeps no old version in memory

    def _results(self, jobs: list[_Job]) -> list[Any]:
        """Return the result of each job, or its exception. After an error each job runs alone, so that one fails."""
        try:
            arrays = tuple(np.concatenate(parts) for parts in zip(*(job.arrays for job in jobs), strict=True))
            began = time.monotonic()
            result = jobs[0].run(arrays)
            if not arrays:
                return [result]
            self._duration.add(len(arrays[0]), time.monotonic() - began)
            self.computed(len(arrays[0]))
            ends = list(accumulate(job.rows for job in jobs))
            return [result[end - job.rows : end] for job, end in zip(jobs, ends, strict=True)]
        except (Exception, SystemExit) as error:  # of a library or of a user's model
            if len(jobs) == 1:  # asyncio would end the event loop for a SystemExit
                return [error if isinstance(error, Exception) else RuntimeError(f"the model's code raised {error!r}")]
            return [self._results([job])[0] for job in jobs]

    def _next(self) -> list[_Job]:
        """Wait for jobs; return the first one with all others that fit into its batch; empty: the end."""
        while True:
            with self._changed:
                while not self._jobs and not self._closed:
                    self._busy_until, self._idle = 0.0, True
                    while self._idle:
                        self._changed.wait()
                if not self._jobs:
                    return []
                jobs = self._taken()
                if jobs:
                    self._busy_until = time.monotonic() + self._duration.of(sum(job.rows for job in jobs))
                    return jobs

    def _taken(self) -> list[_Job]:
        """Take the jobs of one batch from the queue. Jobs that are late or whose client has gone are dropped."""
        now, chosen, skipped, rows = time.monotonic(), list[_Job](), list[_Job](), 0
        late = []
        while self._jobs and rows < _LARGEST:  # a long queue is not read to its end for each batch
            job = self._jobs.popleft()
            if job.future.cancelled():
                self._waiting -= job.rows
            elif job.deadline < now:
                self._waiting -= job.rows
                late.append(job)
            elif not chosen or (job.key == chosen[0].key and rows + job.rows <= _LARGEST):
                self._waiting -= job.rows
                chosen.append(job)
                rows += job.rows
            else:
                skipped.append(job)
        self._jobs.extendleft(reversed(skipped))
        _answer(late, [Overloaded(max(0.01, self._duration.of(self._waiting)))] * len(late))
        return chosen


def _answer(jobs: "list[_Job]", results: Any) -> None:
    """Pass each job its result, or the exception that it is. All jobs of a loop are passed in one call."""
    pairs = list(zip(jobs, results, strict=True))
    for loop in {id(job.loop): job.loop for job in jobs}.values():
        loop.call_soon_threadsafe(_settle, [(job.future, result) for job, result in pairs if job.loop is loop])


def _settle(pairs: "list[tuple[asyncio.Future[Any], Any]]") -> None:
    for future, result in pairs:
        if future.done():  # its client has gone
            continue
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)
