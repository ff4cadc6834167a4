"""Work shared among threads, its results in order."""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

__all__ = ["in_order", "threads"]

Item = TypeVar("Item")
Result = TypeVar("Result")

_AHEAD = 2  # chunks begun per thread before the oldest is taken: keeps threads busy and memory bounded


def threads(workers: int) -> int:
    """`data.workers` as a number of threads: 0 means one per core that this process may use."""
    if workers:
        return workers
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_order(
    work: Callable[[Sequence[Item]], Result], items: Sequence[Item], *, chunk: int, workers: int
) -> Iterator[tuple[Sequence[Item], Result]]:
    """`work` on successive chunks of `items`, by `workers` threads: (chunk, result) in the order of `items`.

    Pillow and hashlib let go of the interpreter lock where the time is spent, so threads run side by side.
    """
    pending: deque[tuple[Sequence[Item], Future[Result]]] = deque()
    with ThreadPoolExecutor(max_workers=workers, thread_name_prefix="ingest") as pool:
        try:
            for start in range(0, len(items), chunk):
                part = items[start : start + chunk]
                pending.append((part, pool.submit(work, part)))
                if len(pending) >= _AHEAD * workers:
                    part, future = pending.popleft()
                    yield part, future.result()
            while pending:
                part, future = pending.popleft()
                yield part, future.result()
        finally:
            for _, future in pending:
                future.cancel()
