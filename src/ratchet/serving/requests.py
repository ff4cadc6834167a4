"""One HTTP request: its body, its deadline, and the response to a refused one."""

from collections.abc import Iterable, Mapping
from typing import Any

import orjson
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive

from ratchet.settings.model import ServingSettings

__all__ = [
    "Header",
    "Refused",
    "Reply",
    "deadline_seconds",
    "error_response",
    "headers_of",
    "json_response",
    "read_body",
]

_MIB = 1 << 20
Header = tuple[bytes, bytes]
"""Name, in lower case, and value."""


class Refused(Exception):
    """An answer that is an error; `status` is the HTTP status."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers or {}


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


async def read_body(receive: Receive, settings: ServingSettings) -> bytes:
    """Return the body.

    Raises:
        ClientDisconnect: the client has gone.
        Refused: it is larger than serving.body_mib.
    """
    limit = int(settings.body_mib * _MIB)
    parts, size, is_whole = list[bytes](), 0, False
    while not is_whole:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise Refused(413, f"the body is larger than {settings.body_mib:g} MiB (serving.body_mib)")
        parts.append(part)
        is_whole = not message.get("more_body", False)
    return parts[0] if len(parts) == 1 else b"".join(parts)


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
