"""A stage's progress, shown in the terminal and as a Prefect artifact."""

import time
from types import TracebackType
from uuid import UUID

from prefect import get_run_logger
from prefect.artifacts import create_progress_artifact, update_progress_artifact

from tasks.watch import Terminal

__all__ = ["PrefectWatch"]

_SECONDS = 3.0  # between updates: each is a request


class PrefectWatch(Terminal):
    """The terminal's bar, and the same as a progress artifact; sentences also go to the run's log."""

    def __init__(self, stage: str, *, unit: str) -> None:
        super().__init__(stage, unit=unit)
        self._log = get_run_logger()
        self._artifact: UUID | None = None
        self._updated = 0.0
        self._noted = ""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        if self._artifact is not None and kind is None:
            update_progress_artifact(self._artifact, 100.0)

    def progress(self, done: int, total: int, note: str = "") -> None:
        super().progress(done, total, note)
        if note.startswith("epoch") and note != self._noted:
            self._noted = note
            self._log.info("%s: %s", self.stage, note)
        now = time.monotonic()
        if now - self._updated < _SECONDS or not total:
            return
        self._updated = now
        share = 100.0 * done / total
        description = f"{done:,} of {total:,} {self.unit} {note}"
        if self._artifact is None:
            created = create_progress_artifact(share, key=f"{self.stage}-progress", description=description)
            assert isinstance(created, UUID)
            self._artifact = created
        else:
            update_progress_artifact(self._artifact, share, description)

    def say(self, text: str) -> None:
        super().say(text)
        self._log.info("%s: %s", self.stage, text)
