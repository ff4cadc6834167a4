"""Where files lie: a folder of this machine, or any URL that fsspec knows (s3://, gs://, https:// ...)."""

import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Protocol
from urllib.parse import urlsplit

from ratchet.errors import DataError

__all__ = ["Storage", "Tree", "is_url", "open_storage"]

IGNORED = frozenset({"thumbs.db"})
_FRESH = 2_000_000_000  # nanoseconds: clocks of file systems are coarse, a change just made may not show
_AT_ONCE = 8 << 20  # bytes: larger files are not read into memory
_LARGEST = 1 << 30  # bytes: a remote file is fetched into memory
_TRIES = 4


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
    if urlsplit(path).password or urlsplit(path).username:
        raise DataError(
            "data.path: the URL holds a user's name or password, which would end up in params.yaml, DVC and MLflow: "
            "take it out and give credentials by the environment, as the storage's own tools read them"
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
            raise DataError(f"data.path: {path} {found}: name a folder with your pictures")

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
            system, self._top = fsspec.core.url_to_fs(self.where, skip_instance_cache=True)
        except (ImportError, ValueError) as error:
            raise DataError(f"data.path: {self.where}: {error}: install what it needs, or copy the data here") from None
        return system

    def tree(self) -> Tree:
        """Everything that lies here."""
        try:
            found = self._try(lambda: self._system.find(self._top, detail=True))
        except FileNotFoundError:
            found = {}
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
        """Do it, again after a while where the network fails; what is missing or forbidden is told at once."""
        self._system  # noqa: B018 - so that what is not installed is not tried again
        for number in range(_TRIES):
            try:
                return act()
            except (FileNotFoundError, PermissionError):
                raise
            except Exception as error:  # every storage has its own; they have nothing in common
                if number == _TRIES - 1:
                    raise DataError(
                        f"data.path: {self.where} does not answer ({type(error).__name__}: {error}): check the "
                        "network, the address and the credentials in the environment, then run the same again"
                    ) from error
                time.sleep(2**number / 4)
        raise AssertionError("unreachable")
