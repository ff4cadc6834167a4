"""The text of a language model as server-sent events, while it is generated."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import orjson

__all__ = ["TextStream", "event"]


class TextStream:
    """A text that a thread generates and the event loop sends piece by piece.

    Attributes:
        text: the whole text, when it is generated; or the exception.
    """

    def __init__(
        self,
        generate: Callable[[], Iterator[str]],
        submit: Callable[[Callable[[], str]], Awaitable[str]],
        *,
        deadline: float,
    ) -> None:
        """Begin the generation.

        Args:
            generate: returns the pieces.
            submit: runs a function in a thread.
            deadline: on the clock of `time.monotonic`; the generation ends then with a TimeoutError.
        """
        self._generate, self._deadline = generate, deadline
        self._loop = asyncio.get_running_loop()
        self._pieces: asyncio.Queue[str | None] = asyncio.Queue()  # None: the end
        self._is_left = False
        self.text = asyncio.ensure_future(submit(self._write))
        self.text.add_done_callback(self._end)

    async def pieces(self) -> AsyncIterator[str]:
        """Yield the pieces as they come.

        Raises:
            Exception: that of `text`, after the pieces that came before it.
        """
        while (piece := await self._pieces.get()) is not None:
            yield piece
        await self.text

    def leave(self) -> None:
        """End the generation after the next token, because its client has gone."""
        self._is_left = True
        self.text.cancel()

    def _write(self) -> str:
        pieces = []
        for piece in self._generate():
            if self._is_left:
                break
            if time.monotonic() > self._deadline:
                raise TimeoutError
            pieces.append(piece)
            self._loop.call_soon_threadsafe(self._pieces.put_nowait, piece)
        return "".join(pieces)

    def _end(self, text: "asyncio.Future[str]") -> None:
        if not text.cancelled():
            text.exception()  # retrieved here, since its client may have gone
        self._pieces.put_nowait(None)


def event(content: dict[str, Any], name: str = "") -> bytes:
    """Return one event with JSON as its data. An event without a name is a message."""
    return (f"event: {name}\n" if name else "").encode() + b"data: " + orjson.dumps(content) + b"\n\n"
