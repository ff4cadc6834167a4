"""Work shared among threads, its results in order."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

__all__ = ["in_order", "threads"]

Chunk = TypeVar("Chunk")
Result = TypeVar("Result")

_AHEAD = 2  # chunks begun per thread before the oldest is taken: keeps threads busy and memory bounded


def threads(workers: int) -> int:
    """`data.workers` as a number of threads: 0 means one per core that this process may use."""
    if workers:
        return workers
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_order(work: Callable[[Chunk], Result], chunks: Iterable[Chunk], *, workers: int) -> Iterator[Result]:
    """`work` on each of `chunks`, by `workers` threads: the results in the order of the chunks.

    Pillow and hashlib let go of the interpreter lock where the time is spent, so threads run side by side.
    """
    pending: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(max_workers=workers, thread_name_prefix="ingest") as pool:
        try:
            for chunk in chunks:
                pending.append(pool.submit(work, chunk))
                if len(pending) >= _AHEAD * workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
