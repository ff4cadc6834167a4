"""HTTP with limits for the head of a request, its first line and headers, and for connections: uvicorn has none."""

import asyncio
import logging
import os
import re
import resource
import socket
import time
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from ratchet.serving.entrance import BUSY, Entrance
from ratchet.serving.http_request import Refused, error_response

__all__ = ["HeadLimits", "Server", "allow_connections"]

_LOG = logging.getLogger(__name__)
_MOST_CONNECTIONS = 4096
_RESERVE = 64  # connections above the limit, at which health is answered
_OTHER_FILES = 256  # that the process may open besides its connections
_ACCEPTS = 64  # connections that are accepted in one turn of the event loop: under overload a turn takes 10 ms
_EVERY = 60.0  # seconds between two lines of the log about connections
_HEALTH = ("/health", "/ready", "/ping", "/metrics", "/v2/health/live", "/v2/health/ready")
_MOST_BYTES = 64 << 10
_SECONDS = 30.0  # until a head that has begun is complete
_LONGEST_HEAD = 4 << 10  # that is looked at without parsing
_POST = re.compile(rb"POST (/[!-\"$->@-~]*)(?:\?[!-\"$-~]*)? HTTP/1\.1")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([ -~\t]*)")
_LENGTH = re.compile(rb"\d{1,9}")
_NEEDS_PARSER = {b"transfer-encoding", b"expect", b"upgrade"}


def allow_connections() -> int:
    """Let the process open as many files as the system allows, and return how many connections it may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_CONNECTIONS + _RESERVE + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY:
        return _MOST_CONNECTIONS
    return max(1, min(_MOST_CONNECTIONS, soft - _RESERVE - _OTHER_FILES))


class Server(uvicorn.Server):
    """Accepts several connections in one turn of the event loop.

    libuv accepts one for each listening socket, so that health would wait for the turns of all connections before it.

    Attributes:
        accepts: connections in one turn. One process of several takes few, or it would have all of 32 new clients.
    """

    accepts = _ACCEPTS

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, on copies of each socket too."""
        await super().startup(sockets)
        config, loop = self.config, asyncio.get_running_loop()
        protocol: Any = config.http_protocol_class
        create = partial(protocol, config=config, server_state=self.server_state, app_state=self.lifespan.state)
        for listening in [each for server in self.servers for each in server.sockets]:
            for _ in range(self.accepts - 1):
                copy = socket.socket(fileno=os.dup(listening.fileno()))
                self.servers.append(await loop.create_server(create, sock=copy, backlog=config.backlog))


class HeadLimits(HttpToolsProtocol):
    """Refuses a head that is too long, and closes a connection that does not complete one, or sends none.

    At the limit of connections, a new one closes the oldest without a request. If there is none, the new one gets 503,
    except for health.

    Requests to the model (POST) wait at the entrance. While it is full they are refused: one that comes in one piece
    costs no more than a look at its head.

    Attributes:
        most: connections at a time.
        refused: called with the status of each request that the application does not see, and with the path if it is
            known.
        entrance: None: requests begin at once.
        asks_model: whether a POST to a path asks the model.
        busy: refuses a request while the entrance is full.
    """

    most = _MOST_CONNECTIONS
    refused: Callable[..., None] = staticmethod(lambda status, path=None: None)
    entrance: Entrance | None = None
    asks_model: Callable[[str], bool] = staticmethod(lambda path: True)
    busy: Any = staticmethod(error_response(BUSY))
    _refused_at = 0.0  # time of the latest refusal that was not parsed, on the clock of the loop
    _last_line = 0.0  # time of the latest line about connections
    _is_in_head = True
    _has_begun = False  # a request whose last byte has not come
    _has_ended = False  # a head, or a part of a body, in the bytes that came last
    _bytes = 0  # of an incomplete head, or of lines beside a body in chunks, so far
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Start the timer, and make room for the connection."""
        super().connection_made(transport)
        self._timer = self.loop.call_later(_SECONDS, transport.close)
        if len(self.connections) > self.most:
            self._make_room()
        self._idle[self] = None

    @property
    def _idle(self) -> "dict[HeadLimits, None]":
        """Connections of this server without a request; the oldest first."""
        idle: dict[HeadLimits, None] = self.server_state.__dict__.setdefault("idle", {})
        return idle

    def _make_room(self) -> None:
        oldest = next(iter(self._idle), None)
        if oldest is not None:
            del self._idle[oldest]
            oldest.transport.close()
        elif len(self.connections) > self.most + _RESERVE:
            self.transport.abort()
        else:
            self.app = _Full(self.app, self.refused)
        if time.monotonic() > HeadLimits._last_line + _EVERY or not HeadLimits._last_line:
            HeadLimits._last_line = time.monotonic()
            done = "the oldest without a request are closed" if oldest else "further ones get 503"
            _LOG.warning("%d connections are open, as many as are allowed: %s", self.most, done)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP."""
        self.refused(400)
        super().send_400_response(msg)

    def on_message_begin(self) -> None:
        """Begin a request: note its time, and how to learn that its client has gone."""
        self._has_begun = True
        super().on_message_begin()
        self.scope |= {"ratchet.began": time.monotonic(), "ratchet.has_left": self.transport.is_closing}  # type: ignore[misc]

    def on_response_complete(self) -> None:
        """Wait for the next request.

        A client that waits for `100 Continue` may send the body or not. Bytes that follow may be the body or a request.
        """
        super().on_response_complete()
        if self.expect_100_continue and not self._is_in_head:
            self.transport.close()
        if not self.transport.is_closing() and (self.cycle is None or self.cycle.response_complete):
            self._idle[self] = None

    def data_received(self, data: bytes) -> None:
        """Take bytes of the client. A head that comes in one piece is complete afterwards, and costs no timer."""
        if self.entrance is not None and self.entrance.is_full and self._can_refuse():
            path = _path_of_post(data)
            if path and self.asks_model(path):
                self.entrance.count_refusal()
                self._refuse(path)
                return
        self._has_ended = False
        super().data_received(data)
        if self.transport.is_closing() or (self._has_ended and not self._has_begun):
            return
        if not self._has_ended:  # else these bytes end with a part of the next head, or of lines beside the body
            self._bytes += len(data)
        if self._bytes > _MOST_BYTES:
            what = "head of the request is" if self._is_in_head else "lines beside the body are"
            self.send_400_response(f"The {what} longer than {_MOST_BYTES >> 10} KiB.")
        elif self._is_in_head and self._timer is None:
            self._timer = self.loop.call_later(_SECONDS, self.transport.close)

    def _can_refuse(self) -> bool:
        """Return whether the next bytes begin a request, to which the client reads the answer."""
        is_between = not self._has_begun and (self.cycle is None or self.cycle.response_complete)
        return is_between and not self.flow.write_paused and not self.transport.is_closing()

    def _refuse(self, path: str) -> None:
        """Refuse a request that has come as a whole. The connection stays open."""
        self._refused_at = self.loop.time()
        if self._timer is not None:  # it is the first request
            self._stop_timer()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
        self.transport.write(_BUSY)
        self._idle.pop(self, None)
        self._idle[self] = None  # the latest
        self.refused(503, path)

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection, unless a request was refused meanwhile."""
        rest = self._refused_at + self.timeout_keep_alive - self.loop.time()
        if rest > 0:
            self.timeout_keep_alive_task = self.loop.call_later(rest, self.timeout_keep_alive_handler)
        else:
            super().timeout_keep_alive_handler()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Begin a request; one to the model waits for its turn, or is refused."""
        begin, scope = super()._start_asgi_task, cycle.scope
        waits = scope["method"] == "POST" and not isinstance(app, _Full) and self.asks_model(scope["path"])
        if self.entrance is None or not waits:
            begin(cycle, app)
        elif self.entrance.is_full:
            self.entrance.count_refusal()
            begin(cycle, self.busy)
        else:
            self.entrance.enter(partial(begin, cycle, app), partial(begin, cycle, self.busy), self.loop)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header. One behind a body in chunks, a trailer, is dropped."""
        if self._is_in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """End the head."""
        self._is_in_head, self._has_ended, self._bytes = False, True, 0
        self._stop_timer()
        self._idle.pop(self, None)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._has_ended, self._bytes = True, 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Wait for the next head."""
        self._is_in_head, self._has_ended, self._bytes = True, True, 0
        self._has_begun = False
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._stop_timer()
        self._idle.pop(self, None)
        super().connection_lost(exc)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _path_of_post(data: bytes) -> str | None:
    """Return the path of a whole request by POST; None if these bytes are not one, or must be parsed to be sure."""
    end = data.find(b"\r\n\r\n", 0, _LONGEST_HEAD)
    path, length = _read_head(data[:end]) if end > 0 else (None, 0)
    return path if len(data) == end + 4 + length else None


@lru_cache(256)  # one client sends the same head again and again
def _read_head(head: bytes) -> tuple[str | None, int]:
    """Return the path and the bytes of the body; without a path it must be parsed.

    What is accepted here must be a strict part of what the parser accepts, or a proxy could see other requests.
    """
    line, *lines = head.split(b"\r\n")
    first, matches = _POST.fullmatch(line), [_HEADER.fullmatch(each) for each in lines]
    headers = {header[1].lower(): header[2].lower() for header in matches if header}
    connection, length = headers.get(b"connection", b""), headers.get(b"content-length", b"")
    is_simple = len(headers) == len(matches) and b"host" in headers and _NEEDS_PARSER.isdisjoint(headers)
    if not first or not is_simple or connection not in (b"", b"keep-alive") or not _LENGTH.fullmatch(length):
        return None, 0
    return first[1].decode("ascii"), int(length)


def _written(error: Refused) -> bytes:
    """Return the bytes of a response that refuses a request."""
    response = error_response(error)
    lines = [name + b": " + value + b"\r\n" for name, value in response.raw_headers]
    return b"".join((STATUS_LINE[error.status], *lines, b"\r\n", bytes(response.body)))


_BUSY = _written(BUSY)


class _Full:
    """Answers health, and refuses everything else, because too many connections are open."""

    def __init__(self, app: Any, refused: Callable[[int], None]) -> None:
        self._app: ASGIApp = app
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        app = self._app
        if scope["path"] not in _HEALTH:
            self._refused(503)
            app = error_response(
                Refused(503, "too many connections are open", {"Retry-After": "1", "Connection": "close"})
            )
        await app(scope, receive, send)
