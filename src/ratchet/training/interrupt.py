"""Interrupts a sample that is read in this process: it takes too long, or the run was asked to stop.

A sample is the user's code: it may wait for a network disk, a lock or a server for ever. A thread looks at the clock
and sends the main thread a signal, which ends a system call that blocks and raises `Interrupted` in the user's code.
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

PATIENCE = 3.0  # seconds that a sample may take before a request to stop interrupts it
_TICK = 0.25  # seconds between two looks at the clock
_LAST = 10.0  # seconds after the first signal; code that blocks the interpreter's signals cannot be interrupted
# Ignored by default, so one that arrives late does no harm; Go's runtime interrupts its threads by it too.
_SIGNAL = signal.SIGURG


class Interrupted(BaseException):
    """The run was asked to stop while a sample was read. Not an Exception, which the user's code may catch."""


class TooSlow(BaseException):
    """A sample was not read in time."""


@dataclass(eq=False, slots=True)
class _Sample:
    """A sample under way."""

    describe: Callable[[], str]
    timeout: float  # seconds; 0: none
    stop: Callable[[], bool]


def never() -> bool:
    """No request to stop."""
    return False


class _Watchdog:
    """One thread for the whole process, started with the first sample."""

    def __init__(self) -> None:
        self._sample: _Sample | None = None
        self._reason: tuple[_Sample, type[BaseException]] | None = None
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def watch(
        self, describe: Callable[[], str], timeout: float, stop: Callable[[], bool]
    ) -> Iterator[Callable[[], None]]:
        if signal.getsignal(_SIGNAL) != self._raise:  # the first time, or the user's code has another handler
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
            # Ticks are counted: the clock goes on while the whole process is stopped, as schedulers stop one.
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
        """In the main thread, between two instructions of whatever it does."""
        reason = self._reason
        if reason is not None and reason[0] is self._sample:
            raise reason[1]


def _end_process(sample: _Sample) -> None:
    """The main thread can do nothing any more, so nothing of it is waited for; the checkpoints are on disk."""
    print(
        f"{sample.describe()} and its code cannot be interrupted: this process ends now, and the same command "
        "continues at the newest checkpoint; with training.workers: 1 or more such a worker is ended instead",
        file=sys.stderr,
        flush=True,
    )
    os._exit(1)


_watchdog = _Watchdog()


def interruptible(
    describe: Callable[[], str], *, timeout: float, stop: Callable[[], bool]
) -> contextlib.AbstractContextManager[Callable[[], None]]:
    """A context in which the user's code reads samples: call what it yields before each of them.

    `describe` says which sample is read, for the last message.

    Raises in the block:
        TooSlow: a sample took more than `timeout` seconds (0: no limit).
        Interrupted: `stop` said yes; it is asked from another thread, once a sample took `PATIENCE`.
    Outside the main thread, which alone receives signals, nothing is watched.
    """
    if threading.current_thread() is not threading.main_thread() or (not timeout and stop is never):
        return contextlib.nullcontext(_nothing)
    return _watchdog.watch(describe, timeout, stop)


def _nothing() -> None:
    """No clock runs."""
