"""Queue of the requests to the model before the event loop has begun to work on them.

Where the model is cheap, the event loop itself is what has no time. It begins with a few requests in each of its turns,
so that turns stay short: health, which does not wait here, is answered in between. A request that would wait too long
is refused before it costs anything.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from ratchet.serving.http_request import Busy, Refused, discard, error_response, headers_of

__all__ = ["BUSY", "Entrance", "busy_app"]

_PER_TURN = 32  # requests: a batch, which takes a few milliseconds
_REFUSALS = 256  # after so many in a turn, _PER_TURN more requests begin in the next one: refusals take its time
_MOST_SECONDS, _SHARE = 0.25, 0.1  # that a request may wait here, and share of the deadline
_PAUSE = 0.002  # seconds until the model's queue may have room
_WEIGHT = 0.1  # of the latest turn
BUSY = Busy("the server is busy: more requests come than it can answer", 1.0)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A request, the time at which it came, and the two ways to go on with it."""

    since: float
    begin: Callable[[], object]
    refuse: Callable[[], object]


class Entrance:
    """Begins with requests in the order in which they came."""

    def __init__(
        self,
        deadline: float,
        has_room: Callable[[], bool] = lambda: True,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with requests while `has_room` returns True. `deadline`: seconds. `clock`: in seconds."""
        self._most_seconds, self._has_room, self._clock = min(_MOST_SECONDS, _SHARE * deadline), has_room, clock
        self._waiting = deque[_Waiting]()
        self._begun = self._refusals = 0  # in this turn
        self._is_turn_scheduled = False
        self._turned = 0.0  # time of the latest turn that began with a request, while others waited
        self._seconds_each = 0.0  # until the next request begins, while others wait; 0: not known yet

    def __len__(self) -> int:
        """Return how many requests wait."""
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        """Whether a request that comes now would wait too long."""
        if not self._waiting:
            return False
        stands = self._clock() - self._turned  # the event loop is late, or the model has no room
        return max(stands, len(self._waiting) * self._seconds_each) > self._most_seconds

    def count_refusal(self) -> None:
        """Note that a request is refused, which takes time from this turn."""
        self._refusals += 1

    def enter(self, begin: Callable[[], object], refuse: Callable[[], object], loop: asyncio.AbstractEventLoop) -> None:
        """Call `begin` at once, or after the requests that wait; or `refuse` if the model has no room for too long."""
        if not self._waiting and self._begun < _PER_TURN and self._has_room():
            self._begun += 1
            begin()
        else:
            now = self._clock()
            if not self._waiting:  # what was measured before may be an hour old
                self._turned, self._seconds_each = now, 0.0
            self._waiting.append(_Waiting(now, begin, refuse))
        if not self._is_turn_scheduled:
            self._is_turn_scheduled = True
            loop.call_soon(self._next_turn, loop)

    def _next_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        most, self._begun, self._refusals = _PER_TURN * (1 + self._refusals // _REFUSALS), 0, 0
        self._is_turn_scheduled = bool(self._waiting)
        if not self._waiting:
            return
        while self._waiting and self._begun < most and self._has_room():
            self._begun += 1
            self._waiting.popleft().begin()
        now = self._clock()
        if self._begun:
            each = (now - self._turned) / self._begun
            self._seconds_each += (_WEIGHT if self._seconds_each else 1.0) * (each - self._seconds_each)
            self._turned = now
            loop.call_soon(self._next_turn, loop)
            return
        while self._waiting and self._begun < most and now - self._waiting[0].since > self._most_seconds:
            self._begun += 1
            self._waiting.popleft().refuse()
        loop.call_later(_PAUSE, self._next_turn, loop)


def busy_app(seconds: float) -> ASGIApp:
    """Return the application that reads a body for at most so many seconds, then refuses the request."""
    refuse = error_response(BUSY)

    async def refused(scope: Scope, receive: Receive, send: Send) -> None:
        response = refuse
        try:
            async with asyncio.timeout(seconds):
                await discard(receive, headers_of(scope["headers"]))
        except TimeoutError:
            response = error_response(Refused(503, str(BUSY), {"Retry-After": "1", "Connection": "close"}))
        except ClientDisconnect:
            return
        await response(scope, receive, send)

    return refused
