"""Work shared among threads or processes, its results in order."""

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

__all__ = ["in_order", "in_order_apart", "threads"]

Chunk = TypeVar("Chunk")
Result = TypeVar("Result")

_AHEAD = 2  # chunks begun per worker before the oldest is taken: keeps workers busy and memory bounded


def threads(workers: int) -> int:
    """`data.workers` as a number of workers: 0 means one per core that this process may use."""
    if workers:
        return workers
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_order(work: Callable[[Chunk], Result], chunks: Iterable[Chunk], *, workers: int) -> Iterator[Result]:
    """`work` on each of `chunks`, by `workers` threads: the results in the order of the chunks."""
    with ThreadPoolExecutor(workers, thread_name_prefix="ingest") as pool:
        yield from _in_order(lambda chunk: pool.submit(work, chunk), chunks, workers)


def in_order_apart(
    work: Callable[[Chunk], Result],
    chunks: Iterable[Chunk],
    *,
    workers: int,
    within: Callable[[], AbstractContextManager[object]],
) -> Iterator[Result]:
    """As `in_order`, by processes, which do not wait for each other's interpreter lock but take a moment to begin.

    `work` is pickled once for each of them, chunks and results every time; all is done within this context.

    Raises:
        DataError: a process died.
    """

    def submit(chunk: Chunk) -> Future[Result]:
        with _beginning():  # the first of them begin the processes
            return pool.submit(_do, chunk)

    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=_begin, initargs=(work, within)) as pool:
        try:
            yield from _in_order(submit, chunks, workers)
        except BrokenProcessPool as error:
            raise DataError(
                "a process that read samples was killed, for want of memory perhaps: run the same again, "
                "with a smaller data.workers if it happens again"
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


def _begin(work: Callable[[Any], Any], within: Callable[[], AbstractContextManager[object]]) -> None:
    """What a process does first."""
    global _work, _context
    _work, _context = work, within()
    _context.__enter__()  # for as long as the process lives
    Thread(target=_end_with_parent, daemon=True).start()


def _do(chunk: Any) -> Any:
    return _work(chunk)


def _end_with_parent() -> None:
    """A parent that is killed tells nobody; its pool would wait for work for ever."""
    parent = parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)


@contextmanager
def _beginning() -> Iterator[None]:
    """What processes that begin in here are spared.

    The main module, which they would import anew with all that it imports; threads of their libraries, for there is a
    process for each core; and Ctrl+C, which is their parent's affair and reaches it as soon as this is left.
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
