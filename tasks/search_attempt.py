"""Signs of an attempt at a trial: the lease that it holds, and the steps that it has made."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from ratchet.errors import StudyUnavailable
from ratchet.search.scheduler import Scheduler

__all__ = ["StepCounter", "heartbeat"]

_BEAT_SECONDS = 30.0  # at most, between two signs of a worker; they also count search.hours


class StepCounter:
    """Number of optimizer steps over all attempts, in a file that survives a kill of the process."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "steps"
        self.steps = 0
        self._file = -1

    def __enter__(self) -> "StepCounter":
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        self.steps = int.from_bytes(os.pread(self._file, 8, 0), "little")
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def add(self) -> None:
        """Count one more step."""
        self.steps += 1
        os.pwrite(self._file, self.steps.to_bytes(8, "little"), 0)


@contextlib.contextmanager
def heartbeat(scheduler: Scheduler, number: int, lost: Callable[[], None]) -> Iterator[None]:
    """Extend the lease of a trial within the context, and call `lost` when another worker has it."""
    ends = threading.Event()

    def beat() -> None:
        while not ends.wait(min(scheduler.lease / 4, _BEAT_SECONDS)):
            try:
                if not scheduler.beat(number):
                    lost()
                    return
            except StudyUnavailable:  # the database is away for all, or for this machine only: the next beat finds out
                continue

    thread = threading.Thread(target=beat, name="lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()
