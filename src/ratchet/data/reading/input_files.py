"""Input files of batch scoring: list them, open them, and notice that they change."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from ratchet import urls
from ratchet.data.reading.storage import LocalFolder, is_storage_error, is_url, unreachable
from ratchet.data.system_files import Ignored, is_system_path
from ratchet.errors import DataError, check_lasting

__all__ = ["InputFile", "Storages", "storage_errors"]

_REQUESTS = 16  # files that are read at a time


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file as it was when it was listed.

    Attributes:
        path: absolute local path, or URL.
        size: in bytes; -1: it cannot be read.
        stamp: time of the last change in nanoseconds, or ETag of a remote file; why it cannot be read.
    """

    path: str
    size: int
    stamp: str

    @property
    def suffix(self) -> str:
        """The extension of the name, in lower case."""
        return Path(self.path).suffix.lower()


@contextmanager
def storage_errors(where: str, setting: str) -> Iterator[None]:
    """Turn errors of a remote storage into user errors.

    Raises:
        DataError: the storage refuses.
        StorageUnavailable: it does not answer now.
        FileExistsError: a file that must be new is there.
    """
    try:
        yield
    except (DataError, FileExistsError):
        raise
    except Exception as error:  # each storage library has its own error classes
        if not is_storage_error(error):
            raise
        raise unreachable(where, error, setting=setting) from error


class Storages:
    """The storages of a job's addresses, each connected once. Credentials come from the environment."""

    def __init__(self, setting: str) -> None:
        """Take the name of the argument that has the addresses, for messages."""
        self.setting = setting
        self._systems: dict[str, Any] = {}
        self.ignored = Ignored()  # files of the listed folders
        self.others = Ignored(which="with other endings")

    def system(self, url: str) -> tuple[Any, str]:
        """Return the file system of a URL, as fsspec has it, and the path there.

        Raises:
            DataError: the URL contains a password, or its scheme is unknown.
        """
        import fsspec

        if kind := urls.secret_in(url):
            raise DataError(
                f"{self.setting}: found {urls.redacted(url)}, whose {kind} would be recorded with the answers. "
                f"Allowed: an address without it. Fix: {urls.where_instead(self.setting, url)}"
            )
        scheme = url.partition("://")[0]
        if scheme not in self._systems:
            try:
                with storage_errors(url, self.setting):
                    self._systems[scheme], _ = fsspec.core.url_to_fs(url, skip_instance_cache=True)
            except (ImportError, ValueError) as error:
                raise DataError(
                    f"{self.setting}: {url}: {error}. Fix: install the package that it needs, or copy the files here"
                ) from None
        system = self._systems[scheme]
        return system, str(system._strip_protocol(url))

    def files(self, path: str, suffixes: tuple[str, ...], kind: str) -> list[InputFile]:
        """Return a file, or those of a folder with one of the suffixes, in the order of their paths.

        Hidden files and those of systems are counted in `ignored`, those with another suffix in `others`.

        Raises:
            DataError: there is no such file, or a folder cannot be listed.
        """
        inside = self._remote(path) if is_url(path) else self._local(Path(path))
        files = []
        for file in inside:
            if file.path == path or file.suffix in suffixes or file.size < 0:
                files.append(file)
            else:
                self.others.add(file.path)
        if not files:
            missing = f"has no {kind}. Allowed: files that end in {', '.join(filter(None, suffixes))}"
            exists = inside or (not is_url(path) and os.path.exists(path))  # an empty folder, or a pipe
            raise DataError(f"{path}: {missing if exists else 'there is no such file or folder'}")
        return files

    def _local(self, path: Path) -> list[InputFile]:
        """Return a file, or all files in a folder, as ingest lists them."""
        if not path.is_dir():
            return [_listed(path, None)] if path.is_file() else []
        tree = LocalFolder(path).tree()
        if tree.ignored.files:
            self.ignored.add(tree.ignored.first, tree.ignored.files)
        return sorted((_listed(path / name, tree.faults.get(name)) for name in tree.names), key=lambda file: file.path)

    def _is_ignored(self, name: str) -> bool:
        name = name.replace(os.sep, "/").strip("/")
        is_ignored = bool(name) and is_system_path(name.split("/"))
        if is_ignored:
            self.ignored.add(name)
        return is_ignored

    def _remote(self, url: str) -> list[InputFile]:
        """Return a file, or all files in a folder."""
        system, top = self.system(url.rstrip("/"))
        with storage_errors(url, self.setting):
            try:
                entries = system.find(top, detail=True)
            except FileNotFoundError as error:
                if "bucket" in str(error).lower():
                    raise
                entries = {}
        files, whole = [], system.unstrip_protocol(top)
        for path, info in sorted(entries.items()):
            stamp = next((info[key] for key in ("ETag", "etag", "LastModified", "mtime") if info.get(key)), "")
            if info.get("type") != "directory":
                address = system.unstrip_protocol(path)
                if not self._is_ignored(address.removeprefix(whole)):
                    files.append(InputFile(address, int(info.get("size") or 0), str(stamp).strip('"')))
        return files

    @contextmanager
    def opened(self, file: InputFile) -> Iterator[BinaryIO]:
        """Open a file that must be as it was listed.

        Raises:
            DataError: it was changed or removed since then, or its storage refuses.
            OSError: a local file cannot be read.
        """
        if file.size < 0:
            raise OSError(file.stamp)
        if not is_url(file.path):
            try:
                with Path(file.path).open("rb") as local:
                    _check_same(file, os.fstat(local.fileno()))
                    yield local
                    _check_same(file, os.fstat(local.fileno()))
            except FileNotFoundError:
                raise _changed(file) from None
            return
        system, path = self.system(file.path)
        with storage_errors(file.path, self.setting):
            try:
                remote = system.open(path, "rb", block_size=4 << 20)
                if remote.size is not None and remote.size != file.size:
                    raise _changed(file)
                with remote:
                    yield cast(BinaryIO, remote)
            except OSError as error:
                # s3fs raises FileExpired when another object has the name
                if isinstance(error, FileNotFoundError) or type(error).__name__ == "FileExpired":
                    raise _changed(file) from None
                raise

    def contents(self, files: Sequence[InputFile]) -> list[bytes | OSError | DataError]:
        """Return the contents of small files, or why one cannot be read, now or ever, or is not as it was listed."""
        with ThreadPoolExecutor(_REQUESTS) as pool:
            return list(pool.map(self._content, files))

    def _content(self, file: InputFile) -> bytes | OSError | DataError:
        try:
            return self._read(file)
        except (OSError, DataError) as error:
            return error

    def _read(self, file: InputFile) -> bytes:
        try:
            with self.opened(file) as opened:
                return opened.read()
        except OSError as error:
            check_lasting(error, file.path)
            raise


def _listed(path: Path, fault: str | None) -> InputFile:
    if fault is None:
        try:
            status = path.stat()
            return InputFile(str(path), status.st_size, str(status.st_mtime_ns))
        except OSError as error:
            fault = f"cannot be reached: {error.strerror}"
    return InputFile(str(path), -1, fault)


def _check_same(file: InputFile, status: os.stat_result) -> None:
    if (status.st_size, str(status.st_mtime_ns)) != (file.size, file.stamp):
        raise _changed(file)


def _changed(file: InputFile) -> DataError:
    return DataError(
        f"{file.path}: was changed or removed while it was scored. Fix: score again when nothing changes the inputs"
    )
