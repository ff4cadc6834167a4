"""Read-only access to DVC's cache and remotes by hash."""

import errno
import hashlib
import json
import logging
import os
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.errors import DataError, WorkspaceError, first_line

if TYPE_CHECKING:
    from dvc.repo import Repo

__all__ = ["DvcStore", "disable_progress_bars", "hash_of", "md5_of"]

NO_RESULT = "it reads hashes, and what DVC has stored"

# Errors of the copy's disk, or of too many open files.
_OF_THIS_MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EMFILE, errno.ENFILE)


def disable_progress_bars() -> None:
    """Keep DVC's own progress bars off the terminal. They obey the level of these loggers.

    DVC also asks whether stderr is a terminal, but rich's live display replaces stderr by a stream that says so and
    prints each update of a bar as a line.
    """
    for name in ("dvc.progress", "dvc_data.callbacks"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


@dataclass(frozen=True)
class DvcStore:
    """The project's DVC cache and remotes, in the order in which they are searched. Nothing is written to them."""

    stores: dict[str, Any]  # by name: DVC's cache, DVC's remote NAME
    unavailable: dict[str, str]  # remotes that do not answer, and why

    @classmethod
    @contextmanager
    def open(cls, root: Path) -> "Iterator[DvcStore]":
        """Open the stores of the project in `root`.

        Raises:
            WorkspaceError: it is not a DVC project.
        """
        from dvc.exceptions import DvcException
        from dvc.repo import Repo

        disable_progress_bars()
        try:
            with chdir(root):
                repo: Any = Repo(str(root))
        except DvcException as error:
            raise WorkspaceError(f"{root}: DVC does not work here ({error}). Fix: correct .dvc/config") from error
        try:
            yield cls(*_stores(repo))
        finally:
            repo.close()

    def place_of(self, value: str) -> str | None:
        """Return the names of the stores that have all files of a hash; None if a file is missing."""
        if not value.endswith(".dir"):
            return next((name for name in self.stores if self._has(name, value)), None)
        listing = self.listing(value)
        if listing is None:
            return None
        places = {self.place_of(file_hash) for file_hash in listing.values()}
        return None if None in places else " and ".join(name for name in self.stores if name in places)

    def listing(self, value: str) -> dict[str, str] | None:
        """Return path -> hash of every file of a folder; None if no store has the listing."""
        content = self.read(value)
        return None if content is None else {entry["relpath"]: entry["md5"] for entry in json.loads(content)}

    def read(self, value: str) -> bytes | None:
        """Return the content of a hash (for a folder, its listing in JSON); None if no store has it undamaged."""
        for name, store in self._stores_with(value):
            with self._noted(name), store.fs.open(store.oid_to_path(value), "rb") as file:
                content: bytes = file.read()
                if hashlib.md5(content, usedforsecurity=False).hexdigest() == value.removesuffix(".dir"):
                    return content
        return None

    def file(self, value: str, path: str) -> bytes | None:
        """Return one file of a folder; None if it is in none of the stores, or not in the folder."""
        file_hash = (self.listing(value) or {}).get(path)
        return self.read(file_hash) if file_hash else None

    def fetch(self, value: str, to: Path) -> None:
        """Copy a file or a folder to `to`, and check each file by its hash.

        Raises:
            DataError: it is in none of the stores, or damaged there.
        """
        file_hashes = {"": value}
        if value.endswith(".dir"):
            listing = self.listing(value)
            if listing is None:
                raise self.missing(value)
            to.mkdir(parents=True, exist_ok=True)
            file_hashes = listing
        for path, file_hash in file_hashes.items():
            self._copy(file_hash, to / path if path else to)

    def missing(self, value: str) -> DataError:
        """Return the error for a hash that is in none of the stores."""
        names = " nor ".join(self.stores)
        failures = "".join(f"; {name} does not answer ({why})" for name, why in self.unavailable.items())
        if len(self.stores) == 1:
            return DataError(f"{value} is gone: {names} does not have all of it, and no remote answers{failures}")
        return DataError(
            f"{value} is gone: neither {names} has all of it{failures}. Fix: `dvc fetch` or `dvc pull` from a remote "
            "that has it"
        )

    def _copy(self, value: str, to: Path) -> None:
        to.parent.mkdir(parents=True, exist_ok=True)
        for name, store in self._stores_with(value):
            with self._noted(name):
                store.fs.get_file(store.oid_to_path(value), os.fspath(to))
                if md5_of(to) == value:
                    return
        to.unlink(missing_ok=True)  # a part of it
        raise self.missing(value)

    def _stores_with(self, value: str) -> Iterator[tuple[str, Any]]:
        return ((name, store) for name, store in self.stores.items() if self._has(name, value))

    def _has(self, name: str, value: str) -> bool:
        try:
            return bool(self.stores[name].exists(value))
        except Exception as error:  # each kind of remote has its own errors; all mean that it is unavailable
            self.unavailable[name] = first_line(error)
            return False

    @contextmanager
    def _noted(self, name: str) -> Iterator[None]:
        """Note that a store is unavailable, which may drop out at any time: the next one is asked."""
        try:
            yield
        except Exception as error:  # each kind of remote has its own errors
            if isinstance(error, MemoryError) or getattr(error, "errno", None) in _OF_THIS_MACHINE:
                raise
            self.unavailable[name] = first_line(error)


def _stores(repo: "Repo") -> tuple[dict[str, Any], dict[str, str]]:
    from dvc.exceptions import DvcException

    stores: dict[str, Any] = {"DVC's cache": repo.cache.local}
    unavailable: dict[str, str] = {}
    for name in repo.config["remote"]:
        try:
            stores[f"remote {name}"] = repo.cloud.get_remote_odb(name)
        except (DvcException, ImportError, OSError) as error:
            unavailable[f"remote {name}"] = str(error)
    return stores, unavailable


def md5_of(path: Path) -> str:
    """Return the MD5 (hex) of a file, which is DVC's hash of it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def hash_of(path: Path) -> str:
    """Return the DVC hash of a file or folder; nothing is stored."""
    from dvc_data.hashfile.build import build
    from dvc_data.hashfile.db import HashFileDB
    from dvc_objects.fs.local import LocalFileSystem

    disable_progress_bars()
    system: Any = LocalFileSystem()  # type: ignore[no-untyped-call]
    store = HashFileDB(system, os.fspath(path.parent), hash_name="md5")
    _, _, built = build(store, os.fspath(path), system, "md5", dry_run=True)
    return str(built.hash_info.value)
