"""Storage of files: a local folder, or any URL that fsspec knows (s3://, gs://, https:// ...)."""

import os
import socket
import stat
import time
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from ratchet import urls
from ratchet.data.system_files import Ignored, is_system_name, is_system_path
from ratchet.errors import DataError, StorageUnavailable, check_lasting, first_line

if TYPE_CHECKING:
    import polars as pl

__all__ = [
    "Storage", "Tree", "expanded", "is_storage_error", "is_url", "open_storage", "read_whole", "unreachable",
    "why_unusable",
]  # fmt: skip

_FRESH = 2_000_000_000  # nanoseconds: file systems have coarse clocks, so a recent change may not show in a stamp
_MAX_IN_MEMORY = 8 << 20  # bytes: larger local files are not read into memory
_MAX_REMOTE = 1 << 30  # bytes: a remote file is fetched into memory
_BLOCK = 4_096  # names that are Python objects at once
_TRIES = 4
_LONGEST_REASON = 300  # characters
_LIBRARIES = frozenset({
    "adlfs", "aiobotocore", "aiohttp", "asyncssh", "azure", "botocore", "fsspec",
    "gcsfs", "google", "paramiko", "s3fs",
})  # fmt: skip


@dataclass
class Tree:
    """Files and folders of a storage; paths are relative to it, with `/` between the parts."""

    faults: dict[str, str] = field(default_factory=dict)  # name -> why the file cannot be used
    folders: list[str] = field(default_factory=list)
    ignored: Ignored = field(default_factory=Ignored)
    _blocks: "list[pl.DataFrame]" = field(default_factory=list)  # they take a third of the memory of Python objects
    _latest: list[tuple[str, str | None]] = field(default_factory=list)

    def add(self, name: str, stamp: str | None = None, *, fault: str | None = None) -> None:
        """Add a file."""
        self._latest.append((name, stamp))
        if len(self._latest) >= _BLOCK:
            self._close_block()
        if fault is not None:
            self.faults[name] = fault

    @property
    def files(self) -> "pl.DataFrame":
        """Columns `id`, the path, and `stamp`, a text that changes whenever the file does; null: not certain."""
        import polars as pl

        self._close_block()
        return pl.concat(self._blocks)

    @property
    def names(self) -> "pl.Series":
        """Paths of all files."""
        return self.files["id"]

    def _close_block(self) -> None:
        import polars as pl

        self._blocks.append(pl.DataFrame(self._latest, {"id": pl.String, "stamp": pl.String}, orient="row"))
        self._latest = []

    def inner_folders(self) -> dict[str, list[str]]:
        """Return the names of the folders directly in each folder ("": the top), sorted."""
        inner: dict[str, list[str]] = {folder: [] for folder in ("", *self.folders)}
        for folder in sorted(self.folders):
            above, _, name = folder.rpartition("/")
            inner[above].append(name)
        return inner


class Storage(Protocol):
    """A place with files."""

    name: str  # the last part of the path
    where: str  # the whole path, for messages
    can_list: bool  # whether it can list its files
    is_local: bool  # whether reading takes CPU time of this machine, not time of the network

    def tree(self) -> Tree:
        """List all files and folders, except those that are hidden or that systems write (`system_files`)."""

    def read(self, name: str) -> bytes | BinaryIO:
        """Read the file with this relative path: its content, or a seekable file if it is large. Raises OSError."""


def read_whole(storage: Storage, name: str) -> bytes:
    """Return the content of the file with this relative path.

    Raises:
        StorageUnavailable: it cannot be read now.
        OSError: it cannot be read.
    """
    try:
        content = storage.read(name)
        if isinstance(content, bytes):
            return content
        with content as file:
            return file.read()
    except (MemoryError, OSError) as error:
        check_lasting(error, name)
        raise


def expanded(path: str) -> Path:
    """Return a local path with the home folder in place of ~. The name of an unknown user stays as it is."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def is_url(path: str) -> bool:
    """Whether a setting is a URL, not a local path."""
    return "://" in path


def open_storage(path: str, *, root: Path) -> Storage:
    """Open the storage that a setting names; a relative path is relative to `root`.

    Raises:
        DataError: there is no such folder, it cannot be reached, or the URL contains a password.
    """
    if not is_url(path):
        return LocalFolder(root / expanded(path))
    if kind := urls.secret_in(path):
        raise DataError(
            f"data.path: found {urls.redacted(path)}, whose {kind} would be committed and recorded with every run. "
            f"Allowed: an address without it. Fix: {urls.where_instead('data.path', path)}"
        )
    return RemoteFolder(path.rstrip("/"))


class LocalFolder:
    """A local folder. Links to folders are followed, except links to a folder that contains them."""

    can_list = is_local = True

    def __init__(self, path: Path) -> None:
        self.path = path
        self._start = os.path.join(path, "")
        self.name = Path(os.path.abspath(path)).name
        self.where = str(path)
        if not os.path.isdir(path):
            fix = _other_forms(path) or ". Fix: set it to the folder with your data"
            raise DataError(f"data.path: {path} {why_unusable(path)}{fix}")

    def siblings(self) -> list[str]:
        """Return the names of this folder and of the folders beside it, sorted; none if they cannot be listed."""
        try:
            with os.scandir(Path(os.path.abspath(self.path)).parent) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir() and not is_system_name(entry.name))
        except OSError:
            return []

    def tree(self) -> Tree:
        """List all files and folders."""
        tree = Tree()
        _walk(str(self.path), "", (), tree, settled=time.time_ns() - _FRESH)
        return tree

    def read(self, name: str) -> bytes | BinaryIO:
        """Read the file with this relative path: its content, or a seekable file if it is large."""
        opened = os.open(f"{self._start}{name}", os.O_RDONLY | os.O_NONBLOCK)  # do not wait for a pipe
        try:
            kind = os.fstat(opened)
            if not stat.S_ISREG(kind.st_mode):
                raise OSError("not a regular file")
            if kind.st_size > _MAX_IN_MEMORY:
                return os.fdopen(os.dup(opened), "rb")
            with open(opened, "rb", buffering=0, closefd=False) as file:
                return file.read()  # to the end: os.read may return a part, as before a fault of the disk
        finally:
            os.close(opened)


def why_unusable(path: Path) -> str:
    """Say what a path is that is not the expected file or folder."""
    try:
        kind = path.stat().st_mode
    except FileNotFoundError:
        return "is a broken link" if path.is_symlink() else "does not exist"
    except (OSError, ValueError) as error:  # a loop of links, a name that is too long or has U+0000
        return f"cannot be opened ({getattr(error, 'strerror', None) or error})"
    return "is a folder" if stat.S_ISDIR(kind) else "is a file" if stat.S_ISREG(kind) else "is not a regular file"


def _other_forms(path: Path) -> str:
    """Return an addition to a message if the folder's name exists in another Unicode form; else nothing."""
    for folder in (path, *path.parents):
        if os.path.isdir(folder.parent) and not os.path.lexists(folder):
            name = unicodedata.normalize("NFC", folder.name)
            same = [other for other in os.listdir(folder.parent) if unicodedata.normalize("NFC", other) == name]
            if same:
                return (
                    f", but {same[0]!r} does, whose name has another Unicode form ({same[0]!a}, data.path has "
                    f"{folder.name!a}). Fix: rename it, or set data.path to its form"
                )
    return ""


def _walk(folder: str, prefix: str, above: tuple[tuple[int, int], ...], tree: Tree, *, settled: int) -> None:
    """Add the content of `folder` to `tree`. `above` identifies the parent folders, `settled` the latest sure stamp."""
    here = os.stat(folder)
    above = (*above, (here.st_dev, here.st_ino))
    try:
        with os.scandir(folder) as listed:
            entries = list(listed)
    except OSError as error:
        check_lasting(error, folder)
        raise DataError(
            f"{folder}: cannot be listed ({error.strerror}). Fix: give this user read permission, or remove it"
        ) from error
    for entry in entries:
        name = prefix + entry.name
        if is_system_name(entry.name):
            _count_ignored(entry, prefix, tree)
            continue
        try:
            kind = entry.stat()
        except OSError as error:
            check_lasting(error, entry.path)
            tree.add(_text(name), fault=f"cannot be reached: {error.strerror}")
            continue
        if stat.S_ISREG(kind.st_mode):
            # One number instead of four saves memory. Python hashes whole numbers equally in every process.
            stamp = hash((kind.st_size, kind.st_mtime_ns, kind.st_ctime_ns, kind.st_ino))
            is_settled = max(kind.st_mtime_ns, kind.st_ctime_ns) < settled
            text = name if name.isascii() else _text(name)
            tree.add(text, str(stamp) if is_settled else None, fault=None if text is name else "name is not UTF-8")
        elif not stat.S_ISDIR(kind.st_mode):
            tree.add(_text(name), fault="not a regular file")
        elif (kind.st_dev, kind.st_ino) not in above:
            tree.folders.append(name)
            _walk(entry.path, f"{name}/", above, tree, settled=settled)


def _count_ignored(entry: "os.DirEntry[str]", prefix: str, tree: Tree) -> None:
    """Count an ignored file, or those of an ignored folder, which this user need not be able to list."""
    if not entry.is_dir(follow_symlinks=False):
        tree.ignored.add(_text(prefix + entry.name))
        return
    for folder, _, files in os.walk(entry.path):
        inside = os.path.relpath(folder, entry.path)
        for file in files:
            tree.ignored.add(_text(f"{prefix}{os.path.normpath(os.path.join(entry.name, inside, file))}"))


def _text(name: str) -> str:
    """Return a file's name as text: unchanged if it is UTF-8, else with escapes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return name.encode("utf-8", "backslashreplace").decode()
    return name


class RemoteFolder:
    """A URL, read by fsspec. Credentials come from the environment, as each storage's own tools read them."""

    is_local = False

    def __init__(self, url: str) -> None:
        self.where = url
        self.name = url.rpartition("/")[2]
        self.can_list = not url.startswith("http")  # a web server lists no files
        self._top: str

    @cached_property
    def _system(self) -> Any:
        import fsspec

        try:
            system, self._top = fsspec.core.url_to_fs(self.where, skip_instance_cache=True)  # some connect here
        except (ImportError, ValueError) as error:
            raise DataError(
                f"data.path: {self.where}: {error}. Fix: install the package that it needs, or copy the data here"
            ) from None
        return system

    def tree(self) -> Tree:
        """List all files and folders."""
        try:
            entries = self._try(lambda: self._system.find(self._top, detail=True))
        except FileNotFoundError as error:
            if "bucket" in str(error).lower():
                raise unreachable(self.where, error) from None
            entries = {}
        except PermissionError as error:
            raise unreachable(self.where, error) from None
        if not entries:
            raise DataError(f"data.path: {self.where} contains nothing. Fix: set it to the folder with your data")
        tree, folders = Tree(), set[str]()
        for path, info in entries.items():
            name = path.removeprefix(self._top).lstrip("/")
            parts = name.split("/")
            if not name:
                continue
            if is_system_path(parts):
                tree.ignored.add(name)
                continue
            folders.update("/".join(parts[:depth]) for depth in range(1, len(parts)))
            version = next((info[key] for key in ("ETag", "etag", "LastModified", "mtime") if info.get(key)), None)
            size = info.get("size") or 0
            fault = f"{size:,} bytes, too large for an image" if size > _MAX_REMOTE else None
            tree.add(name, None if version is None else f"{size} {version}", fault=fault)
        tree.folders = sorted(folders)
        return tree

    def read(self, name: str) -> bytes:
        """Read the file with this relative path."""
        content: bytes = self._try(lambda: self._fetch(name))
        return content

    def _fetch(self, name: str) -> Any:
        # Do not ask for the size first: fsspec then reports a missing server as a missing file.
        return self._system.cat_file(f"{self._top}/{name}")

    def _try(self, act: Callable[[], Any]) -> Any:
        """Call `act` and retry it with backoff after a network error. A missing or forbidden file is not retried."""
        for number in range(_TRIES):
            try:
                return act()
            except (FileNotFoundError, PermissionError, DataError):
                raise
            except Exception as error:  # each storage library has its own error classes
                if number == _TRIES - 1 or _is_lasting(error):
                    raise unreachable(self.where, error) from None
                time.sleep(2**number / 4)
        raise AssertionError("unreachable")


def unreachable(where: str, error: BaseException, *, setting: str = "data.path") -> DataError:
    """Describe an error of a storage library in one sentence, with the fix.

    Args:
        setting: that has the address.
    """
    kind, reason = type(error).__name__, first_line(error)[:_LONGEST_REASON]
    check = "check the network, the address and the credentials in the environment, then run the same command again"
    if isinstance(error, socket.gaierror) or "Name or service not known" in reason:
        reason, fix = f"its host name is not known: {reason}", f"check the address in {setting} and the network"
    elif "Credentials" in kind or "credentials" in reason.lower():
        reason = f"no usable credentials: {reason}"
        fix = "set them in the environment, for example AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
    elif isinstance(error, ConnectionRefusedError) or "Could not connect" in reason or "Connect call failed" in reason:
        reason, fix = f"the connection is refused: {reason}", f"start the server, or correct the address; {check}"
    elif isinstance(error, FileNotFoundError):
        fix = f"create the bucket, or correct the address in {setting}"
    elif isinstance(error, PermissionError) or "PermissionDenied" in kind:
        reason = f"access is denied: {reason}"
        fix = "give this user read permission, or set other credentials in the environment"
    elif "HostKey" in kind:
        fix = f"log in once with ssh, which adds the host's key to ~/.ssh/known_hosts; {check}"
    else:
        fix = check
    message = f"{setting}: {urls.redacted(where)} does not answer ({kind}: {reason}). Fix: {fix}"
    return DataError(message) if _is_lasting(error) else StorageUnavailable(message)


def is_storage_error(error: BaseException) -> bool:
    """Whether an error comes from the network or a storage library."""
    return isinstance(error, OSError) or type(error).__module__.partition(".")[0] in _LIBRARIES


def _is_lasting(error: BaseException) -> bool:
    """Whether a retry cannot help, because credentials, a permission or a name are wrong."""
    kind = type(error).__name__
    return isinstance(error, socket.gaierror | FileNotFoundError | PermissionError) or any(
        word in kind for word in ("Credentials", "HostKey", "Denied")
    )
