"""Refuse requests that a web page of another origin makes a browser send: ASGI middleware for every server we start.

A server that listens on loopback is still reached by every page that a browser on the same machine has open. Such a
page can send a request from its own origin (cross-site request forgery), or let its own name resolve to 127.0.0.1 (DNS
rebinding), so that the browser treats the server as the page's own. Neither can forge the headers that are checked
here: Host, Origin, Sec-Fetch-Site and Content-Type.
"""

import base64
import binascii
import contextlib
import hmac
import ipaddress
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any
from urllib.parse import urlsplit

__all__ = ["HOSTS_FIX", "BasicAuthentication", "RequestFilter", "normal_host", "split_host"]

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::([0-9]{1,5}))?")
_KNOWN_HOSTS = 64  # spellings of the own hosts that are remembered
_CHECKED = frozenset({b"host", b"origin", b"sec-fetch-site", b"content-type", b"content-length", b"transfer-encoding"})
_ADDED = ((b"x-frame-options", b"SAMEORIGIN"), (b"x-content-type-options", b"nosniff"))
_READS = ("GET", "HEAD")
_WRITES = ("POST", "PUT", "PATCH")
HOSTS_FIX = (
    "Fix: add it to platform.allowed_hosts in params.yaml, or set platform.public_url, then start the servers again."
)


def split_host(header: str) -> tuple[str, int | None] | None:
    """Split the value of a Host header into its name and its port. None: it is not one."""
    match = _HOST.fullmatch(header.strip().lower())
    if not match:
        return None
    return normal_host(match[1]), int(match[2]) if match[2] else None


def normal_host(host: str) -> str:
    """Spell a host as browsers do: lower case, IPv6 addresses short and in brackets."""
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host.strip("[]"))
        return f"[{address}]" if address.version == 6 else str(address)
    return host.lower()


class RequestFilter:
    """Pass on requests for the server's own addresses and from its own pages; answer the others.

    - 400: the Host header is not an address of this server.
    - 403: a page of another origin sent the request, or wants to open a WebSocket.
    - 415: the body of a POST, PUT or PATCH is not JSON.
    """

    def __init__(
        self,
        app: App,
        *,
        origins: Iterable[str],
        types: Iterable[str] = (),
        uploads: Iterable[str] = (),
        fix: str = HOSTS_FIX,
    ):
        """Wrap `app`.

        Args:
            origins: the server's own addresses, as http://HOST:PORT. Their hosts are those that requests may name.
            types: media types of bodies that are accepted besides JSON.
            uploads: beginnings of the paths at which files of any type are stored.
            fix: sentence that says how to add a host.
        """
        self.app, self.fix = app, fix
        self.origins = {origin for text in origins if (origin := _origin(text))}
        self.types, self.uploads = frozenset({"application/json", *types}), tuple(uploads)
        self._own_hosts: set[str] = set()  # headers that were accepted: reading one takes longer than the other checks

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer or pass on one request, WebSocket or lifespan."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
        elif refusal := self._refusal(scope):
            await _answer(scope, send, *refusal)
        else:
            await self.app(scope, receive, _unframed(send))

    def _refusal(self, scope: Message) -> tuple[int, str] | None:
        """Return the status and the reason for which a request is refused; None if it is passed on."""
        headers = _checked_headers(scope)
        hosts, origins = headers.get(b"host", ()), headers.get(b"origin", ())
        if len(hosts) != 1 or not self._is_own_host(hosts[0]):
            return 400, f"Host {', '.join(hosts)!r} is not an address of this server. {self.fix}"
        if any(_origin(origin) not in self.origins for origin in origins):
            return 403, f"Origin {', '.join(origins)!r} is not a page of this server. {self.fix}"
        if scope["type"] == "websocket" or scope["method"] in _READS:
            return None
        sites = headers.get(b"sec-fetch-site", ())
        if not origins and any(site not in ("same-origin", "none") for site in sites):
            return 403, "A page of another origin sent this request."
        if scope["method"] in _WRITES and _has_body(headers) and not scope["path"].startswith(self.uploads):
            kinds = headers.get(b"content-type", ())
            if len(kinds) != 1 or not self._is_accepted(kinds[0]):
                listed = ", ".join(kinds) or "none"
                return 415, f"Content-Type: found {listed!r}; allowed: application/json."
        return None

    def _is_own_host(self, header: str) -> bool:
        if header in self._own_hosts:
            return True
        host = split_host(header)
        if host is None:
            return False
        name, port = host
        # Without a port it is the scheme's own; a proxy that speaks TLS passes on the name alone.
        is_own = any(name == own and (port or _PORTS[scheme]) == at for scheme, own, at in self.origins)
        if is_own and len(self._own_hosts) < _KNOWN_HOSTS:
            self._own_hosts.add(header)
        return is_own

    def _is_accepted(self, content_type: str) -> bool:
        kind = content_type.partition(";")[0].strip().lower()
        return kind in self.types or bool(re.fullmatch(r"application/[\w.-]+\+json", kind))


class BasicAuthentication:
    """Ask for a user's name and password (HTTP Basic), except at `open_paths`."""

    def __init__(self, app: App, *, credentials: str, open_paths: Iterable[str] = ()):
        """Wrap `app`; `credentials` are USER:PASSWORD."""
        self.app, self.credentials, self.open_paths = app, credentials.encode(), frozenset(open_paths)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer 401 without the right name and password."""
        if scope["type"] not in ("http", "websocket") or scope["path"] in self.open_paths or self._knows(scope):
            await self.app(scope, receive, send)
        else:
            asks = (b"www-authenticate", b'Basic realm="Ratchet", charset="UTF-8"')
            await _answer(scope, send, 401, "This server asks for a user's name and password.", asks)

    def _knows(self, scope: Message) -> bool:
        values = _values(scope, b"authorization")
        scheme, _, listed = values[0].partition(" ") if len(values) == 1 else ("", "", "")
        try:
            decoded = base64.b64decode(listed.strip(), validate=True)
        except (binascii.Error, ValueError):
            return False
        return scheme.lower() == "basic" and hmac.compare_digest(decoded, self.credentials)


def _origin(text: str) -> tuple[str, str, int] | None:
    """Split http://HOST:PORT into scheme, host and port. None: it is no http origin, such as "null"."""
    try:
        parts = urlsplit(text.strip().lower())
        if parts.scheme in _PORTS and parts.hostname and not parts.username:
            return parts.scheme, normal_host(parts.hostname), parts.port or _PORTS[parts.scheme]
    except ValueError:
        pass
    return None


def _values(scope: Message, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name]


def _checked_headers(scope: Message) -> dict[bytes, list[str]]:
    """Return the values of the headers that are checked. One pass, because it is made for every request."""
    values: dict[bytes, list[str]] = {}
    for name, value in scope["headers"]:
        if (name := name.lower()) in _CHECKED:
            values.setdefault(name, []).append(value.decode("latin-1"))
    return values


def _has_body(headers: Mapping[bytes, Sequence[str]]) -> bool:
    lengths = headers.get(b"content-length", ())
    return bool(headers.get(b"transfer-encoding")) or any(length != "0" for length in lengths)


async def _answer(scope: Message, send: Send, status: int, reason: str, *headers: tuple[bytes, bytes]) -> None:
    body = json.dumps({"detail": reason, "error": reason}).encode()  # names by Prefect, and by MLflow and v2
    kind = "http.response"
    if scope["type"] == "websocket":
        kind = "websocket.http.response"
        if kind not in scope.get("extensions", {}):
            await send({"type": "websocket.close", "code": 1008})  # before it is accepted: the server answers 403
            return
    length = (b"content-length", str(len(body)).encode())
    sent = [(b"content-type", b"application/json"), (b"x-content-type-options", b"nosniff"), length, *headers]
    await send({"type": f"{kind}.start", "status": status, "headers": sent})
    await send({"type": f"{kind}.body", "body": body})


def _unframed(send: Send) -> Send:
    """Add headers by which no other page may show an answer in a frame (clickjacking) or guess its type."""

    def add(message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            present = {name.lower() for name, _ in headers}
            headers += [header for header in _ADDED if header[0] not in present]
            message = {**message, "headers": headers}
        return send(message)

    return add
