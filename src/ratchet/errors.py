"""What can go wrong, as one family.

    RatchetError
    ├── SettingsError      params.yaml, or an override, says something it must not
    ├── WorkspaceError     the project folder is missing, not writable or full
    │   └── WorkspaceBusy  another run holds it
    ├── DataError          the source cannot be read, or too much of it is bad
    ├── TrainingError      training cannot start or cannot go on
    │   ├── CheckpointError    a checkpoint is damaged or belongs to another run
    │   └── NotFinite          the loss is infinite or not a number, and going back did not help
    ├── RegistryError      MLflow or the ledger refuses, or a registered model does not load
    │   ├── ChampionMoved      another model became champion meanwhile
    │   ├── LedgerBroken       the ledger is not what was written
    │   └── NotAllowed         this user may not do that
    ├── TrackingAway       MLflow does not answer: what was recorded waits in the journal
    └── PlatformError      a local server does not start or does not stop

Every message names the thing, the value found, what is allowed and the way out: it is shown to a person as it is,
without a traceback.
"""

__all__ = [
    "ChampionMoved",
    "CheckpointError",
    "DataError",
    "LedgerBroken",
    "NotAllowed",
    "NotFinite",
    "PlatformError",
    "RatchetError",
    "RegistryError",
    "SettingsError",
    "TrackingUnavailable",
    "TrainingError",
    "WorkspaceBusy",
    "WorkspaceError",
    "first_line",
]


class RatchetError(Exception):
    """A mistake or a circumstance that a person can mend; the message says how."""


class SettingsError(RatchetError):
    """params.yaml, or an override, says something it must not."""


class WorkspaceError(RatchetError):
    """The project folder is missing, not writable or full."""


class WorkspaceBusy(WorkspaceError):
    """Another run holds the workspace."""


class DataError(RatchetError):
    """The source cannot be read, or too much of it is bad."""


class TrainingError(RatchetError):
    """Training cannot start or cannot go on."""


class CheckpointError(TrainingError):
    """A checkpoint is damaged or belongs to another run."""


class NotFinite(TrainingError):
    """The loss of `step` is infinite or not a number, and going back did not help; `rows` are its batch's."""

    def __init__(self, message: str, *, step: int, rows: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.step, self.rows = step, rows  # rows of the train split


class RegistryError(RatchetError):
    """MLflow or the ledger refuses, or a registered model does not load."""


class ChampionMoved(RegistryError):
    """Another model became champion since this one was compared with the one before."""


class LedgerBroken(RegistryError):
    """The ledger is not what was written: entries were edited, removed, inserted or replaced."""


class NotAllowed(RegistryError):
    """The settings do not let this user do that."""


class TrackingUnavailable(RatchetError):
    """MLflow does not answer; what was recorded waits in the journal."""


class PlatformError(RatchetError):
    """A local server does not start or does not stop."""


def first_line(error: BaseException) -> str:
    """What an error of a library's says first; of one that says nothing, its kind."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
