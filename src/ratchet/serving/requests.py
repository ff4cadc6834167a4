"""One HTTP request: its body, its deadline, and the response to a refused one."""

from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from ratchet.settings.model import ServingSettings

__all__ = ["Refused", "deadline_seconds", "error_response", "json_response", "read_body"]

_MIB = 1 << 20


class Refused(Exception):
    """An answer that is an error; `status` is the HTTP status."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers or {}


async def read_body(request: Request, settings: ServingSettings) -> bytes:
    """Return the body.

    Raises:
        Refused: it is larger than serving.body_mib.
    """
    limit = int(settings.body_mib * _MIB)
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise Refused(413, f"the body is larger than {settings.body_mib:g} MiB (serving.body_mib)")
        parts.append(part)
    return b"".join(parts)


def deadline_seconds(request: Request, settings: ServingSettings) -> float:
    """Return the seconds that the client gives, at most those of serving.deadline.

    Raises:
        Refused: the header is no such number.
    """
    longest, given = settings.deadline, request.headers.get("ratchet-deadline")
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
