"""Interrupt the read of a sample in this process when it takes too long or the run was asked to stop.

Reading a sample runs the user's code, which may wait endlessly for a network disk, a lock or a server. A thread watches
the time and sends the main thread a signal. The signal ends a blocking system call and raises an exception in the
user's code.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

__all__ = ["PATIENCE", "Interrupted", "TooSlow", "interruptible", "never"]

NO_RESULT = "it limits the time of reading a sample"

PATIENCE = 3.0  # seconds that a sample may take before a request to stop interrupts it
_TICK = 0.25  # seconds between two checks
_LAST = 10.0  # seconds after the first signal, for code that cannot be interrupted
# Ignored by default, so a late one does no harm. Go's runtime uses it for the same purpose.
_SIGNAL = signal.SIGURG


class Interrupted(BaseException):
    """The run was asked to stop while a sample was read. Not an Exception, because the user's code may catch those."""


class TooSlow(BaseException):
    """A sample was not read in time."""


@dataclass(eq=False, slots=True)
class _Sample:
    """The sample that is being read."""

    describe: Callable[[], str]
    timeout: float  # seconds; 0: no limit
    stop: Callable[[], bool]


def never() -> bool:
    """Return False: no request to stop."""
    return False


class _Watchdog:
    """One thread for the whole process. It starts with the first sample."""

    def __init__(self) -> None:
        self._sample: _Sample | None = None
        self._reason: tuple[_Sample, type[BaseException]] | None = None
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def watch(
        self, describe: Callable[[], str], timeout: float, stop: Callable[[], bool]
    ) -> Iterator[Callable[[], None]]:
        if signal.getsignal(_SIGNAL) != self._raise:  # the first time, or the user's code has set another handler
            signal.signal(_SIGNAL, self._raise)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="sample-watchdog", daemon=True)
            self._thread.start()
        outer = self._sample

        def begin() -> None:
            self._sample = _Sample(describe, timeout, stop)

        try:
            yield begin
        finally:
            self._sample = outer

    def _run(self) -> None:
        main = threading.main_thread().ident
        assert main is not None
        before, seconds = None, 0.0
        while True:
            time.sleep(_TICK)
            sample = self._sample
            # Ticks are counted, because the clock continues while a scheduler suspends the process.
            before, seconds = sample, seconds + _TICK if sample is before else 0.0
            if sample is None:
                continue
            if seconds > PATIENCE and sample.stop():
                self._reason = sample, Interrupted
            elif sample.timeout and seconds > sample.timeout:
                self._reason = sample, TooSlow
            else:
                continue
            signal.pthread_kill(main, _SIGNAL)
            if sample.timeout and seconds > sample.timeout + _LAST and self._sample is sample:
                _end_process(sample)

    def _raise(self, *_: object) -> None:
        """Run by the main thread, between two instructions of its code."""
        reason = self._reason
        if reason is not None and reason[0] is self._sample:
            raise reason[1]


def _end_process(sample: _Sample) -> None:
    """End the process. The main thread is blocked, so nothing waits for it; the checkpoints are on disk."""
    print(
        f"{sample.describe()}. Its code cannot be interrupted, so this process ends now. The same command continues at "
        "the newest checkpoint. With training.workers: 1 or more, only the worker is ended",
        file=sys.stderr,
        flush=True,
    )
    os._exit(1)


_watchdog = _Watchdog()


def interruptible(
    describe: Callable[[], str], *, timeout: float, stop: Callable[[], bool]
) -> contextlib.AbstractContextManager[Callable[[], None]]:
    """Return a context in which the user's code reads samples. Call the function that it yields before each sample.

    Outside the main thread nothing is watched, because only the main thread receives signals.

    Args:
        describe: returns a message about the sample, for an error.

    Raises:
        TooSlow: inside the block, a sample took more than `timeout` seconds (0: no limit).
        Interrupted: inside the block, `stop` returned True. Another thread calls it once a sample took `PATIENCE`.
    """
    if threading.current_thread() is not threading.main_thread() or (not timeout and stop is never):
        return contextlib.nullcontext(lambda: None)
    return _watchdog.watch(describe, timeout, stop)
