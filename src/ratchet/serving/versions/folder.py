"""The folder with the files of a server's versions. After a kill, it is deleted when another server starts."""

import fcntl
import shutil
import tempfile
from pathlib import Path

__all__ = ["ServedFolder"]

_PREFIX, _LOCK = "ratchet-served-", "lock"


class ServedFolder:
    """A temporary folder, which is locked while its process lives.

    Attributes:
        path: of the folder.
    """

    def __init__(self) -> None:
        """Create the folder, and delete those of servers that were killed."""
        for lock in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_LOCK}"):
            _delete_abandoned(lock)
        self._folder = tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True)
        self.path = Path(self._folder.name)
        draft = self.path / "draft"
        self._lock = draft.open("wb")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        draft.rename(self.path / _LOCK)  # only now, so that a starting server never looks abandoned

    def close(self) -> None:
        """Delete the folder."""
        self._folder.cleanup()
        self._lock.close()


def _delete_abandoned(lock: Path) -> None:
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent)
    except OSError:  # its server lives, or is another user's
        return
