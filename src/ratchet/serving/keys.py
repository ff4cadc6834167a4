"""API keys of the model server: who may ask."""

import contextlib
import errno
import hashlib
import hmac
import json
import logging
import re
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from ratchet import files
from ratchet.errors import PlatformError
from ratchet.servers.addresses import is_loopback
from ratchet.serving.http_request import Refused, error_response
from ratchet.workspace import DISK_FIXES, Workspace

__all__ = ["Key", "KeyFilter", "KeyStore", "require_key"]

OPEN_PATHS = frozenset({"/", "/health", "/ready", "/ping", "/v2/health/live", "/v2/health/ready"})
"""Paths that need no key: health for load balancers, and the page, which asks for a key itself."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_PREFIX = "rk_"  # so that scanners for secrets can find a key that was published
_LOG = logging.getLogger(__name__)
_LOOK = 1.0  # seconds between two looks at the file
_MISSING = (0, 0, 0)  # stamp of a missing file


@dataclass(frozen=True)
class Key:
    """One key. `created`: ISO date."""

    name: str
    digest: str
    created: str


class KeyStore:
    """The file of the keys' digests. Only its owner can read it; the keys themselves are not stored.

    A second file, `keys.required`, is made with the first key. While it is there, no keys means that all requests are
    refused: a lost file of keys opens nothing.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._mark = path, path.with_suffix(".required")

    @classmethod
    def of(cls, workspace: Workspace) -> "KeyStore":
        """Return the keys of a project folder."""
        return cls(workspace.state / "keys.json")

    def read(self) -> tuple[Key, ...]:
        """Return all keys.

        Raises:
            PlatformError: the file is damaged or cannot be read.
        """
        return self.content()[0]

    @property
    def required(self) -> bool:
        """Return whether there is a key, or was one and `off` was not called since."""
        is_off = self.content()[1]
        return self._mark.exists() if is_off is None else not is_off

    def off(self) -> None:
        """Remove all keys, and let the server answer without one on loopback."""
        with self._locked():
            self._write((), off=True)
            self._mark.unlink(missing_ok=True)

    def mark(self) -> None:
        """Remember that there is a key: an earlier Ratchet did not."""
        with contextlib.suppress(OSError):  # of a bundle that cannot be written, whose settings say so
            files.write_text(self._mark, "")

    def content(self) -> tuple[tuple[Key, ...], bool | None]:
        """Return the keys, and whether they were switched off; None: there is no file. It raises as `read` does."""
        try:
            content = files.read_json(self.path)
            keys = tuple(Key(entry["name"], entry["digest"], entry["created"]) for entry in content["keys"])
            return keys, content.get("off", False) is True
        except FileNotFoundError:
            return (), None
        except OSError as error:
            raise _unreadable(self.path, error) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise PlatformError(
                f"{self.path}: damaged ({error}). Fix: restore it; or delete it, and add the keys again "
                "(`ratchet keys add NAME`)"
            ) from error

    def add(self, name: str) -> str:
        """Add a key and return its text, which is shown once.

        Raises:
            PlatformError: the name is not allowed, or is taken.
        """
        if not _NAME.fullmatch(name):
            raise PlatformError(f"found the name {name!r}; allowed: up to 64 letters, digits, '_', '-' and '.'")
        text = _PREFIX + secrets.token_urlsafe(32)
        with self._locked():
            known = self.read()
            if any(key.name == name for key in known):
                raise PlatformError(
                    f"there is a key {name!r}. Fix: another name, or `ratchet keys remove {name}` first"
                )
            self._write([*known, Key(name, _digest(text), time.strftime("%Y-%m-%d"))])
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

    def _write(self, keys: Iterable[Key], *, off: bool = False) -> None:
        files.write_text(self._mark, "")  # first: a lost file of keys must open nothing
        content = json.dumps({"keys": [asdict(key) for key in keys], "off": off}, indent=2)
        files.write_bytes(self.path, content.encode(), private=True)


class KeyFilter:
    """ASGI middleware: once there was a key, requests without one are refused with 401.

    The name of the key is scope["ratchet.key"].

    Attributes:
        problem: why the file cannot be read; empty: it can.
    """

    def __init__(
        self, app: ASGIApp, store: KeyStore, *, required: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Wrap `app`. `required`: refuse also if there never was a key, as beyond loopback. `clock`: seconds."""
        self.app, self._store, self._always, self._clock = app, store, required, clock
        self._looked, self._stamp, self.problem = clock(), _stamp(store.path), ""
        self._keys: tuple[Key, ...] = store.read()
        if self._keys:
            store.mark()
        self._required = required or store.required

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or pass on one request."""
        self._refresh()
        if scope["type"] == "http" and self._required:
            try:
                self._check(scope)
            except Refused as refused:
                await error_response(refused)(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        """Store the name of the request's key in the scope.

        Raises:
            Refused: it has none, or a wrong one.
        """
        given = Request(scope).headers.getlist("authorization")
        scheme, _, text = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        digest = _digest(text.strip())
        # All keys are compared, so that the time depends on none of them.
        equal = [key for key in self._keys if hmac.compare_digest(key.digest, digest)]
        if scheme.lower() == "bearer" and equal:
            scope["ratchet.key"] = equal[0].name
        elif scope["path"] not in OPEN_PATHS:
            asks = {"WWW-Authenticate": 'Bearer realm="Ratchet"'}
            raise Refused(401, "the request has no valid key. Fix: send `Authorization: Bearer KEY`", asks)

    def _refresh(self) -> None:
        """Read the file again if it changed. One that cannot be read leaves the keys of before."""
        if self._clock() - self._looked <= _LOOK:
            return
        self._looked = self._clock()
        try:
            if (stamp := _stamp(self._store.path)) == self._stamp:
                self.problem = ""
                return
            self._keys, is_off = self._store.content()
        except PlatformError as error:  # the stamp stays as it is, so that the next look reads again
            before, self.problem = self.problem, f"{error}. The keys of before stay valid"
            if self.problem != before:
                _LOG.error("%s", self.problem)
            return
        self._stamp, self.problem = stamp, ""
        if is_off is not None:  # keys that are lost open nothing
            self._required = self._always or not is_off
        if self._required and not self._keys:
            _LOG.error("%s", _no_keys(self._store.path))


def require_key(store: KeyStore, host: str, *, always: bool, named: str = "platform.host") -> None:
    """Refuse to listen without an API key where one is needed.

    Args:
        store: the keys.
        host: address to listen on.
        always: serving.keys is required.
        named: setting or option of the address.

    Raises:
        PlatformError: naming the address, the setting or the file, and the fix.
    """
    if store.read():
        return
    if not is_loopback(host):
        raise PlatformError(
            f"{named}: {host} lets other machines ask the model server. Allowed beyond loopback: only with an API "
            f"key. Fix: `ratchet keys add NAME`, then the same command again; or {named} 127.0.0.1, and connect by SSH"
        )
    if always:
        raise PlatformError("serving.keys: found required, and there is no API key. Fix: `ratchet keys add NAME`")
    if store.required:
        raise PlatformError(_no_keys(store.path))


def _no_keys(path: Path) -> str:
    state = "has no key" if path.exists() else "is missing"
    return (
        f"{path}: {state}, so the model server refuses all requests. Fix: restore the file, or `ratchet keys add "
        "NAME`. To answer without keys on this machine: `ratchet keys off`"
    )


def _digest(text: str) -> str:
    # Keys have 256 random bits, which cannot be guessed, so a slow hash as for passwords would protect nothing more.
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _stamp(path: Path) -> tuple[int, int, int]:
    """Return what changes with the content, and with the owner and the rights, of a file.

    Raises:
        PlatformError: the folder cannot be read.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        return _MISSING
    except OSError as error:
        raise _unreadable(path, error) from error
    return status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def _unreadable(path: Path, error: OSError) -> PlatformError:
    own = dict.fromkeys((errno.EACCES, errno.EPERM), "correct its owner")  # the server cannot work in a clone
    fix = (DISK_FIXES | own).get(error.errno or 0, "make it readable for this user")
    return PlatformError(f"{path}: cannot be read ({error.strerror}). Fix: {fix}. It is tried again each second")
