"""Input files of batch scoring: list them, open them, and notice that they change."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from ratchet import urls
from ratchet.data.reading.storage import is_storage_error, is_url, unreachable
from ratchet.data.system_files import Ignored, is_system_path
from ratchet.errors import DataError

__all__ = ["InputFile", "Storages", "storage_errors"]


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file as it was when it was listed.

    Attributes:
        path: absolute local path, or URL.
        size: in bytes.
        stamp: time of the last change in nanoseconds, or ETag of a remote file.
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
    """
    try:
        yield
    except DataError:
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

        Raises:
            DataError: there is no such file.
        """
        inside = self._without_system_files(self._remote(path) if is_url(path) else _local(Path(path)), path)
        chosen = [file for file in inside if file.path == path or file.suffix in suffixes]
        if not chosen:
            missing = f"has no {kind}. Allowed: files that end in {', '.join(suffixes)}"
            raise DataError(f"{path}: {missing if inside else 'there is no such file or folder'}")
        return chosen

    def _without_system_files(self, files: list[InputFile], top: str) -> list[InputFile]:
        """Return the files of a folder that are not hidden or of a system, and count the others."""
        kept, start = [], self.system(top)[1] if is_url(top) else str(Path(top))
        for file in files:
            path = self.system(file.path)[1] if is_url(file.path) else file.path
            inside = path.removeprefix(start).replace(os.sep, "/").strip("/")
            if inside and is_system_path(inside.split("/")):
                self.ignored.add(inside)
            else:
                kept.append(file)
        return kept

    def _remote(self, url: str) -> list[InputFile]:
        system, top = self.system(url.rstrip("/"))
        scheme = url.partition("://")[0]
        with storage_errors(url, self.setting):
            try:
                entries = system.find(top, detail=True)
            except FileNotFoundError as error:
                if "bucket" in str(error).lower():
                    raise
                entries = {}
        files = []
        for path, info in entries.items():
            stamp = next((info[key] for key in ("ETag", "etag", "LastModified", "mtime") if info.get(key)), "")
            if info.get("type") != "directory":
                address = path if is_url(path) else f"{scheme}://{path}"
                files.append(InputFile(address, int(info.get("size") or 0), str(stamp).strip('"')))
        return sorted(files, key=lambda file: file.path)

    @contextmanager
    def opened(self, file: InputFile) -> Iterator[BinaryIO]:
        """Open a file that must be as it was listed.

        Raises:
            DataError: it was changed or removed since then, or cannot be read.
        """
        if not is_url(file.path):
            try:
                with Path(file.path).open("rb") as local:
                    _check_same(file, os.fstat(local.fileno()))
                    yield local
                    _check_same(file, os.fstat(local.fileno()))
            except FileNotFoundError:
                raise _changed(file) from None
            except PermissionError as error:
                raise DataError(f"{file.path}: {error.strerror}. Fix: make it readable for this user") from None
            return
        system, path = self.system(file.path)
        with storage_errors(file.path, self.setting):
            try:
                remote = system.open(path, "rb", block_size=4 << 20)
                if remote.size is not None and remote.size != file.size:
                    raise _changed(file)
                with remote:
                    yield cast(BinaryIO, remote)
            except FileNotFoundError:
                raise _changed(file) from None
            except OSError as error:
                if type(error).__name__ == "FileExpired":  # of s3fs: another object has the name now
                    raise _changed(file) from None
                raise

    def contents(self, files: Sequence[InputFile]) -> list[bytes | OSError]:
        """Return the contents of small files, or why one cannot be read.

        Raises:
            DataError: a file was changed or removed since it was listed.
        """
        remote = [file for file in files if is_url(file.path)]
        fetched = self._fetched(remote) if remote else {}
        return [fetched[file.path] if is_url(file.path) else _content(file) for file in files]

    def _fetched(self, files: Sequence[InputFile]) -> dict[str, bytes | OSError]:
        system, _ = self.system(files[0].path)
        paths = [self.system(file.path)[1] for file in files]
        with storage_errors(files[0].path, self.setting):
            results = system.cat(paths, on_error="return") if len(paths) > 1 else {paths[0]: system.cat_file(paths[0])}
            contents = {}
            for file, path in zip(files, paths, strict=True):
                content = results[path]
                if isinstance(content, FileNotFoundError) or (isinstance(content, bytes) and len(content) != file.size):
                    raise _changed(file)
                if isinstance(content, Exception):
                    raise content
                contents[file.path] = content
        return contents


def _local(path: Path) -> list[InputFile]:
    inside = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    files = []
    for file in inside:
        status = file.stat()
        files.append(InputFile(str(file), status.st_size, str(status.st_mtime_ns)))
    return files


def _content(file: InputFile) -> bytes | OSError:
    try:
        with Path(file.path).open("rb") as local:
            _check_same(file, os.fstat(local.fileno()))
            return local.read()
    except FileNotFoundError:
        raise _changed(file) from None
    except OSError as error:
        return error


def _check_same(file: InputFile, status: os.stat_result) -> None:
    if (status.st_size, str(status.st_mtime_ns)) != (file.size, file.stamp):
        raise _changed(file)


def _changed(file: InputFile) -> DataError:
    return DataError(
        f"{file.path}: was changed or removed while it was scored. Fix: score again when nothing changes the inputs"
    )
