"""Batches without a timer: a model that is free computes all that waits, and what arrives meanwhile is the next batch.

One thread reads the requests and computes, so that the event loop stays free. A batch that takes about as long as
waking that thread is computed in the event loop. A request waits in a queue of limited size, and is refused at once if
it would not be answered within its deadline. A request of many rows is computed in pieces, in turns with the others.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from starlette.requests import ClientDisconnect

from ratchet.kinds.protocol import Arrays
from ratchet.serving.lifetime import Lifetime
from ratchet.serving.versions.durations import Duration, Slack
from ratchet.serving.versions.loaded import SIZES, LoadedVersion

__all__ = ["Batcher", "Computed", "Overloaded", "Raw"]

_LARGEST = SIZES[-1]
_SHORT = 0.001  # seconds of a batch that the event loop computes; waking the thread and the loop takes about 0.2 ms
_READ = 0.02  # seconds of reading after which a batch is computed
_READ_BYTES = 1 << 20  # of values after which they are encoded: no deadline ends that
_CLOSE = 0.25  # seconds for which `close` waits for the batch that is computed
Key = tuple[object, ...]


class Overloaded(Exception):
    """The request would not be answered within its deadline. `retry_after`: seconds until it may be."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"the server is busy for about {retry_after:.2f} s")
        self.retry_after = retry_after


@dataclass(frozen=True)
class Raw:
    """A request that is not read yet.

    Attributes:
        read: returns an object with `arrays`, `rows` and `unencoded`, the values that `complete` encodes.
        size: in bytes.
        complete: adds the arrays to several such objects of one version, and returns them.
    """

    read: Callable[[], Any]
    size: int
    complete: Callable[[list[Any]], list[Any]] = list


class Computed(NamedTuple):
    """A request that the thread has read and computed: predictions, or None for one without arrays.

    `seconds` are those from its arrays to its predictions.
    """

    request: Any
    predictions: Any
    seconds: float


@dataclass(eq=False)
class _Job:
    """A request in the queue. Jobs with the same key can be computed together.

    A raw job is read first. A job with turns runs alone, one turn at a time.
    """

    lifetime: Lifetime
    future: "asyncio.Future[Any]"
    loaded: LoadedVersion | None = None
    rows: int = 1  # that wait; of a raw job: expected
    key: Key = ()
    arrays: Arrays = ()
    raw: Raw | None = None
    request: Any = None
    ready: float = 0.0  # since when it waits for the model
    turns: Iterator[Any] | None = None
    tokens: int = 0  # of each turn, at most
    parts: list[Any] = field(default_factory=list)  # results so far
    submitted: float = 0.0
    expected: float = 0.0  # seconds from `submitted` to the answer
    may_be_short: bool = False  # its code is not a user's, and cannot hang

    @property
    def is_over(self) -> bool:
        """Whether its client has gone."""
        return self.future.cancelled() or self.lifetime.has_left()

    def with_arrays(self, arrays: Arrays, now: float) -> None:
        """Wait for the model with these rows."""
        # Texts of another length would be filled up, and rows of other requests must not change the result.
        self.key = (id(self.loaded), *(array.shape[1:] for array in arrays))
        self.arrays, self.rows, self.raw, self.ready = arrays, len(arrays[0]), None, now


class Batcher:
    """The queue and the thread that computes.

    Attributes:
        computed: called with the rows of each batch.
    """

    def __init__(self, *, queue_rows: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Start the thread. `queue_rows`: rows that may wait. `clock`: that of the deadlines, in seconds."""
        self.computed: Callable[[int], None] = lambda rows: None
        self._queue_rows, self._clock = queue_rows, clock
        self._jobs: deque[_Job] = deque()
        self._raw: deque[_Job] = deque()
        self._waiting = 0  # rows
        self._waiting_bytes = 0  # that are not read yet
        self._waiting_tokens = 0
        self._busy_until = 0.0  # expected end of what is computed
        self._changed = threading.Condition()
        self._closed = False
        self._idle = False  # the thread waits to be notified
        self._dispatching = False  # `_dispatch` is about to run
        self._duration, self._reading, self._writing = Duration(), Duration(), Duration()
        self._rows_of_bytes = Duration()
        self._slack = Slack()
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

    @property
    def is_nearly_full(self) -> bool:
        """Whether the requests of two further batches would not all find room. A small queue decides on each one."""
        return self._waiting > self._queue_rows - 2 * _LARGEST > 0

    def check(self, size: int, deadline: float) -> None:
        """Refuse a request of this many bytes before its body is read, if it would not be answered in time.

        Raises:
            Overloaded: the deadline would be exceeded, or too many rows wait.
        """
        if self._waiting:
            with self._changed:
                rows = self._expected_rows(size)
                self._admit(rows, self._reading.of(size) + self._duration.of(rows, per=_LARGEST), deadline)

    async def predict(self, loaded: LoadedVersion, arrays: Arrays, lifetime: Lifetime) -> NDArray[np.float32]:
        """Return the version's predictions for the rows, computed together with other requests for it.

        Args:
            loaded: the version.
            arrays: as `LoadedVersion.predict` takes them.
            lifetime: of the request.

        Raises:
            Overloaded: its deadline would be exceeded, or too many rows wait.
        """
        job = self._job(lifetime, loaded)
        job.with_arrays(arrays, self._clock())
        job.may_be_short = loaded.engine == "onnxruntime"
        predictions: NDArray[np.float32] = await self._submit(job, self._duration.of(job.rows, per=_LARGEST))
        return predictions

    async def answer(self, loaded: LoadedVersion, raw: Raw, lifetime: Lifetime) -> Computed:
        """Return what `raw` reads and the version's predictions for its arrays, both by the thread.

        Raises:
            Overloaded: its deadline would be exceeded, or too many rows wait.
        """
        job = self._job(lifetime, loaded)
        job.raw, job.rows = raw, self._expected_rows(raw.size)
        seconds = self._reading.of(raw.size) + self._duration.of(job.rows, per=_LARGEST)
        computed: Computed = await self._submit(job, seconds)
        return computed

    async def take_turns(self, turns: Iterator[Any], lifetime: Lifetime, *, count: int, tokens: int) -> list[Any]:
        """Return what the iterator yields. The thread takes one of its items at a time, between two batches.

        Args:
            turns: the iterator; it checks the lifetime itself.
            lifetime: of the request.
            count: items of it.
            tokens: of one item, at most.

        Raises:
            Overloaded: too much waits.
        """
        job = self._job(lifetime, None)
        job.key, job.turns, job.rows, job.tokens = (object(),), turns, count, tokens
        texts: list[Any] = await self._submit(job, self.seconds_of(count, tokens))
        return texts

    def seconds_of(self, texts: int, tokens: int) -> float:
        """Return the expected seconds of texts with at most this many tokens each; 0 before the first one."""
        return texts * self._writing.of(tokens)

    def close(self) -> None:
        """Drop what waits, and end the thread after what it computes. A model that hangs is not waited for."""
        with self._changed:
            self._closed, self._idle = True, False
            dropped = [*self._jobs, *self._raw]
            self._jobs.clear()
            self._raw.clear()
            self._waiting = self._waiting_bytes = self._waiting_tokens = 0
            self._changed.notify()
        _answer(dropped, [Overloaded(1.0)] * len(dropped))
        self._thread.join(_CLOSE)

    @staticmethod
    def _job(lifetime: Lifetime, loaded: LoadedVersion | None) -> _Job:
        return _Job(lifetime, asyncio.get_running_loop().create_future(), loaded)

    def _expected_rows(self, size: int) -> int:
        return max(1, round(self._rows_of_bytes.of(size)))

    def _wait(self) -> float:
        """Return the seconds until a request that comes now would be computed."""
        computed = self._duration.of(self._waiting, per=_LARGEST) if self._waiting else 0.0
        read = self._reading.of(self._waiting_bytes, starts=len(self._raw)) if self._raw else 0.0
        written = self._writing.of(self._waiting_tokens) if self._waiting_tokens else 0.0
        return self._slack.ratio * (max(0.0, self._busy_until - self._clock()) + computed + read + written)

    def _admit(self, rows: int, seconds: float, deadline: float) -> float:
        """Return the seconds until the answer of a request; `seconds` are those of its own work."""
        wait = self._wait()
        # An idle model tries each request, since the estimate may be that of an unusual batch.
        too_late = wait > 0 and self._clock() + wait + seconds > deadline
        if self._closed or too_late or (self._waiting and self._waiting + rows > self._queue_rows):
            raise Overloaded(max(wait, 0.01))
        return wait + seconds

    def _submit(self, job: _Job, seconds: float) -> "asyncio.Future[Any]":
        with self._changed:
            job.expected = self._admit(job.rows, seconds, job.lifetime.deadline)
            job.submitted = self._clock()
            self._count(job, 1)
            (self._jobs if job.raw is None else self._raw).append(job)
            if self._idle and not self._dispatching:
                self._dispatching = True
                job.future.get_loop().call_soon(self._dispatch)  # after the other requests that have arrived
        return job.future

    def _count(self, job: _Job, sign: int) -> None:
        """Count a job that waits (1), or does not any more (-1)."""
        self._waiting += sign * job.rows
        self._waiting_tokens += sign * job.rows * job.tokens
        self._waiting_bytes += sign * (job.raw.size if job.raw else 0)

    def _dispatch(self) -> None:
        """Compute what waits if it is a short batch; otherwise wake the thread. Runs in the event loop."""
        with self._changed:
            self._dispatching = False
            if not self._idle:  # the thread takes what waits
                return
            seconds = self._duration.of(self._waiting, per=_LARGEST)
            is_short = not self._raw and 0.0 < seconds < _SHORT and self._waiting <= _LARGEST
            is_short = is_short and all(job.may_be_short for job in self._jobs)
            jobs = self._taken() if is_short else []
            if self._jobs or self._raw:
                self._idle = False
                self._changed.notify()
        if jobs:
            _settle(list(zip(*self._results(jobs), strict=True)))

    def _work(self) -> None:
        while self._wait_for_jobs():
            self._read()
            with self._changed:
                jobs = self._taken()
                if jobs:
                    tokens, rows = jobs[0].tokens, sum(min(job.rows, _LARGEST) for job in jobs)
                    seconds = self._writing.of(tokens) if tokens else self._duration.of(rows, per=_LARGEST)
                    self._busy_until = self._clock() + seconds
            if not jobs:
                continue
            done, results = self._results(jobs)
            with self._changed:
                self._busy_until = 0.0  # before the answers: a client may ask again at once
                if not self._closed:
                    for job in jobs:
                        if job not in done:
                            self._count(job, 1)
                            self._jobs.append(job)
            self._report(done)
            _answer(done, results)
            del jobs, done, results  # so that an idle thread keeps no old version in memory

    def _wait_for_jobs(self) -> bool:
        """Wait for jobs; return False at the end."""
        with self._changed:
            while not self._jobs and not self._raw and not self._closed:
                self._busy_until, self._idle = 0.0, True
                while self._idle:
                    self._changed.wait()
            return not self._closed

    def _report(self, done: list[_Job]) -> None:
        """Compare the expected seconds with the true ones."""
        now = self._clock()
        for job in done:
            self._slack.add(job.expected, now - job.submitted)

    def _read(self) -> None:
        """Read requests until a batch is full or some time has passed, and encode them together."""
        rows, until = sum(job.rows for job in self._jobs), self._clock() + _READ
        read = list[tuple[_Job, Raw, float]]()  # with the seconds that it took
        size = 0
        while rows < _LARGEST and size < _READ_BYTES and self._clock() < until:
            with self._changed:
                if not self._raw:
                    break
                job = self._raw.popleft()
                self._count(job, -1)
            try:
                job.lifetime.check()
                assert job.raw
                if job.future.cancelled():
                    continue
                began = self._clock()
                job.request = job.raw.read()
                read.append((job, job.raw, self._clock() - began))
                rows += job.request.rows
                size += job.raw.size if job.request.unencoded else 0
            except (Exception, SystemExit) as error:
                _answer([job], [_raised(error)])
        for version in {id(job.loaded): job.loaded for job, _, _ in read}.values():
            self._complete([entry for entry in read if entry[0].loaded is version])

    def _complete(self, read: list[tuple[_Job, Raw, float]]) -> None:
        """Let requests to one version wait for the model, with their arrays. After an error each is encoded alone."""
        (_, first, _), began = read[0], self._clock()
        try:
            requests = first.complete([job.request for job, _, _ in read])
        except (Exception, SystemExit) as error:
            if len(read) == 1:
                _answer([read[0][0]], [_raised(error)])
                return
            for entry in read:
                self._complete([entry])
            return
        share = (self._clock() - began) / len(read)
        for (job, raw, seconds), request in zip(read, requests, strict=True):
            job.request = request
            self._reading.add(raw.size, seconds + share)
            if not request.arrays:
                _answer([job], [Computed(request, None, 0.0)])
                continue
            job.with_arrays(request.arrays, self._clock())
            self._rows_of_bytes.add(raw.size, job.rows)
            with self._changed:
                self._count(job, 1)
                self._jobs.append(job)

    def _results(self, jobs: list[_Job]) -> tuple[list[_Job], list[Any]]:
        """Compute a batch. Return the jobs that are done, and the result of each, or its exception."""
        done, results = list[_Job](), list[Any]()
        for job, result in zip(jobs, self._computed(jobs), strict=True):
            if isinstance(result, Exception):
                done.append(job)
                results.append(result)
                continue
            if job.turns is None:
                job.arrays = tuple(array[_LARGEST:] for array in job.arrays)
                job.rows = len(job.arrays[0])
            else:
                job.rows -= 1
            job.parts.append(result)
            if job.rows <= 0:
                done.append(job)
                results.append(self._whole(job))
        return done, results

    def _whole(self, job: _Job) -> Any:
        """Return the result of a job whose rows are all computed."""
        if job.turns is not None:
            return job.parts
        predictions = job.parts[0] if len(job.parts) == 1 else np.concatenate(job.parts)
        return predictions if job.request is None else Computed(job.request, predictions, self._clock() - job.ready)

    def _computed(self, jobs: list[_Job]) -> list[Any]:
        """Return the predictions of each job's next rows, or its exception.

        After an error each job runs alone, so that one fails.
        """
        try:
            began, first = self._clock(), jobs[0]
            if first.turns is not None:
                result = next(first.turns)
                self._writing.add(first.tokens, self._clock() - began)
                return [result]
            pieces = [tuple(array[:_LARGEST] for array in job.arrays) for job in jobs]
            arrays = tuple(np.concatenate(parts) for parts in zip(*pieces, strict=True))
            assert first.loaded
            result = first.loaded.predict(arrays)
            self._duration.add(len(arrays[0]), self._clock() - began)
            self.computed(len(arrays[0]))
            ends = [0, *accumulate(len(piece[0]) for piece in pieces)]
            return [result[begin:end] for begin, end in pairwise(ends)]
        except (Exception, SystemExit) as error:  # of a library or of a user's model
            if len(jobs) == 1:
                return [_raised(error)]
            return [self._computed([job])[0] for job in jobs]

    def _taken(self) -> list[_Job]:
        """Take the jobs of one batch from the queue. Jobs that are late or whose client has gone are dropped."""
        now, chosen, skipped, rows = self._clock(), list[_Job](), list[_Job](), 0
        late = list[tuple[_Job, Exception]]()
        while self._jobs and rows < _LARGEST:  # a long queue is not read to its end for each batch
            job = self._jobs.popleft()
            if job.is_over:
                late.append((job, ClientDisconnect()))
            elif job.lifetime.deadline < now:
                self._slack.add(job.expected, now - job.submitted)
                late.append((job, TimeoutError() if job.parts else Overloaded(max(0.01, self._wait()))))
            elif not chosen or (job.key == chosen[0].key and rows + job.rows <= _LARGEST):
                chosen.append(job)
                rows += job.rows
            else:
                skipped.append(job)
                continue
            self._count(job, -1)
        self._jobs.extendleft(reversed(skipped))
        _answer([job for job, _ in late], [error for _, error in late])
        return chosen


def _raised(error: BaseException) -> Exception:
    # asyncio would end the event loop for a SystemExit.
    return error if isinstance(error, Exception) else RuntimeError(f"the model's code raised {error!r}")


def _answer(jobs: "list[_Job]", results: Any) -> None:
    """Pass each job its result, or the exception that it is. All jobs of a loop are passed in one call."""
    pairs = list(zip(jobs, results, strict=True))
    for loop in {job.future.get_loop() for job in jobs}:
        if not loop.is_closed():  # the server has ended
            loop.call_soon_threadsafe(_settle, [pair for pair in pairs if pair[0].future.get_loop() is loop])


def _settle(pairs: "list[tuple[_Job, Any]]") -> None:
    for job, result in pairs:
        future = job.future
        if future.done():  # its client has gone
            continue
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)
