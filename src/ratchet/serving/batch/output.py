"""The output folder of a scoring job, local or on S3, and its lock. Each file there is complete or absent."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from ratchet import files
from ratchet.data.reading.storage import is_url
from ratchet.errors import DataError, WorkspaceBusy
from ratchet.serving.batch.input_files import Storages, storage_errors

__all__ = ["Output"]

_SETTING = "--output"


class Output:
    """A folder of answers at a local path or URL. `state`: folder of this machine for the lock of a URL."""

    def __init__(self, where: str, *, state: Path) -> None:
        self.where, self._local = where.rstrip("/"), None if is_url(where) else Path(where)
        if self._local is not None and self._local.is_file():
            raise DataError(f"{_SETTING}: {where} is a file. Allowed: a new folder, or the one of an earlier run")
        remote_lock = state / "scoring" / f"{sha256(self.where.encode()).hexdigest()[:16]}.lock"
        self._lock = remote_lock if self._local is None else self._local / ".lock"
        self._system, self._top = Storages(_SETTING).system(self.where)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only process that writes here; at a URL, of this project. The lock ends with the process.

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
            for draft in () if self._local is None else self._local.glob(f"{files.DRAFT}*"):
                draft.unlink()  # of a killed process; a remote object exists only when it is complete
            yield

    def metadata(self, name: str) -> dict[str, str]:
        """Return the metadata of a Parquet file; empty if it is damaged or there is none."""
        import pyarrow
        import pyarrow.parquet as pq

        with self.opened(name) as file:
            try:
                pairs = (file and pq.read_metadata(file).metadata) or {}
            except pyarrow.ArrowException:
                return {}
        return {key.decode(): value.decode() for key, value in pairs.items() if key.startswith(b"ratchet.")}

    def names(self) -> set[str]:
        """Return the names of the files here, without those that begin with a dot."""
        with storage_errors(self.where, _SETTING):
            self._system.invalidate_cache()
            paths = self._system.find(self._top)
        names = {path.removeprefix(self._top).lstrip("/") for path in paths}
        return {name for name in names if name and not name.startswith(".")}

    @contextmanager
    def opened(self, name: str) -> Iterator[BinaryIO | None]:
        """Open a file to read; None if there is none."""
        with storage_errors(self.where, _SETTING):
            self._system.invalidate_cache()
            try:
                file = self._system.open(f"{self._top}/{name}", "rb")
            except FileNotFoundError:
                yield None
                return
            with file:
                yield file

    @contextmanager
    def draft(self, name: str, *, is_new: bool = False) -> Iterator[Path]:
        """Yield an empty local file. On leaving it becomes this file here. After an error nothing is changed.

        Raises:
            FileExistsError: a process elsewhere has written the file that must be new.
        """
        if self._local is not None:
            with files.draft_file(self._local / name) as draft:
                yield draft
            return
        with tempfile.TemporaryDirectory(prefix="ratchet-score-") as folder:
            yield Path(folder, name)
            with storage_errors(self.where, _SETTING):
                self._system.put_file(
                    str(Path(folder, name)), f"{self._top}/{name}", mode="create" if is_new else "overwrite"
                )

    def delete(self, names: Sequence[str]) -> None:
        """Delete files, in this order."""
        with storage_errors(self.where, _SETTING):
            for name in names:
                self._system.rm_file(f"{self._top}/{name}")
