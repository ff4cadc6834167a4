"""The family of errors that a user can cause or fix.

    RatchetError
    ├── SettingsError      a setting, or an override, is not allowed
    ├── WorkspaceError     the project folder is missing, not writable or full
    │   └── WorkspaceBusy  another run holds it
    ├── DataError          the source cannot be read, or too much of it is bad
    │   ├── StorageUnavailable  its storage does not answer now
    │   └── NoRequests          logged requests cannot join these data
    ├── TrainingError      training cannot start or cannot continue
    │   ├── CheckpointError    a checkpoint is damaged or belongs to another run
    │   ├── TrainingBusy       another process runs the same training
    │   └── NotFinite          the loss is infinite or not a number, and returning to a checkpoint did not help
    ├── RegistryError      MLflow or the ledger refuses, or a registered model cannot be loaded
    │   ├── ChampionMoved      another model became champion in the meantime
    │   ├── LedgerBroken       entries of the ledger were changed
    │   └── NotAllowed         the settings do not allow this user to do that
    ├── TrackingUnavailable  MLflow does not answer; metrics wait in the journal
    │   └── TrackingRefused    it answers and refuses: a deleted experiment or run, a value that it does not allow
    ├── PlatformError      a local server does not start or does not stop
    └── StudyError         a search cannot begin or continue, or a study does not exist
        └── StudyUnavailable  its database does not answer now

Every message names the file or key, the value, what is allowed and the fix. It is shown as it is, without a traceback.
"""

import errno
from typing import TypeVar

__all__ = [
    "ChampionMoved",
    "CheckpointError",
    "DataError",
    "LedgerBroken",
    "NoRequests",
    "NotAllowed",
    "NotFinite",
    "PlatformError",
    "RatchetError",
    "RegistryError",
    "SettingsError",
    "StorageUnavailable",
    "StudyError",
    "StudyUnavailable",
    "TrackingRefused",
    "TrackingUnavailable",
    "TrainingBusy",
    "TrainingError",
    "WorkspaceBusy",
    "WorkspaceError",
    "check_lasting",
    "find_cause",
    "first_line",
    "is_momentary",
]

NO_RESULT = "classes of errors"

E = TypeVar("E", bound=BaseException)

_NO_MEANS = (errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_NO_DISK = (errno.EIO, errno.ENOTCONN, errno.ESTALE, errno.ETIMEDOUT)


class RatchetError(Exception):
    """A mistake or a condition that a user can fix; the message says how."""


class SettingsError(RatchetError):
    """a setting, or an override, is not allowed."""


class WorkspaceError(RatchetError):
    """The project folder is missing, not writable or full."""


class WorkspaceBusy(WorkspaceError):
    """Another run holds the workspace."""


class DataError(RatchetError):
    """The source cannot be read, or too much of it is bad."""


class StorageUnavailable(DataError):
    """A storage does not answer now; a later attempt may succeed."""


class NoRequests(DataError):
    """Logged requests cannot join data of this kind, problem or form."""


class TrainingError(RatchetError):
    """Training cannot start or cannot continue."""


class CheckpointError(TrainingError):
    """A checkpoint is damaged or belongs to another run."""


class TrainingBusy(TrainingError):
    """Another process runs the same training."""


class NotFinite(TrainingError):
    """The loss of `step` is not finite, and returning to a checkpoint did not help. `rows`: the batch."""

    def __init__(self, message: str, *, step: int, rows: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.step, self.rows = step, rows  # rows of the train split


class RegistryError(RatchetError):
    """MLflow or the ledger refuses, or a registered model cannot be loaded."""


class ChampionMoved(RegistryError):
    """Another model became champion after this one was compared with the previous champion."""


class LedgerBroken(RegistryError):
    """Entries of the ledger were edited, removed, inserted or replaced."""


class NotAllowed(RegistryError):
    """The settings do not allow this user to do that."""


class TrackingUnavailable(RatchetError):
    """MLflow does not answer; what was recorded waits in the journal."""


class TrackingRefused(TrackingUnavailable):
    """MLflow answers, and refuses: a deleted experiment or run, or a value that it does not allow."""


class PlatformError(RatchetError):
    """A local server does not start or does not stop."""


class StudyError(RatchetError):
    """A search cannot begin or continue, or a study does not exist."""


class StudyUnavailable(StudyError):
    """The database of the studies does not answer now; a later attempt may succeed."""


def find_cause(error: BaseException | None, wanted: type[E]) -> E | None:
    """Return the error of a class that `error` is, or that led to it; None if there is none."""
    while error is not None and not isinstance(error, wanted):
        error = error.__cause__ or error.__context__
    return error


def is_momentary(error: BaseException) -> bool:
    """Return whether it says nothing of the file that was read: memory or file descriptors ran out, or a disk failed.

    A later attempt may succeed.
    """
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _NO_MEANS + _NO_DISK)


def check_lasting(error: Exception, name: str) -> None:
    """Refuse to call a file bad for an error that is not the file's.

    Raises:
        StorageUnavailable: a later attempt may read it.
    """
    if is_momentary(error):
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise StorageUnavailable(
            f"{name}: cannot be read now ({reason}); it may be good. Fix: end programs that take memory or open files "
            "(`ulimit -n`), or wait for the disk, then run the same command again. If it fails each time, restore the "
            "file or move it away"
        ) from error


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its class if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
