"""The version that is served: it follows an alias, and changes only to one that loads and answers."""

import asyncio
import logging
import shutil
import tempfile
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ratchet.errors import RatchetError
from ratchet.registry.models import ModelRegistry
from ratchet.registry.provenance_record import PROVENANCE_TAG
from ratchet.registry.versions import Version
from ratchet.serving.loaded import Identity, LoadedVersion

__all__ = ["Follower"]

_LOG = logging.getLogger(__name__)
_AGAIN = 30.0  # seconds after which a version that could not be loaded is tried again


class Follower:
    """The served version of a reference such as digits@champion or digits/3.

    Attributes:
        reference: of the version.
        current: the version that answers; None: there is none yet.
        problem: why the version that the reference names is not served; empty: it is.
    """

    def __init__(self, registry: ModelRegistry, reference: str, *, threads: int) -> None:
        self.registry, self.reference, self.threads = registry, reference, threads
        self.current: LoadedVersion | None = None
        self.problem = "it is not loaded yet"
        self._refused = ("", 0.0, "")  # run of the version that could not be loaded, when it is tried again, and why
        self._folder = tempfile.TemporaryDirectory(prefix="ratchet-served-", ignore_cleanup_errors=True)
        self._thread = ThreadPoolExecutor(1)  # of its own: slow requests must not keep it from looking

    def close(self) -> None:
        """Delete the files of all versions."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._folder.cleanup()

    async def follow(self, *, every: float) -> None:
        """Look for another version every so many seconds, until cancelled."""
        while True:
            try:
                await asyncio.get_running_loop().run_in_executor(self._thread, self.check)
            except Exception as error:  # of MLflow or its database: what is served stays, and the next look may succeed
                self._report(f"{self.reference}: {type(error).__name__}: {error}")
            await asyncio.sleep(every)

    def check(self) -> None:
        """Load the version that the reference names now, unless it is served. A failure leaves the one before."""
        try:
            version = self.registry.find(self.reference)
        except RatchetError as error:  # MLflow is away, or the alias is gone: what is served stays
            self._report(str(error))
            return
        if self.current is not None and self.current.identity.run_id == version.run_id:
            self._report("")
            return
        if version.run_id == self._refused[0] and time.monotonic() < self._refused[1]:
            self._report(self._refused[2])
            return
        try:
            loaded = self._load(version)
        except RatchetError as error:
            self._refused = (version.run_id, time.monotonic() + _AGAIN, str(error))
            self._report(str(error))
            return
        self.current = loaded
        self._report("")
        _LOG.info("%s answers now, by %s", loaded.identity, loaded.engine)

    def _load(self, version: Version) -> LoadedVersion:
        """Return the version, with its files in a folder that is deleted when nothing uses it any more."""
        folder = Path(tempfile.mkdtemp(dir=self._folder.name))
        try:
            files = self.registry.copy_files(version, folder)
            identity = Identity(version.name, version.number, version.run_id, version.tags.get(PROVENANCE_TAG))
            loaded = LoadedVersion(identity, files, threads=self.threads)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        weakref.finalize(loaded, shutil.rmtree, folder, ignore_errors=True)
        return loaded

    def _report(self, problem: str) -> None:
        if problem and problem != self.problem:
            _LOG.error("%s", problem)
        self.problem = problem
