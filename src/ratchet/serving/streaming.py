"""The text of a language model as server-sent events, while it is generated."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import orjson
from starlette.requests import ClientDisconnect

from ratchet.serving.lifetime import Lifetime

__all__ = ["TextStream", "event"]


class TextStream:
    """A text that a thread generates and the event loop sends piece by piece.

    Attributes:
        text: a list with the whole text, when it is generated; or the exception.
    """

    def __init__(
        self,
        generate: Callable[[], Iterator[str]],
        submit: Callable[[Iterator[str], Lifetime], Awaitable[list[str]]],
        lifetime: Lifetime,
    ) -> None:
        """Begin the generation.

        Args:
            generate: returns the pieces.
            submit: takes the items of an iterator in a thread.
            lifetime: of the request; at its deadline the generation ends with a TimeoutError.
        """
        self._generate, self._lifetime = generate, lifetime
        self._loop = asyncio.get_running_loop()
        self._pieces: asyncio.Queue[str | None] = asyncio.Queue()  # None: the end
        self._is_left = False
        self.text = asyncio.ensure_future(submit(self._write(), lifetime))
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

    def _write(self) -> Iterator[str]:
        pieces = []
        for piece in self._generate():
            if self._is_left:
                raise ClientDisconnect
            self._lifetime.check()
            pieces.append(piece)
            self._loop.call_soon_threadsafe(self._pieces.put_nowait, piece)
        yield "".join(pieces)

    def _end(self, text: "asyncio.Future[list[str]]") -> None:
        if not text.cancelled():
            text.exception()  # retrieved here, since its client may have gone
        self._pieces.put_nowait(None)


def event(content: dict[str, Any], name: str = "") -> bytes:
    """Return one event with JSON as its data. An event without a name is a message."""
    return (f"event: {name}\n" if name else "").encode() + b"data: " + orjson.dumps(content) + b"\n\n"
