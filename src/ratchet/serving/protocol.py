"""HTTP with limits for the head of a request, its first line and headers: uvicorn has none."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["HeadLimits"]

_MOST_BYTES = 64 << 10
_SECONDS = 30.0  # until a head that has begun is complete


class HeadLimits(HttpToolsProtocol):
    """Refuses a head that is too long, and closes a connection that does not complete one, or sends none."""

    _is_in_head = True
    _has_ended = False  # a head or a body, in the bytes that came last
    _bytes = 0  # of an incomplete head so far
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Start the timer."""
        super().connection_made(transport)
        self._timer = self.loop.call_later(_SECONDS, transport.close)

    def data_received(self, data: bytes) -> None:
        """Take bytes of the client. A head that comes in one piece is complete afterwards, and costs no timer."""
        self._has_ended = False
        super().data_received(data)
        if self._has_ended or not self._is_in_head or self.transport.is_closing():
            return
        self._bytes += len(data)
        if self._bytes > _MOST_BYTES:
            self.send_400_response(f"The head of the request is longer than {_MOST_BYTES >> 10} KiB.")
        elif self._timer is None:
            self._timer = self.loop.call_later(_SECONDS, self.transport.close)

    def on_headers_complete(self) -> None:
        """End the head."""
        self._is_in_head, self._has_ended, self._bytes = False, True, 0
        self._stop_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Wait for the next head."""
        self._is_in_head = self._has_ended = True
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._stop_timer()
        super().connection_lost(exc)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
