"""API keys of the model server: who may ask, and how often."""

import hashlib
import hmac
import json
import logging
import math
import re
import secrets
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from ratchet import files
from ratchet.errors import PlatformError
from ratchet.servers.addresses import is_loopback
from ratchet.serving.requests import Refused, error_response
from ratchet.workspace import Workspace

__all__ = ["Key", "KeyFilter", "KeyStore", "require_key"]

OPEN_PATHS = frozenset({"/", "/health", "/ready", "/ping", "/v2/health/live", "/v2/health/ready"})
"""Paths that need no key: health for load balancers, and the page, which asks for a key itself."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_PREFIX = "rk_"  # so that scanners for secrets can find a key that was published
_LOG = logging.getLogger(__name__)
_LOOK = 1.0  # seconds between two looks at the file


@dataclass(frozen=True)
class Key:
    """One key. `rate`: requests per second, 0 for no limit. `created`: ISO date."""

    name: str
    digest: str
    rate: float
    created: str


class KeyStore:
    """The file of the keys' digests. Only its owner can read it; the keys themselves are not stored."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, workspace: Workspace) -> "KeyStore":
        """Return the keys of a project folder."""
        return cls(workspace.state / "keys.json")

    def read(self) -> tuple[Key, ...]:
        """Return all keys.

        Raises:
            PlatformError: the file is damaged.
        """
        try:
            return tuple(Key(**entry) for entry in files.read_json(self.path)["keys"])
        except FileNotFoundError:
            return ()
        except (ValueError, KeyError, TypeError) as error:
            raise PlatformError(
                f"{self.path}: damaged ({error}). Fix: delete it, and add the keys again (`ratchet keys add NAME`)"
            ) from error

    def add(self, name: str, *, rate: float = 0.0) -> str:
        """Add a key and return its text, which is shown once.

        Raises:
            PlatformError: the name or the rate is not allowed, or the name is taken.
        """
        if not _NAME.fullmatch(name):
            raise PlatformError(f"found the name {name!r}; allowed: up to 64 letters, digits, '_', '-' and '.'")
        if not 0.0 <= rate < math.inf:
            raise PlatformError(f"--rate: found {rate}; allowed: a number of 0 or more")
        text = _PREFIX + secrets.token_urlsafe(32)
        with self._locked():
            known = self.read()
            if any(key.name == name for key in known):
                raise PlatformError(
                    f"there is a key {name!r}. Fix: another name, or `ratchet keys remove {name}` first"
                )
            self._write([*known, Key(name, _digest(text), rate, time.strftime("%Y-%m-%d"))])
        return text

    def remove(self, name: str) -> None:
        """Remove a key. Servers refuse it within a second.

        Raises:
            PlatformError: there is none of this name.
        """
        with self._locked():
            known = self.read()
            left = [key for key in known if key.name != name]
            if len(left) == len(known):
                listed = ", ".join(key.name for key in known) or "no keys"
                raise PlatformError(f"there is no key {name!r}; there are {listed}")
            self._write(left)

    def _locked(self) -> FileLock:
        """Return the lock without which a key that another process adds would be lost."""
        self.path.parent.mkdir(exist_ok=True)
        return FileLock(self.path.with_suffix(".lock"))

    def _write(self, keys: Iterable[Key]) -> None:
        content = json.dumps({"keys": [asdict(key) for key in keys]}, indent=2)
        files.write_bytes(self.path, content.encode(), private=True)


class KeyFilter:
    """ASGI middleware: once there is a key, requests without one are refused with 401, too many of one with 429.

    The name of the key is scope["ratchet.key"].
    """

    def __init__(self, app: ASGIApp, store: KeyStore, *, required: bool) -> None:
        """Wrap `app`. `required`: refuse also if there is no key, as beyond loopback."""
        self.app, self._store, self._required = app, store, required
        self._keys: tuple[Key, ...] = store.read()
        self._looked, self._stamp = time.monotonic(), _stamp(store.path)
        self._allowances: dict[str, tuple[float, float]] = {}  # of a key: requests that it may send now, and when

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or pass on one request."""
        if scope["type"] == "http" and (self._current() or self._required):
            try:
                self._check(scope)
            except Refused as refused:
                await error_response(refused)(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        """Store the name of the request's key in the scope.

        Raises:
            Refused: it has none, a wrong one, or has sent too many requests.
        """
        given = Request(scope).headers.getlist("authorization")
        scheme, _, text = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        digest = _digest(text.strip())
        # All keys are compared, so that the time depends on none of them.
        equal = [key for key in self._keys if hmac.compare_digest(key.digest, digest)]
        if scheme.lower() == "bearer" and equal:
            scope["ratchet.key"] = equal[0].name
            self._count(equal[0])
        elif scope["path"] not in OPEN_PATHS:
            asks = {"WWW-Authenticate": 'Bearer realm="Ratchet"'}
            raise Refused(401, "the request has no valid key. Fix: send `Authorization: Bearer KEY`", asks)

    def _count(self, key: Key) -> None:
        """Take one request of the key's allowance, which grows by `rate` per second up to that of one second."""
        if not key.rate:
            return
        now, most = time.monotonic(), max(1.0, key.rate)
        left, since = self._allowances.get(key.name, (most, now))
        left = min(most, left + (now - since) * key.rate)
        if left < 1.0:
            wait = str(max(1, round((1.0 - left) / key.rate)))
            raise Refused(429, f"the key {key.name} may send {key.rate:g} requests per second", {"Retry-After": wait})
        self._allowances[key.name] = (left - 1.0, now)

    def _current(self) -> tuple[Key, ...]:
        """Return the keys; a changed file is read again. One that cannot be read leaves the keys of before."""
        if time.monotonic() - self._looked > _LOOK:
            self._looked = time.monotonic()
            if (stamp := _stamp(self._store.path)) != self._stamp:
                self._stamp = stamp
                try:
                    self._keys = self._store.read()
                except PlatformError as error:
                    _LOG.error("%s. The keys of before stay valid", error)
        return self._keys


def require_key(workspace: Workspace, host: str) -> None:
    """Refuse to listen where other machines reach the server while it has no API key.

    Raises:
        PlatformError: naming the address and the fix.
    """
    if not is_loopback(host) and not KeyStore.of(workspace).read():
        raise PlatformError(
            f"platform.host: {host} lets other machines ask the model server. Allowed beyond loopback: only with an "
            "API key. Fix: `ratchet keys add NAME`, then the same command again; or `ratchet set "
            "platform.host=127.0.0.1` and connect by SSH"
        )


def _digest(text: str) -> str:
    # Keys have 256 random bits, which cannot be guessed, so a slow hash as for passwords would protect nothing more.
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _stamp(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except FileNotFoundError:
        return 0, 0
    return status.st_mtime_ns, status.st_ino
