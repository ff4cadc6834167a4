"""Until when a request is worth work: its deadline, and whether its client waits."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from starlette.requests import ClientDisconnect

__all__ = ["Lifetime", "stays"]


def stays() -> bool:
    """Return False: it is not known that the client has gone."""
    return False


@dataclass(slots=True)
class Lifetime:
    """`deadline` is on `clock`; `has_left` returns whether the client has gone. In any thread.

    A client may give less time in the body, which is known once that is read: `shorten`.
    """

    deadline: float
    has_left: Callable[[], bool] = stays
    clock: Callable[[], float] = time.monotonic

    def shorten(self, deadline: float) -> None:
        """End at this time, unless the end is earlier already."""
        self.deadline = min(self.deadline, deadline)

    def check(self) -> None:
        """Stop work that no client waits for.

        Raises:
            ClientDisconnect: the client has gone.
            TimeoutError: the deadline has passed.
        """
        if self.has_left():
            raise ClientDisconnect
        if self.clock() > self.deadline:
            raise TimeoutError
