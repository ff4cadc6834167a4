"""One HTTP request: its body, its deadline, and the response to a refused one."""

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

import orjson
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from ratchet.serving.encodings import ENCODINGS, BodyDecoder
from ratchet.settings.model import ServingSettings

__all__ = [
    "Bodies",
    "Busy",
    "Header",
    "Refused",
    "Reply",
    "TooLarge",
    "answer_first",
    "content_length",
    "deadline_seconds",
    "discard",
    "error_response",
    "headers_of",
    "json_response",
]

_MIB = 1 << 20
_BODIES = 128 * _MIB  # of all requests
Header = tuple[bytes, bytes]
"""Name, in lower case, and value."""


class Refused(Exception):
    """An answer that is an error; `status` is the HTTP status."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers or {}


class Busy(Refused):
    """The server has no time for the request; that is no fault of a version."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(503, message, {"Retry-After": str(max(1, round(retry_after)))})


class TooLarge(Refused):
    """The header says that the body is too large, of which nothing is read."""

    def __init__(self, most: int) -> None:
        super().__init__(413, f"the body is larger than {most / _MIB:g} MiB (serving.body_mib)")


class Reply(Response):
    """A response with status 200 whose headers are encoded already: doing so for each answer takes long."""

    def __init__(self, content: bytes, headers: Iterable[Header]) -> None:
        self.status_code, self.background, self.body = 200, None, content
        self.raw_headers = [*headers, (b"content-length", b"%d" % len(content))]


def headers_of(fields: Iterable[Header]) -> dict[str, str]:
    """Return the values of a request's headers by their names in lower case; of equal names the first one."""
    values: dict[str, str] = {}
    for name, value in fields:
        values.setdefault(name.decode("latin-1"), value.decode("latin-1"))
    return values


class Bodies:
    """Bytes of all bodies in memory, which have a common limit.

    Attributes:
        limit: in bytes.
        size: bytes in memory now.
    """

    def __init__(self, settings: ServingSettings) -> None:
        self.most = int(settings.body_mib * _MIB)  # of one body
        self.limit, self.size = max(_BODIES, 4 * self.most), 0

    def check(self, headers: Mapping[str, str]) -> None:
        """Check the size of a body by its header.

        Raises:
            TooLarge: it is larger than serving.body_mib.
        """
        if content_length(headers) > self.most:
            raise TooLarge(self.most)

    def hold(self) -> "HeldBody":
        """Return a context with the body of one request; at its end the body counts no longer."""
        return HeldBody(self)


class HeldBody:
    """The body of one request, which counts while the context lasts."""

    __slots__ = ("_bodies", "_size")

    def __init__(self, bodies: Bodies) -> None:
        self._bodies, self._size = bodies, 0

    def __enter__(self) -> "HeldBody":
        return self

    def __exit__(self, *_: object) -> None:
        self._bodies.size -= self._size

    async def read(self, receive: Receive, headers: Mapping[str, str]) -> bytes:
        """Return the body, decompressed. The limits hold for what it takes in memory.

        Raises:
            ClientDisconnect: the client has gone.
            Refused: it is larger than serving.body_mib, the bodies of all requests are too large, or its encoding is
                unknown or damaged.
        """
        decoder = await self._decoder(receive, headers)
        parts, is_whole, received = list[bytes](), False, 0
        while not is_whole:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            is_whole = not message.get("more_body", False)
            body = message.get("body", b"")
            received += len(body)
            try:
                if received > self._bodies.most:  # what is compressed may hold nothing, and have no end
                    raise self._too_large()
                for part in decoder.pieces(body):
                    if part:
                        self._take(len(part))
                        parts.append(part)
                    if decoder.encoding:  # a short body may have many pieces; other requests go on between them
                        await asyncio.sleep(0)
                if is_whole:
                    decoder.end()
            except (Refused, ValueError) as error:
                parts.clear()
                self._bodies.size, self._size = self._bodies.size - self._size, 0
                if not is_whole and (isinstance(error, Busy) or content_length(headers)):
                    await discard(receive, headers)
                raise error if isinstance(error, Refused) else Refused(400, f"the body {error}") from None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _decoder(self, receive: Receive, headers: Mapping[str, str]) -> BodyDecoder:
        """Return the decoder of the body, whose headers may refuse it at once."""
        try:
            decoder = BodyDecoder(headers)
        except LookupError as error:
            await discard(receive, headers)
            allowed = ", ".join(ENCODINGS)
            message = f"Content-Encoding: found {str(error)!r}; allowed: {allowed}, or none"
            raise Refused(415, message, {"Accept-Encoding": allowed}) from None
        return decoder

    def _take(self, size: int) -> None:
        """Count so many bytes more.

        Raises:
            Refused: that is too much.
        """
        if self._size + size > self._bodies.most:
            raise self._too_large()
        if self._bodies.size and self._bodies.size + size > self._bodies.limit:
            raise Busy(f"the bodies of all requests are larger than {self._bodies.limit / _MIB:g} MiB", 1.0)
        self._size += size
        self._bodies.size += size

    def _too_large(self) -> Refused:
        return Refused(413, str(TooLarge(self._bodies.most)))


async def answer_first(response: Response, scope: Scope, receive: Receive, send: Send, *, seconds: float) -> None:
    """Send a whole response, then receive the body and forget it, for at most so many seconds.

    A connection that is closed while its client is sending is reset, and the client may lose the response.
    """

    async def send_open(message: Message) -> None:
        is_body = message["type"] == "http.response.body"
        await send({**message, "more_body": True} if is_body else message)

    await response(scope, receive, send_open)
    with contextlib.suppress(ClientDisconnect, TimeoutError):
        async with asyncio.timeout(seconds):
            await discard(receive, headers_of(scope["headers"]))
    await send({"type": "http.response.body", "body": b""})


async def discard(receive: Receive, headers: Mapping[str, str]) -> None:
    """Receive the rest of a body and forget it.

    A client that is still sending would get a reset connection, not the refusal. One that waits for `100 Continue`
    sends nothing.

    Raises:
        ClientDisconnect: the client has gone.
    """
    more = headers.get("expect", "").lower() != "100-continue"
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        more = message.get("more_body", False)


def content_length(headers: Mapping[str, str]) -> int:
    """Return the bytes of the body by its header; 0: it does not say."""
    value = headers.get("content-length", "")
    return int(value) if value.isdecimal() and len(value) < 20 else 0


def deadline_seconds(headers: Mapping[str, str], settings: ServingSettings) -> float:
    """Return the seconds that the client gives, at most those of serving.deadline.

    Raises:
        Refused: the header is no such number.
    """
    longest, given = settings.deadline, headers.get("ratchet-deadline")
    if given is None:
        return longest
    try:
        seconds = float(given)
    except ValueError:
        seconds = -1.0
    if not 0.0 < seconds <= longest:
        raise Refused(400, f"Ratchet-Deadline: found {given!r}; allowed: seconds up to {longest:g} (serving.deadline)")
    return seconds


def json_response(content: Any, *, status: int = 200) -> Response:
    """Return a response with JSON."""
    return Response(orjson.dumps(content), status, media_type="application/json")


def error_response(error: Refused) -> Response:
    """Return the response that names the error."""
    return Response(orjson.dumps({"error": str(error)}), error.status, error.headers, media_type="application/json")
