"""The folder with the files of a server's versions. After a kill, it is deleted when another server starts."""

import fcntl
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ratchet.errors import RegistryError

__all__ = ["ServedFolder"]

_LOCK = "lock"


class ServedFolder:
    """A folder that is deleted at the end of its process, which locks it. No cleaner of temporary files finds it.

    Attributes:
        path: of the folder.
    """

    def __init__(self, parent: Path) -> None:
        """Create the folder in `parent`, and delete those of servers that were killed."""
        parent.mkdir(parents=True, exist_ok=True)
        for lock in parent.glob(f"*/{_LOCK}"):
            _delete_abandoned(lock)
        self._folder = tempfile.TemporaryDirectory(prefix=f"{os.getpid()}-", dir=parent, ignore_cleanup_errors=True)
        self.path = Path(self._folder.name)
        draft = self.path / "draft"
        self._lock = draft.open("wb")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        draft.rename(self.path / _LOCK)  # only now, so that a starting server never looks abandoned
        self._writing, self._closed = threading.Lock(), False

    @contextmanager
    def new(self) -> Iterator[Path]:
        """Create a folder in it, for one version. Files are written to it in the block, which `close` waits for.

        Raises:
            RegistryError: it is closed. A folder that is created now stays when the process ends.
        """
        with self._writing:
            if self._closed:
                raise RegistryError("the server ends, so no further version is loaded")
            self.path.mkdir(parents=True, exist_ok=True)  # a user may have deleted it
            yield Path(tempfile.mkdtemp(dir=self.path))

    def close(self) -> None:
        """Delete the folder."""
        with self._writing:
            self._closed = True
            self._folder.cleanup()
        self._lock.close()


def _delete_abandoned(lock: Path) -> None:
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent)
    except OSError:  # its server lives, or is another user's
        return
