"""Where files lie: a folder of this machine, or any URL that fsspec knows (s3://, gs://, https:// ...)."""

import os
import socket
import stat
import time
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from ratchet import urls
from ratchet.errors import DataError, first_line

__all__ = ["Storage", "Tree", "is_url", "of_a_storage", "open_storage", "unreachable"]

IGNORED = frozenset({"thumbs.db"})
_FRESH = 2_000_000_000  # nanoseconds: clocks of file systems are coarse, a change just made may not show
_AT_ONCE = 8 << 20  # bytes: larger files are not read into memory
_LARGEST = 1 << 30  # bytes: a remote file is fetched into memory
_TRIES = 4
_LONGEST_REASON = 300  # characters
_LIBRARIES = frozenset(
    {
        "adlfs",
        "aiobotocore",
        "aiohttp",
        "asyncssh",
        "azure",
        "botocore",
        "fsspec",
        "gcsfs",
        "google",
        "paramiko",
        "s3fs",
    }
)


@dataclass
class Tree:
    """What lies below a place; paths are relative to it, with `/` between the parts.

    `stamps` belong to `names`, one each: a text that changes whenever the file does, None where that is not certain.
    """

    names: list[str] = field(default_factory=list)
    stamps: list[str | None] = field(default_factory=list)
    faults: dict[str, str] = field(default_factory=dict)  # name -> why the file cannot be used
    folders: list[str] = field(default_factory=list)

    def add(self, name: str, stamp: str | None = None, *, fault: str | None = None) -> None:
        """One file more."""
        self.names.append(name)
        self.stamps.append(stamp)
        if fault is not None:
            self.faults[name] = fault

    def inside(self, folder: str) -> list[str]:
        """The names of the folders directly in `folder` ("": the top), sorted."""
        start = f"{folder}/" if folder else ""
        rests = (name[len(start) :] for name in self.folders if name.startswith(start))
        return sorted(rest for rest in rests if rest and "/" not in rest)


class Storage(Protocol):
    """A place with files."""

    name: str  # the last part of the path
    where: str  # the whole of it, for a person
    lists: bool  # whether it can tell what it holds without searching the world
    near: bool  # whether reading costs this machine's time and not the network's

    def tree(self) -> Tree:
        """Everything that lies here, hidden files and Windows' Thumbs.db passed over."""

    def read(self, name: str) -> bytes | BinaryIO:
        """What the file with this relative path holds; a large one open and seekable. OSError: it cannot be had."""


def is_url(path: str) -> bool:
    """Whether a setting names a URL and not a path of this machine."""
    return "://" in path


def open_storage(path: str, *, root: Path) -> Storage:
    """The place that a setting names; a relative path is relative to `root`.

    Raises:
        DataError: there is no such place, it cannot be reached, or the URL holds a password.
    """
    if not is_url(path):
        return LocalFolder(root / Path(path).expanduser())
    if kind := urls.secret_in(path):
        raise DataError(
            f"data.path: found {urls.redacted(path)}, whose {kind} would be committed and recorded with every run. "
            f"Allowed: an address without it. Fix: {urls.where_instead('data.path', path)}"
        )
    return RemoteFolder(path.rstrip("/"))


class LocalFolder:
    """A folder of this machine. Links to folders are followed, except back up to a folder they lie in."""

    lists = near = True

    def __init__(self, path: Path) -> None:
        self.path = path
        self._start = os.path.join(path, "")
        self.name = Path(os.path.abspath(path)).name
        self.where = str(path)
        if not path.is_dir():
            found = "is a file" if path.is_file() else "is not there"
            raise DataError(f"data.path: {path} {found}{_other_forms(path)}: name a folder with your images")

    def siblings(self) -> list[str]:
        """The names of this folder and of those beside it, sorted; none where they cannot be listed."""
        try:
            with os.scandir(Path(os.path.abspath(self.path)).parent) as found:
                return sorted(entry.name for entry in found if entry.is_dir() and entry.name[0] != ".")
        except OSError:
            return []

    def tree(self) -> Tree:
        """Everything that lies here."""
        tree = Tree()
        _walk(str(self.path), "", (), tree, settled=time.time_ns() - _FRESH)
        return tree

    def read(self, name: str) -> bytes | BinaryIO:
        """What the file with this relative path holds; a large one open and seekable."""
        opened = os.open(f"{self._start}{name}", os.O_RDONLY | os.O_NONBLOCK)  # a pipe must not make us wait
        try:
            kind = os.fstat(opened)
            if not stat.S_ISREG(kind.st_mode):
                raise OSError("not a regular file")
            if kind.st_size > _AT_ONCE:
                return os.fdopen(os.dup(opened), "rb")
            return os.read(opened, kind.st_size)
        finally:
            os.close(opened)


def _other_forms(path: Path) -> str:
    """Where a folder's name exists in another Unicode form: both, spelled out."""
    for folder in (path, *path.parents):
        if folder.parent.is_dir() and not folder.exists():
            name = unicodedata.normalize("NFC", folder.name)
            same = [other for other in os.listdir(folder.parent) if unicodedata.normalize("NFC", other) == name]
            if same:
                return (
                    f", but {same[0]!r} is, whose name has another Unicode form ({same[0]!a}, data.path has "
                    f"{folder.name!a}): rename it, or set data.path to its own form"
                )
    return ""


def _walk(folder: str, prefix: str, above: tuple[tuple[int, int], ...], tree: Tree, *, settled: int) -> None:
    """Add what lies in `folder`; `above` identifies the folders on the way here."""
    here = os.stat(folder)
    above = (*above, (here.st_dev, here.st_ino))
    try:
        with os.scandir(folder) as found:
            entries = list(found)
    except OSError as error:
        raise DataError(
            f"{folder}: cannot be listed ({error.strerror}): let this user read it, or remove it"
        ) from error
    for entry in entries:
        if entry.name[0] == "." or entry.name.casefold() in IGNORED:
            continue
        name = prefix + entry.name
        try:
            kind = entry.stat()
        except OSError as error:
            tree.add(_text(name), fault=f"cannot be reached: {error.strerror}")
            continue
        if stat.S_ISREG(kind.st_mode):
            # A number in place of its parts: there may be millions. Python hashes whole numbers alike in every process.
            stamp = hash((kind.st_size, kind.st_mtime_ns, kind.st_ctime_ns, kind.st_ino))
            changed = max(kind.st_mtime_ns, kind.st_ctime_ns)
            text = name if name.isascii() else _text(name)
            tree.names.append(text)
            tree.stamps.append(str(stamp) if changed < settled else None)
            if text is not name:
                tree.faults[text] = "name is not UTF-8"
        elif not stat.S_ISDIR(kind.st_mode):
            tree.add(_text(name), fault="not a regular file")
        elif (kind.st_dev, kind.st_ino) not in above:
            tree.folders.append(name)
            _walk(entry.path, f"{name}/", above, tree, settled=settled)


def _text(name: str) -> str:
    """A file's name as it can be written down: the very same where it is UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return name.encode("utf-8", "backslashreplace").decode()
    return name


class RemoteFolder:
    """A URL, by fsspec. Credentials come from the environment, as each storage's own tools read them."""

    near = False

    def __init__(self, url: str) -> None:
        self.where = url
        self.name = url.rpartition("/")[2]
        self.lists = not url.startswith("http")  # a web server shows pages, with links to anywhere
        self._top: str

    @cached_property
    def _system(self) -> Any:
        import fsspec

        try:
            system, self._top = fsspec.core.url_to_fs(self.where, skip_instance_cache=True)  # some connect at once
        except (ImportError, ValueError) as error:
            raise DataError(f"data.path: {self.where}: {error}: install what it needs, or copy the data here") from None
        return system

    def tree(self) -> Tree:
        """Everything that lies here."""
        try:
            found = self._try(lambda: self._system.find(self._top, detail=True))
        except FileNotFoundError as error:
            if "bucket" in str(error).lower():
                raise unreachable(self.where, error) from None
            found = {}
        except PermissionError as error:
            raise unreachable(self.where, error) from None
        if not found:
            raise DataError(f"data.path: {self.where} holds nothing: name a place with your pictures")
        tree, folders = Tree(), set[str]()
        for path, info in found.items():
            name = path.removeprefix(self._top).lstrip("/")
            parts = name.split("/")
            if not name or any(part.startswith(".") for part in parts) or parts[-1].casefold() in IGNORED:
                continue
            folders.update("/".join(parts[:depth]) for depth in range(1, len(parts)))
            version = next((info[key] for key in ("ETag", "etag", "LastModified", "mtime") if info.get(key)), None)
            size = info.get("size") or 0
            fault = f"{size:,} bytes, more than any picture has" if size > _LARGEST else None
            tree.add(name, None if version is None else f"{size} {version}", fault=fault)
        tree.folders = sorted(folders)
        return tree

    def read(self, name: str) -> bytes:
        """What the file with this relative path holds."""
        content: bytes = self._try(lambda: self._fetch(name))
        return content

    def _fetch(self, name: str) -> Any:
        # Not by its size first: fsspec calls a web server that is gone a file that is not there.
        return self._system.cat_file(f"{self._top}/{name}")

    def _try(self, act: Callable[[], Any]) -> Any:
        """Do it, again after a while where the network fails; what is missing or forbidden is reported at once."""
        for number in range(_TRIES):
            try:
                return act()
            except (FileNotFoundError, PermissionError, DataError):
                raise
            except Exception as error:  # every storage has its own; they have nothing in common
                if number == _TRIES - 1 or _is_lasting(error):
                    raise unreachable(self.where, error) from None
                time.sleep(2**number / 4)
        raise AssertionError("unreachable")


def unreachable(where: str, error: BaseException) -> DataError:
    """Put the error of a storage's own library into one sentence, with the fix."""
    kind, said = type(error).__name__, first_line(error)[:_LONGEST_REASON]
    check = "check the network, the address and the credentials in the environment, then run the same again"
    if isinstance(error, socket.gaierror) or "Name or service not known" in said:
        said, fix = f"its host name is not known: {said}", "check the address in data.path and the network"
    elif "Credentials" in kind or "credentials" in said.lower():
        said = f"no usable credentials: {said}"
        fix = "set them in the environment, for example AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
    elif isinstance(error, ConnectionRefusedError) or "Could not connect" in said or "Connect call failed" in said:
        said, fix = f"the connection is refused: {said}", f"start the server, or correct the address; {check}"
    elif isinstance(error, FileNotFoundError):
        fix = "create the bucket, or correct the address in data.path"
    elif isinstance(error, PermissionError) or "PermissionDenied" in kind:
        said, fix = f"access is denied: {said}", "let this user read it, or set other credentials in the environment"
    elif "HostKey" in kind:
        fix = f"log in once with ssh, which adds the host's key to ~/.ssh/known_hosts; {check}"
    else:
        fix = check
    return DataError(f"data.path: {urls.redacted(where)} does not answer ({kind}: {said}): {fix}")


def of_a_storage(error: BaseException) -> bool:
    """Whether an error is the network's or a storage library's."""
    return isinstance(error, OSError) or type(error).__module__.partition(".")[0] in _LIBRARIES


def _is_lasting(error: BaseException) -> bool:
    """Whether trying again would not help: credentials or a host's name are wrong."""
    kind = type(error).__name__
    return isinstance(error, socket.gaierror) or any(word in kind for word in ("Credentials", "HostKey", "Denied"))
