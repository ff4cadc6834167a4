"""The version that is served: it follows an alias, and changes only to one that loads and answers."""

import asyncio
import contextlib
import logging
import shutil
import time
import weakref
from collections.abc import Callable
from pathlib import Path

from ratchet.errors import RatchetError, TrackingUnavailable
from ratchet.registry.models import ModelRegistry
from ratchet.registry.provenance_record import PROVENANCE_TAG
from ratchet.registry.versions import Version
from ratchet.serving.versions.folder import ServedFolder
from ratchet.serving.versions.loaded import Identity, LoadedVersion
from ratchet.serving.worker_thread import Worker

__all__ = ["AliasWatcher", "PinnedVersion", "load"]

_LOG = logging.getLogger(__name__)
_AGAIN = 30.0  # seconds after which a version that could not be loaded is tried again


def load(
    registry: ModelRegistry, version: Version, folder: Path, *, threads: int, variant: str = "auto"
) -> LoadedVersion:
    """Copy the version's files to `folder`, compare them with their checksums, and load and try them.

    Raises:
        RegistryError: they are not those that were stored, or the model does not answer.
    """
    return LoadedVersion(_identity(version), registry.copy_files(version, folder), threads=threads, variant=variant)


def _identity(version: Version) -> Identity:
    return Identity(version.name, version.number, version.run_id, version.tags.get(PROVENANCE_TAG))


class PinnedVersion:
    """A version that is always served: the same attributes as those of `AliasWatcher`."""

    problem = refused = ""

    def __init__(self, loaded: LoadedVersion) -> None:
        self.current: LoadedVersion | None = loaded
        self.reference = f"{loaded.identity.model}/{loaded.identity.version}"

    async def watch(self, *, every: float) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class AliasWatcher:
    """The served version of a reference such as digits@champion or digits/3.

    Attributes:
        reference: of the version; empty while there are no data that name the model.
        current: the version that answers; None: there is none yet.
        problem: why the version that the reference names is not served; empty: it is.
        refused: name of the version that the reference names, if it cannot be loaded or answers wrongly; else empty.
        is_named: whether the reference names `current`. It stays as it is while MLflow is away.
    """

    def __init__(
        self,
        registry: ModelRegistry,
        reference: Callable[[], str],
        *,
        folder: Path,
        threads: int,
        variant: str = "auto",
    ) -> None:
        """Follow the version that `reference` returns. It is called until it raises no RegistryError.

        Files of versions are in `folder` while they are used.
        """
        self.registry, self.threads, self.variant = registry, threads, variant
        self.reference, self._find_reference = "", reference
        self.current: LoadedVersion | None = None
        self.problem = "it is not loaded yet"
        self.refused, self.is_named = "", False
        self._refused = ("", 0.0, "")  # run of the version that could not be loaded, when it is tried again, and why
        self._folder = ServedFolder(folder)
        self._thread = Worker("watcher")  # of its own: slow requests must not keep it from looking

    def close(self) -> None:
        """Delete the files of all versions."""
        self._thread.close()
        self._folder.close()

    async def watch(self, *, every: float) -> None:
        """Look for another version every so many seconds, until cancelled."""
        while True:
            try:
                await self._thread.run(self.check)
            except Exception as error:  # of MLflow or its database: what is served stays, and the next look may succeed
                self._report(f"{self.reference}: {type(error).__name__}: {error}")
            await asyncio.sleep(every)

    def check(self) -> None:
        """Load the version that the reference names now, unless it is served. A failure leaves the one before."""
        try:
            self.reference = self.reference or self._find_reference()
            version = self.registry.find(self.reference)
        except RatchetError as error:  # MLflow is away, or the alias is gone: what is served stays
            self.is_named = self.is_named and isinstance(error, TrackingUnavailable)
            self._report(str(error))
            return
        self.is_named = self.current is not None and self.current.identity.run_id == version.run_id
        if self.is_named:
            self._report("")
            return
        if version.run_id == self._refused[0] and time.monotonic() < self._refused[1]:
            self._report(self._refused[2], refused=f"{version.name} version {version.number}")
            return
        try:
            loaded = self._load(version)
        except RatchetError as error:
            self._refused = (version.run_id, time.monotonic() + _AGAIN, str(error))
            self._report(str(error), refused=f"{version.name} version {version.number}")
            return
        self.current, self.is_named = loaded, True
        self._report("")
        _LOG.info("%s answers now, by %s, %s", loaded.identity, loaded.engine, loaded.identity.variant)

    def _load(self, version: Version) -> LoadedVersion:
        """Return the version, with its files in a folder that is deleted when nothing uses it any more."""
        with contextlib.ExitStack() as on_failure:
            with self._folder.new() as folder:
                on_failure.callback(shutil.rmtree, folder, ignore_errors=True)
                stored = self.registry.copy_files(version, folder)
            loaded = LoadedVersion(_identity(version), stored, threads=self.threads, variant=self.variant)
            on_failure.pop_all()
        weakref.finalize(loaded, shutil.rmtree, folder, ignore_errors=True)
        return loaded

    def _report(self, problem: str, *, refused: str = "") -> None:
        if problem and problem != self.problem:
            _LOG.error("%s", problem)
        self.problem, self.refused = problem, refused
