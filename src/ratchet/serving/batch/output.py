"""The output folder of a scoring job, local or on S3, and its lock. Each file there is complete or absent."""

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

from ratchet import files
from ratchet.data.reading.storage import is_url
from ratchet.errors import DataError, WorkspaceBusy
from ratchet.serving.batch.storage import Storages, storage_errors

__all__ = ["Output", "open_output"]

_LOCK = ".lock"
_SETTING = "--output"


class Output(ABC):
    """A folder of answers.

    Attributes:
        where: its path or URL.
        is_shared: whether the lock holds on this machine only.
    """

    where: str
    is_shared: bool

    def __init__(self, lock: Path) -> None:
        self._lock = lock

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only process that writes here. The lock ends with the process.

        Raises:
            WorkspaceBusy: another process writes.
        """
        from filelock import FileLock, Timeout

        self._lock.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock = FileLock(self._lock).acquire(timeout=0)
        except Timeout:
            raise WorkspaceBusy(
                f"{self.where}: another process scores into it now. Fix: wait for it to end, or choose another folder"
            ) from None
        with lock:
            self.clear_drafts()
            yield

    def metadata(self, name: str) -> dict[str, str] | None:
        """Return the metadata of a Parquet file; None if it is damaged or there is none."""
        import pyarrow
        import pyarrow.parquet as pq

        with self.opened(name) as file:
            if file is None:
                return None
            try:
                pairs = pq.read_metadata(file).metadata or {}
            except pyarrow.ArrowException:
                return None
        return {key.decode(): value.decode() for key, value in pairs.items() if key.startswith(b"ratchet.")}

    @abstractmethod
    def clear_drafts(self) -> None:
        """Delete what killed processes left."""

    @abstractmethod
    def names(self) -> set[str]:
        """Return the names of the files here, without those that begin with a dot."""

    @abstractmethod
    @contextmanager
    def opened(self, name: str) -> Iterator[BinaryIO | None]:
        """Open a file to read; None if there is none."""

    @abstractmethod
    @contextmanager
    def draft(self, name: str) -> Iterator[Path]:
        """Yield an empty local file. On leaving it becomes this file here. After an error nothing is changed."""

    @abstractmethod
    def create(self, name: str, content: bytes) -> None:
        """Write a file that is not here yet.

        Raises:
            FileExistsError: it is.
        """

    @abstractmethod
    def delete(self, names: Sequence[str]) -> None:
        """Delete files, in this order."""


def open_output(where: str, *, state: Path) -> Output:
    """Return the output folder at a local path or URL. `state`: folder of this machine for the lock of a URL."""
    return _Remote(where.rstrip("/"), state) if is_url(where) else _Local(Path(where))


class _Local(Output):
    is_shared = False

    def __init__(self, path: Path) -> None:
        super().__init__(path / _LOCK)
        self.where, self._path = str(path), path
        if path.exists() and not path.is_dir():
            raise DataError(f"{_SETTING}: {path} is a file. Allowed: a new folder, or the one of an earlier run")

    def clear_drafts(self) -> None:
        for draft in self._path.glob(f"{files.DRAFT}*"):
            draft.unlink()

    def names(self) -> set[str]:
        return {path.name for path in self._path.iterdir() if not path.name.startswith(".")}

    @contextmanager
    def opened(self, name: str) -> Iterator[BinaryIO | None]:
        if not (self._path / name).is_file():
            yield None
            return
        with (self._path / name).open("rb") as file:
            yield file

    @contextmanager
    def draft(self, name: str) -> Iterator[Path]:
        with files.draft_file(self._path / name) as draft:
            yield draft

    def create(self, name: str, content: bytes) -> None:
        if (self._path / name).exists():
            raise FileExistsError(name)
        files.write_bytes(self._path / name, content)

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            (self._path / name).unlink()


class _Remote(Output):
    is_shared = True

    def __init__(self, url: str, state: Path) -> None:
        super().__init__(state / "scoring" / f"{sha256(url.encode()).hexdigest()[:16]}.lock")
        self.where = url
        self._system: Any
        self._system, self._top = Storages(_SETTING).system(url)

    def clear_drafts(self) -> None:
        """Do nothing: an object exists only when it is complete."""

    def names(self) -> set[str]:
        with self._errors():
            self._system.invalidate_cache()
            paths = self._system.find(self._top)
        names = {path.removeprefix(self._top).lstrip("/") for path in paths}
        return {name for name in names if name and not name.startswith(".")}

    @contextmanager
    def opened(self, name: str) -> Iterator[BinaryIO | None]:
        with self._errors():
            self._system.invalidate_cache()
            try:
                file = self._system.open(f"{self._top}/{name}", "rb")
            except FileNotFoundError:
                file = None
            if file is None:
                yield None
                return
            with file:
                yield file

    @contextmanager
    def draft(self, name: str) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="ratchet-score-") as folder:
            draft = Path(folder, name)
            yield draft
            with self._errors():
                self._system.put_file(str(draft), f"{self._top}/{name}")

    def create(self, name: str, content: bytes) -> None:
        try:
            with self._errors():
                self._system.pipe_file(f"{self._top}/{name}", content, mode="create")
        except DataError as error:
            if isinstance(error.__cause__, FileExistsError):
                raise FileExistsError(name) from None
            raise

    def delete(self, names: Sequence[str]) -> None:
        with self._errors():
            for name in names:
                self._system.rm_file(f"{self._top}/{name}")

    def _errors(self) -> Any:
        return storage_errors(self.where, _SETTING)
