"""Shadow: another version answers a share of the live requests, too, off their path. Its answers go to the log only."""

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable

import numpy as np

from ratchet.kinds.registry import takes_equal
from ratchet.serving.answered import Answered
from ratchet.serving.versions.exchange import can_replace
from ratchet.serving.versions.following import Follower
from ratchet.serving.versions.loaded import LoadedVersion
from ratchet.traffic.schema import SHADOW, Logged, is_sampled, target_id
from ratchet.traffic.writing import RequestLog

__all__ = ["Shadow"]

_LOG = logging.getLogger(__name__)
_MOST_BYTES = 32 << 20  # of requests that wait
_MOST = 1024  # requests that wait
_SECONDS = 10.0  # for which one may wait
_OVERHEAD = 5000  # bytes of a request that waits, besides its arrays
_CLOSE = 0.25  # seconds for which `close` waits for the request that is answered
_NICE = 10  # of the thread, so that live requests come first


class Shadow:
    """The version of serving.shadow, with a thread of its own.

    Attributes:
        follower: of the version.
        dropped: requests that were left out because too many waited.
        failed: requests that the version failed to answer. Their rows in the log are NaN.
        failure: why the latest request was not answered; empty: it was.
    """

    def __init__(
        self, follower: Follower, log: RequestLog, *, share: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Start the thread. `share`: of the logged requests. `clock` returns seconds."""
        self.follower, self.dropped, self.failed, self.failure = follower, 0, 0, ""
        self._log, self._share = log, share * log.share  # both are compared with the same digits of an answer's id
        self._waiting: deque[tuple[float, Answered]] = deque()  # with the time since when it waits
        self._bytes, self._changed, self._closed, self._clock = 0, threading.Condition(), False, clock
        self._thread = threading.Thread(target=self._work, name="shadow", daemon=True)
        self._thread.start()

    @property
    def version(self) -> LoadedVersion | None:
        """The version that answers; None while the reference names none."""
        return self.follower.current if self.follower.is_named else None

    def problem(self, served: LoadedVersion | None) -> str:
        """Return why requests to the served version are not answered; empty: they are."""
        loaded = self.version
        if loaded is None or served is None:
            return f"serving.shadow: {self.follower.problem}"
        if not can_replace(served, loaded):
            return f"serving.shadow: {loaded.identity} has another input or target than {served.identity}"
        return self.failure

    def observe(self, answered: Answered) -> None:
        """Take an answered request; returns at once."""
        answer, arrays = answered.answer, answered.question.arrays
        if answer.instead or not arrays or self.version is None or not is_sampled(answer.id, self._share):
            return
        if answered.question.warnings:  # they may need more memory than the rows, and the log takes none
            answered = answered._replace(question=answered.question._replace(warnings=()))
        with self._changed:
            self._drop_old()
            if len(self._waiting) >= _MOST or (self._bytes and self._bytes + _size(answered) > _MOST_BYTES):
                self.dropped += 1
                return
            self._bytes += _size(answered)
            self._waiting.append((self._clock(), answered))
            self._changed.notify()

    def close(self) -> None:
        """Drop what waits, end the thread, and delete the version's files. A model that hangs is not waited for."""
        with self._changed:
            self._closed = True
            self.dropped += len(self._waiting)
            self._waiting.clear()
            self._changed.notify()
        self._thread.join(_CLOSE)
        self.follower.close()

    def _work(self) -> None:
        with contextlib.suppress(OSError, AttributeError):  # not on this system
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        while (answered := self._next()) is not None:
            try:
                self._answer(answered)
                self.failure = ""
            except Exception as error:  # of the version: the live answer was given before
                failure = f"serving.shadow: {self.follower.reference} failed: {error}"
                if failure != self.failure:
                    _LOG.error("%s", failure)
                self.failed, self.failure = self.failed + 1, failure

    def _drop_old(self) -> None:
        """Drop requests that have waited too long: the newest are answered."""
        now = self._clock()
        while self._waiting and now - self._waiting[0][0] > _SECONDS:
            self._bytes -= _size(self._waiting.popleft()[1])
            self.dropped += 1

    def _next(self) -> Answered | None:
        """Wait for a request, and take it; None: the end."""
        with self._changed:
            self._drop_old()  # those that grew old while the one before was answered
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if self._closed:
                return None
            _, answered = self._waiting.popleft()
            self._bytes -= _size(answered)
            return answered

    def _answer(self, answered: Answered) -> None:
        loaded, served = self.version, answered.loaded
        if loaded is None or loaded.identity.run_id == served.identity.run_id or not can_replace(served, loaded):
            return
        arrays = answered.question.arrays
        began, identity = time.monotonic(), loaded.identity
        predictions = np.full((answered.question.rows, loaded.spec.target.outputs), np.nan, np.float32)
        try:
            if not takes_equal(served.spec.input, loaded.spec.input):
                arrays = loaded.kind.adapt(arrays, served.spec.input, loaded.spec.input)
            predictions = loaded.predict(arrays)
        finally:
            logged = Logged(
                answered.answer.id, answered.began, time.monotonic() - began, SHADOW, identity.model, identity.version,
                identity.provenance or "", "", {}, predictions, target_id(loaded.spec.target),
            )  # fmt: skip
            self._log.add(logged.answer, lambda: logged)


def _size(answered: Answered) -> int:
    """Return the bytes of a request that waits: arrays, predictions and the objects around them."""
    predictions = answered.answer.predictions
    rest = sum(map(len, predictions)) if isinstance(predictions, list) else predictions.nbytes
    return sum(array.nbytes for array in answered.question.arrays) + rest + _OVERHEAD
