"""A thread of its own for work beside the answers: explanations, labels, versions that are loaded."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from ratchet.serving.lifetime import Lifetime
from ratchet.serving.versions.batching import Overloaded

__all__ = ["Worker"]

_MOST = 16  # functions that wait


class Worker:
    """One daemon thread, with a bounded queue. The end of the process does not wait for it."""

    def __init__(self, name: str) -> None:
        """Start the thread."""
        self._jobs: deque[tuple[Lifetime | None, asyncio.Future[Any], Callable[[], Any]]] = deque()
        self._changed, self._closed = threading.Condition(), False
        threading.Thread(target=self._work, name=name, daemon=True).start()

    async def run(self, function: Callable[[], Any], lifetime: Lifetime | None = None) -> Any:
        """Return the function's result. One whose lifetime has ended before its turn is not called.

        Raises:
            Overloaded: too many wait.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        with self._changed:
            if self._closed or len(self._jobs) >= _MOST:
                raise Overloaded(1.0)
            self._jobs.append((lifetime, future, function))
            self._changed.notify()
        return await future

    def close(self) -> None:
        """Drop what waits. The function that runs is not waited for."""
        with self._changed:
            self._closed, dropped = True, [future for _, future, _ in self._jobs]
            self._jobs.clear()
            self._changed.notify()
        for future in dropped:
            _settle(future, None, Overloaded(1.0))

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._closed)
                if self._closed:
                    return
                lifetime, future, function = self._jobs.popleft()
            result, error = None, None
            try:
                if lifetime:
                    lifetime.check()
                if not future.cancelled():
                    result = function()
            except (Exception, SystemExit) as raised:
                error = raised if isinstance(raised, Exception) else RuntimeError(f"the code raised {raised!r}")
            _settle(future, result, error)
            del future, function, result, error


def _settle(future: "asyncio.Future[Any]", result: Any, error: Exception | None) -> None:
    """Pass a result, or an error, to a future from another thread."""

    def set_it() -> None:
        if future.done():  # its client has gone
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    loop = future.get_loop()
    if not loop.is_closed():
        loop.call_soon_threadsafe(set_it)
