"""A folder of results, local or on S3, and its lock. Each file there is complete or absent."""

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

from ratchet import files
from ratchet.data.reading.input_files import Storages, storage_errors
from ratchet.data.reading.storage import is_url
from ratchet.errors import DataError, WorkspaceBusy

__all__ = ["ResultFolder"]


class ResultFolder:
    """A folder at a local path or URL. `setting`: the argument that names it, for messages."""

    def __init__(self, where: str, *, setting: str = "--output") -> None:
        self.where, self._local, self._setting = where.rstrip("/"), None if is_url(where) else Path(where), setting
        if self._local is not None and self._local.is_file():
            raise DataError(f"{setting}: {where} is a file. Allowed: a new folder, or the one of an earlier run")
        self._system, self._top = Storages(setting).system(self.where)

    @contextmanager
    def locked(self, state: Path) -> Iterator[None]:
        """Be the only process that writes here; at a URL, of the project with this `state`. It ends with the process.

        Raises:
            WorkspaceBusy: another process writes.
        """
        from filelock import FileLock, Timeout

        remote = state / "scoring" / f"{sha256(self.where.encode()).hexdigest()[:16]}.lock"
        path = remote if self._local is None else self._local / ".lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock = FileLock(path).acquire(timeout=0)
        except Timeout:
            raise WorkspaceBusy(
                f"{self.where}: another process scores into it now. Fix: wait for it to end, or choose another folder"
            ) from None
        with lock:
            self._clear_drafts()
            try:
                yield
            finally:
                self._clear_drafts()

    def _clear_drafts(self) -> None:
        """Remove the drafts of killed processes. A remote object exists only when it is complete."""
        if self._local is not None:
            files.clear_drafts(self._local)

    def sizes(self) -> dict[str, int]:
        """Return the sizes of the files here by name, without those that begin with a dot."""
        with storage_errors(self.where, self._setting):
            self._system.invalidate_cache()
            entries = self._system.find(self._top, detail=True)
        names = {path.removeprefix(self._top).lstrip("/"): info["size"] for path, info in entries.items()}
        return {name: int(size) for name, size in names.items() if name and not name.startswith(".")}

    def has(self, name: str) -> bool:
        """Return whether a file is here."""
        with storage_errors(self.where, self._setting):
            self._system.invalidate_cache()
            return bool(self._system.exists(f"{self._top}/{name}"))

    def read_json(self, name: str) -> Any:
        """Return the content of a JSON file; None if there is none, or it is damaged."""
        with self.opened(name) as file:
            try:
                return json.loads(file.read()) if file else None
            except ValueError:
                return None

    def write_json(self, name: str, content: object, *, is_new: bool = False) -> None:
        """Write a JSON file. `is_new` as in `draft`."""
        with self.draft(name, is_new=is_new) as draft:
            files.write_json(draft, content)

    @contextmanager
    def opened(self, name: str) -> Iterator[BinaryIO | None]:
        """Open a file to read; None if there is none."""
        with storage_errors(self.where, self._setting):
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
            with storage_errors(self.where, self._setting):
                self._system.put_file(
                    str(Path(folder, name)), f"{self._top}/{name}", mode="create" if is_new else "overwrite"
                )

    def delete(self, names: Sequence[str]) -> None:
        """Delete files, in this order."""
        with storage_errors(self.where, self._setting):
            for name in names:
                self._system.rm_file(f"{self._top}/{name}")
