"""What DVC keeps, found by its hash alone: in the project's cache, else in its remotes."""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.errors import DataError, WorkspaceError, first_line

if TYPE_CHECKING:
    from dvc.repo import Repo

__all__ = ["DvcStore", "hash_of"]


@dataclass(frozen=True)
class DvcStore:
    """The project's cache and remotes, in the order in which they are asked. Only read, never written to."""

    stores: dict[str, Any]  # by name: DVC's cache, DVC's remote NAME
    away: dict[str, str]  # remotes that cannot be asked, and why

    @classmethod
    @contextmanager
    def open(cls, root: Path) -> "Iterator[DvcStore]":
        """Those of the project in `root`.

        Raises:
            WorkspaceError: it is no DVC project.
        """
        from dvc.exceptions import DvcException
        from dvc.repo import Repo

        try:
            with chdir(root):
                repo: Any = Repo(str(root))
        except DvcException as error:
            raise WorkspaceError(f"{root}: DVC cannot be asked here ({error}): mend .dvc/config") from error
        try:
            yield cls(*_stores(repo))
        finally:
            repo.close()

    def place_of(self, value: str) -> str | None:
        """The stores that all of what a hash stands for can be had from, in words; None where some of it is gone."""
        if not value.endswith(".dir"):
            return next((name for name, store in self.stores.items() if self._has(store, value)), None)
        listing = self.listing(value)
        if listing is None:
            return None
        places = {self.place_of(one) for one in listing.values()}
        return None if None in places else " and ".join(name for name in self.stores if name in places)

    def listing(self, value: str) -> dict[str, str] | None:
        """Path -> hash of every file of a folder; None where no store has the listing."""
        content = self.read(value)
        return None if content is None else {one["relpath"]: one["md5"] for one in json.loads(content)}

    def read(self, value: str) -> bytes | None:
        """The content that a hash stands for (of a folder its listing in JSON); None where no store has it whole."""
        for store in self.stores.values():
            if not self._has(store, value):
                continue
            with store.fs.open(store.oid_to_path(value), "rb") as file:
                content: bytes = file.read()
            if hashlib.md5(content, usedforsecurity=False).hexdigest() == value.removesuffix(".dir"):
                return content
        return None

    def file(self, value: str, path: str) -> bytes | None:
        """One file of a folder; None where it is in none of the stores, or not in the folder."""
        found = (self.listing(value) or {}).get(path)
        return self.read(found) if found else None

    def bring(self, value: str, to: Path) -> None:
        """Put a file, or a folder of files, at `to`, and check every byte by its hash.

        Raises:
            DataError: it is in none of the stores, or damaged there.
        """
        parts = {"": value}
        if value.endswith(".dir"):
            listing = self.listing(value)
            if listing is None:
                raise self.missing(value)
            to.mkdir(parents=True, exist_ok=True)
            parts = listing
        for path, one in parts.items():
            self._copy(one, to / path if path else to)

    def missing(self, value: str) -> DataError:
        """What to say of what is in none of them."""
        asked = " nor ".join(self.stores)
        away = "".join(f"; {name} does not answer ({why})" for name, why in self.away.items())
        return DataError(
            f"{value} is gone: neither {asked} has all of it{away}: bring it back with `dvc fetch` or `dvc pull` from "
            "a remote that has it"
            if len(self.stores) > 1
            else f"{value} is gone: {asked} has not all of it, and there is no remote to ask{away}: bring it back"
        )

    def _copy(self, value: str, to: Path) -> None:
        to.parent.mkdir(parents=True, exist_ok=True)
        for store in self.stores.values():
            if not self._has(store, value):
                continue
            store.fs.get_file(store.oid_to_path(value), os.fspath(to))
            with to.open("rb") as file:
                if hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest() == value:
                    return
        raise self.missing(value)

    def _has(self, store: Any, value: str) -> bool:
        try:
            return bool(store.exists(value))
        except Exception as error:  # each kind of remote has its own errors, and any means the same: not from here
            name = next(name for name, one in self.stores.items() if one is store)
            self.away[name] = first_line(error)
            return False


def _stores(repo: "Repo") -> tuple[dict[str, Any], dict[str, str]]:
    from dvc.exceptions import DvcException

    stores: dict[str, Any] = {"DVC's cache": repo.cache.local}
    away: dict[str, str] = {}
    for name in repo.config["remote"]:
        try:
            stores[f"remote {name}"] = repo.cloud.get_remote_odb(name)
        except (DvcException, ImportError, OSError) as error:
            away[f"remote {name}"] = str(error)
    return stores, away


def hash_of(path: Path) -> str:
    """The DVC hash of a file or folder as it stands; nothing is stored."""
    from dvc_data.hashfile.build import build
    from dvc_data.hashfile.db import HashFileDB
    from dvc_objects.fs.local import LocalFileSystem

    system: Any = LocalFileSystem()  # type: ignore[no-untyped-call]
    store = HashFileDB(system, os.fspath(path.parent), hash_name="md5")
    _, _, built = build(store, os.fspath(path), system, "md5", dry_run=True)
    return str(built.hash_info.value)
