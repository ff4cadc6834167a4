"""Shadow: another version answers a share of the live requests, too, off their path. Its answers go to the log only."""

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ratchet.kinds.protocol import Arrays
from ratchet.kinds.registry import takes_equal
from ratchet.serving.handler import ServedRequest
from ratchet.serving.versions.alias_watcher import AliasWatcher
from ratchet.serving.versions.loaded import LoadedVersion, can_replace
from ratchet.traffic.request_log import RequestLog
from ratchet.traffic.schema import SHADOW, Logged, is_sampled, target_id

__all__ = ["Shadow"]

_LOG = logging.getLogger(__name__)
_MOST_BYTES = 32 << 20  # of requests that wait
_MOST = 1024  # requests that wait
_LONGEST = 60.0  # seconds from the answer of a request, after which the shadow version does not answer it
_OVERHEAD = 5000  # bytes of a request that waits, besides its arrays
_CLOSE = 0.25  # seconds for which `close` waits for the request that is answered
_NICE = 10  # of the thread, so that live requests come first


class _Waiting(NamedTuple):
    """A request that waits: only what the version and the log need, so neither its headers nor its connection."""

    id: str
    served: LoadedVersion
    arrays: Arrays
    rows: int
    began: float
    answered: float  # on the clock

    @property
    def size(self) -> int:
        """Bytes of the arrays and of the objects around them."""
        return sum(array.nbytes for array in self.arrays) + _OVERHEAD


class Shadow:
    """The version of serving.shadow, with a thread of its own.

    Attributes:
        watcher: of the version.
        dropped: requests that were left out because too many waited, or one for too long.
        failed: requests that the version failed to answer. Their rows in the log are NaN.
        failure: why the latest request was not answered; empty: it was.
    """

    def __init__(self, watcher: AliasWatcher, log: RequestLog, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Start the thread. `clock`: seconds."""
        self.watcher, self.dropped, self.failed, self.failure = watcher, 0, 0, ""
        self._log, self._clock = log, clock
        self._waiting: deque[_Waiting] = deque()
        self._bytes, self._changed, self._closed = 0, threading.Condition(), False
        self._thread = threading.Thread(target=self._work, name="shadow", daemon=True)
        self._thread.start()

    @property
    def version(self) -> LoadedVersion | None:
        """The version that answers; None while the reference names none."""
        return self.watcher.current if self.watcher.is_named else None

    def problem(self, served: LoadedVersion | None) -> str:
        """Return why requests to the served version are not answered; empty: they are."""
        loaded = self.version
        if loaded is None or served is None:
            return f"serving.shadow: {self.watcher.problem}"
        if not can_replace(served, loaded):
            return f"serving.shadow: {loaded.identity} has another input or target than {served.identity}"
        return self.failure

    def observe(self, answered: ServedRequest) -> None:
        """Take an answered request; returns at once."""
        answer, arrays = answered.answer, answered.request.arrays
        if answer.instead or not arrays or self.version is None or not is_sampled(answer.id, self._log.share):
            return
        rows, began = answered.request.rows, answered.began
        waiting = _Waiting(answer.id, answered.loaded, arrays, rows, began, self._clock())
        with self._changed:
            if len(self._waiting) >= _MOST or (self._bytes and self._bytes + waiting.size > _MOST_BYTES):
                self.dropped += 1
                return
            self._bytes += waiting.size
            self._waiting.append(waiting)
            self._changed.notify()

    def close(self) -> None:
        """Drop what waits, end the thread, and delete the version's files. A model that hangs is not waited for."""
        with self._changed:
            self._closed = True
            self.dropped += len(self._waiting)
            self._waiting.clear()
            self._changed.notify()
        self._thread.join(_CLOSE)
        self.watcher.close()

    def _work(self) -> None:
        with contextlib.suppress(OSError, AttributeError):  # not on this system
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        while (waiting := self._next()) is not None:
            try:
                self._answer(waiting)
                self.failure = ""
            except Exception as error:  # of the version: the live answer was given before
                failure = f"serving.shadow: {self.watcher.reference} failed: {error}"
                if failure != self.failure:
                    _LOG.error("%s", failure)
                self.failed, self.failure = self.failed + 1, failure

    def _next(self) -> _Waiting | None:
        """Wait for a request, and take it; None: the end."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return None
                waiting = self._waiting.popleft()
                self._bytes -= waiting.size
                if self._clock() - waiting.answered <= _LONGEST:
                    return waiting
                self.dropped += 1

    def _answer(self, waiting: _Waiting) -> None:
        loaded, served, arrays = self.version, waiting.served, waiting.arrays
        if loaded is None or loaded.identity.run_id == served.identity.run_id or not can_replace(served, loaded):
            return
        began, identity = time.monotonic(), loaded.identity
        predictions = np.full((waiting.rows, loaded.spec.target.outputs), np.nan, np.float32)
        try:
            if not takes_equal(served.spec.input, loaded.spec.input):
                arrays = loaded.kind.adapt(arrays, served.spec.input, loaded.spec.input)
            predictions = loaded.predict(arrays)
        finally:
            logged = Logged(
                waiting.id,
                waiting.began,
                time.monotonic() - began,
                SHADOW,
                identity.model,
                identity.version,
                identity.provenance or "",
                "",
                {},
                predictions,
                target_id(loaded.spec.target),
            )
            self._log.add(logged.answer, lambda: logged)
