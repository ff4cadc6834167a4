"""Reads samples of a user's own kind, in this process or in worker processes that end with it."""

import contextlib
import multiprocessing
import os
import signal
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing import resource_tracker
from types import FrameType
from typing import Any, Generic, TypeVar

import torch
from torch.utils.data import DataLoader

from ratchet.errors import TrainingError
from ratchet.training.custom_samples import CustomSamples, Faulty, Piece, Sample, SampleTimeout, WorkerProgress
from ratchet.training.sample_timeout import PATIENCE, Interrupted

__all__ = ["SampleReader"]

CHOSEN_BY = {"kind": ("arrays",)}

Result = TypeVar("Result")
_POLL = 0.5  # seconds between two checks of workers that have not answered
_LONG_WAIT = 10.0  # seconds without a result, after which a request to stop is obeyed whatever the workers do
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class SampleReader(Generic[Result]):
    """Reads pieces of samples.

    Workers start with the first `read` and stay until `close`. They are forked from a server process without threads,
    so they inherit no locked lock. Each imports the user's module and opens the data itself, so they share no open
    file. They end by themselves when this process is killed.

    Args:
        combine: makes one result of the samples of a piece, in the process that reads them.
        workers: processes that read; 0: this process.
    """

    def __init__(
        self, samples: CustomSamples, combine: Callable[[list[Sample | Faulty]], Result], *, workers: int = 0
    ) -> None:
        self.samples = samples
        self.combine = combine
        self.workers = workers
        self._pieces = _Pieces()
        self._loader: DataLoader[Result] | None = None
        self._reading = 0
        self._checked = 0.0  # time of the last check of the workers
        self._waited: dict[int, tuple[float, float]] = {}  # by worker: `since` of its sample, seconds waited for it

    def read_here(self, piece: Piece) -> Result:
        """Return the result for one piece, read by this process.

        Raises:
            TrainingError: a sample took too long.
        """
        return self.combine(self.samples.__getitems__(piece))

    def read(self, pieces: Iterable[Piece]) -> Iterator[Result]:
        """Yield the result for each piece, in order, prefetched by the workers. A new call ends the one before.

        Raises:
            TrainingError: a worker died, a sample took too long, or the user's class failed in it.
        """
        self._reading += 1
        mine, self._pieces.coming = self._reading, iter(pieces)
        results = self._begin()
        while True:
            assert mine == self._reading, "two reads at once"
            try:
                result = next(results)
            except StopIteration:
                return
            except SampleTimeout:
                raise
            except TrainingError as error:  # PyTorch adds the worker's traceback
                self.close()
                raise TrainingError(str(error).strip().rpartition("TrainingError: ")[2]) from error
            except (RuntimeError, EOFError, OSError) as error:  # from PyTorch, or a broken connection
                self.close()
                if self.samples.stop():
                    raise Interrupted from error  # the signal to this process may have ended the worker
                ingests = self.samples.count is None
                key, none = ("data.workers", 1) if ingests else ("training.workers", 0)
                raise TrainingError(
                    f"a worker process of {key} ended ({error}), probably for lack of memory or shared memory "
                    f"(/dev/shm). Fix: run the same command{'' if ingests else ', which continues'}. If it happens "
                    f"again, lower {key}, or set it to {none} to debug the class"
                ) from error
            yield result

    def close(self) -> None:
        if self._loader is not None:
            self._loader = None
            self._end_workers()

    def _begin(self) -> Iterator[Result]:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="This DataLoader will create", category=UserWarning)
            if self._loader is None:
                self._loader = self._make_loader()
                # PyTorch ends the workers with the last reference, which a traceback may hold, and not at exit.
                self._end_workers = weakref.finalize(self, _end_workers, self._loader)
            with _started_without_signals() if self.workers else contextlib.nullcontext():
                results = iter(self._loader)
            self._check_while_waiting(results)
            return results

    def _check_while_waiting(self, results: Any) -> None:
        """Call `_check` regularly while a worker's result is awaited."""
        if not self.workers or hasattr(results, "watched"):
            return
        take, since = results._try_get_data, time.monotonic()

        def watched(*_: object) -> tuple[bool, Any]:
            nonlocal since
            result: tuple[bool, Any] = take(_POLL)
            if result[0]:
                since = time.monotonic()
            else:
                self._check(results._workers, time.monotonic() - since)
            return result

        results._try_get_data, results.watched = watched, True  # PyTorch calls it until it succeeds

    def _check(self, processes: Sequence[Any], waited: float) -> None:
        """After `waited` seconds without a result: end the workers if a sample is too slow or the run must stop."""
        samples, busy = self.samples, [at for at in self.samples.worker_progress() if at.since]
        seconds = self._waiting_times(busy)
        slow = [at for at in busy if 0 < samples.limit(at.place) < seconds[at.worker]]
        patient = waited < _LONG_WAIT and max(seconds.values(), default=0.0) < PATIENCE
        if not slow and (patient or not samples.stop()):
            return
        where = f" (worker process {processes[slow[0].worker].pid})" if slow else ""
        for at in busy:
            processes[at.worker].kill()  # it may block SIGTERM, and PyTorch would wait five seconds for each
        self.close()
        if not slow:
            raise Interrupted
        raise SampleTimeout(samples.timeout_message(slow[0].place, where))

    def _waiting_times(self, busy: list[WorkerProgress]) -> dict[int, float]:
        """Return the seconds that each worker's sample has been awaited.

        They are summed over checks, because the clock continues while a scheduler suspends all processes.
        """
        now = time.monotonic()
        passed, self._checked = min(now - self._checked, 2 * _POLL), now
        before, self._waited = self._waited, {}
        for at in busy:
            since, seconds = before.get(at.worker, (0.0, 0.0))
            self._waited[at.worker] = at.since, seconds + passed if since == at.since else 0.0
        return {worker: seconds for worker, (_, seconds) in self._waited.items()}

    def _make_loader(self) -> "DataLoader[Result]":
        if self.workers:
            # The server process imports this once, for all workers. No effect once the server runs. It never imports
            # the user's module, which may start threads, as polars does: a fork of a process with threads can hang.
            multiprocessing.set_forkserver_preload([__name__])
            # Memory that the workers write and this process reads.
            self.samples.progress = multiprocessing.get_context("forkserver").RawArray("d", 2 * self.workers)
        return DataLoader(
            self.samples,
            batch_sampler=self._pieces,
            collate_fn=self.combine,
            num_workers=self.workers,
            multiprocessing_context="forkserver" if self.workers else None,
            persistent_workers=self.workers > 0,
            worker_init_fn=_end_with_parent_only if self.workers else None,
            pin_memory=torch.cuda.is_available(),
            generator=torch.Generator(),  # otherwise every pass would draw from the global one
        )


def _end_workers(loader: "DataLoader[Any]") -> None:
    workers = getattr(loader, "_iterator", None)
    if workers is not None:
        workers._shutdown_workers()


class _Pieces:
    """Batch sampler of the loader: the pieces to read next."""

    coming: Iterator[Piece] = iter(())

    def __iter__(self) -> Iterator[Any]:
        return self.coming


@contextlib.contextmanager
def _started_without_signals() -> Iterator[None]:
    """Block the stop signals for processes started inside, until they unblock them themselves."""
    resource_tracker.ensure_running()  # it would unblock them when it starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_parent_only(_worker: int) -> None:
    """Let this worker end with its parent, and not before.

    PyTorch watches the process that forked this one. Here that is the server, which waits for its workers. Ctrl-C and
    SIGTERM to the whole process group ask the parent to stop in good order, and it still needs its workers.
    """
    threading.Thread(target=_wait_for_parent, name="parent-watch", daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _ignore_once)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _ignore_once(number: int, _frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)  # at exit the parent ends a blocked worker by SIGTERM, sent twice
