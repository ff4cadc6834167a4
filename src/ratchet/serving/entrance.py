"""Queue of the requests to the model before the event loop has begun to work on them.

Where the model is cheap, the event loop itself is what has no time. It begins with a few requests in each of its turns,
so that turns stay short: health, which does not wait here, is answered in between. A request that would wait too long
is refused before it costs anything.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from ratchet.serving.requests import Busy, discard, error_response, headers_of
from ratchet.serving.time_limit import TimeLimit

__all__ = ["BUSY", "Entrance", "busy_app"]

_TURN = 32  # requests of one turn: a batch, which takes a few milliseconds
_REFUSED = 256  # refusals for which so many begin again, so that clients in a loop leave time for answers
_LONGEST, _SHARE = 0.25, 0.1  # seconds that a request may wait here, and share of the deadline
_PAUSE = 0.002  # seconds until the model's queue may have room
_WEIGHT = 0.1  # of the latest turn
BUSY = Busy("the server is busy: more requests come than it can answer", 1.0)


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
        self._longest, self._has_room, self._clock = min(_LONGEST, _SHARE * deadline), has_room, clock
        self._waiting = deque[Callable[[], object]]()
        self._begun = self._refused = 0  # in this turn
        self._ends_turn = False  # `_next_turn` is about to run
        self._since = 0.0  # time of the latest turn that began with a request, while others waited
        self._seconds = 0.0  # expected until the next request begins, while others wait

    @property
    def is_full(self) -> bool:
        """Whether a request that comes now would wait too long."""
        return len(self._waiting) * self._seconds > self._longest

    def refuse(self) -> None:
        """Note that a request is refused, which takes time from this turn."""
        self._refused += 1

    def enter(self, begin: Callable[[], object], loop: asyncio.AbstractEventLoop) -> None:
        """Call `begin` at once, or after the requests that wait."""
        if not self._waiting and self._begun < _TURN and self._has_room():
            self._begun += 1
            begin()
        else:
            if not self._waiting:
                self._since = self._clock()
            self._waiting.append(begin)
        if not self._ends_turn:
            self._ends_turn = True
            loop.call_soon(self._next_turn, loop)

    def _next_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        most, self._begun, self._refused = _TURN * (1 + self._refused // _REFUSED), 0, 0
        self._ends_turn = bool(self._waiting)
        if not self._waiting:
            return
        while self._waiting and self._begun < most and self._has_room():
            self._begun += 1
            self._waiting.popleft()()
        seconds = self._clock() - self._since
        if not self._begun:
            self._seconds = max(self._seconds, seconds)
            loop.call_later(_PAUSE, self._next_turn, loop)
            return
        if self._waiting:
            self._seconds += _WEIGHT * (seconds / self._begun - self._seconds)
        else:  # more might have begun
            self._seconds = min(self._seconds, seconds / self._begun)
        self._since += seconds
        loop.call_soon(self._next_turn, loop)


def busy_app(seconds: float) -> ASGIApp:
    """Return the application that refuses a request after its body, for which it waits so many seconds."""
    refuse = error_response(BUSY)

    async def refused(scope: Scope, receive: Receive, send: Send) -> None:
        response = refuse
        try:
            with TimeLimit(seconds):
                await discard(receive, headers_of(scope["headers"]))
        except TimeoutError:
            response = error_response(Busy(str(BUSY), 1.0, close=True))
        except ClientDisconnect:
            return
        await response(scope, receive, send)

    return refused
