"""Parallel work by threads or processes, with results in order."""

import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from multiprocessing import get_context, parent_process
from threading import Thread
from types import ModuleType
from typing import Any, TypeVar

from ratchet.errors import DataError
from ratchet.hardware import cores

__all__ = ["in_order", "in_order_by_processes", "threads"]

NO_RESULT = "it calls functions in parallel; the order of their results is fixed"

Chunk = TypeVar("Chunk")
Result = TypeVar("Result")

_AHEAD = 2  # chunks in progress per worker: keeps workers busy and memory bounded


def threads(workers: int) -> int:
    """Return the number of workers for `data.workers`: 0 means one per core that this process may use."""
    return workers or len(cores())


def in_order(work: Callable[[Chunk], Result], chunks: Iterable[Chunk], *, workers: int) -> Iterator[Result]:
    """Apply `work` to each chunk with `workers` threads. Yield the results in the order of the chunks."""
    with ThreadPoolExecutor(workers, thread_name_prefix="ingest") as pool:
        yield from _in_order(lambda chunk: pool.submit(work, chunk), chunks, workers)


def in_order_by_processes(
    work: Callable[[Chunk], Result],
    chunks: Iterable[Chunk],
    *,
    workers: int,
    within: Callable[[], AbstractContextManager[object]],
) -> Iterator[Result]:
    """Apply `work` to each chunk with `workers` processes, each inside the context `within`. Yield results in order.

    Processes do not wait for each other's interpreter lock, but they take a moment to start. `work` is pickled once
    for each process, chunks and results every time.

    Raises:
        DataError: a process died.
    """

    def submit(chunk: Chunk) -> Future[Result]:
        with _spawning():  # the first chunks start the processes
            return pool.submit(_apply, chunk)

    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=_initialize, initargs=(work, within)) as pool:
        try:
            yield from _in_order(submit, chunks, workers)
        except BrokenProcessPool as error:
            raise DataError(
                "a process that read samples was killed, possibly because memory ran out. Fix: run the same command "
                "again; if it happens again, set a smaller data.workers"
            ) from error


def _in_order(submit: Callable[[Chunk], Future[Result]], chunks: Iterable[Chunk], workers: int) -> Iterator[Result]:
    pending: deque[Future[Result]] = deque()
    try:
        for chunk in chunks:
            pending.append(submit(chunk))
            if len(pending) >= _AHEAD * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for future in pending:
            future.cancel()


_work: Callable[[Any], Any]
_context: AbstractContextManager[object]


def _initialize(work: Callable[[Any], Any], within: Callable[[], AbstractContextManager[object]]) -> None:
    global _work, _context
    _work, _context = work, within()
    _context.__enter__()  # for the lifetime of the process
    Thread(target=_end_with_parent, daemon=True).start()


def _apply(chunk: Any) -> Any:
    return _work(chunk)


def _end_with_parent() -> None:
    """End this process when its parent is killed. Otherwise the pool would wait for work without end."""
    parent = parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)


@contextmanager
def _spawning() -> Iterator[None]:
    """Spawn processes in here without three things that they do not need.

    They do not import the main module again. Their libraries start no threads, because there is a process per core.
    They ignore Ctrl+C, which the parent handles as soon as this context ends.
    """
    main, threads = sys.modules["__main__"], os.environ.get("OMP_NUM_THREADS")
    sys.modules["__main__"] = ModuleType("__main__")
    os.environ["OMP_NUM_THREADS"] = "1"
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        sys.modules["__main__"] = main
        os.environ.pop("OMP_NUM_THREADS")
        if threads is not None:
            os.environ["OMP_NUM_THREADS"] = threads
