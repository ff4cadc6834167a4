"""Progress of a flow run: in the terminal, as a Prefect artifact, and as messages in the run's log."""

import logging
import time
from types import TracebackType
from typing import cast
from uuid import UUID

from httpx import HTTPError
from prefect import get_run_logger
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from prefect.utilities.annotations import opaque

from ratchet.errors import RatchetError, first_line
from ratchet.settings.model import Params
from tasks.progress import Terminal

__all__ = ["PrefectProgress", "log_errors_without_traceback", "whole"]

_INTERVAL = 3.0  # seconds before the artifact is created, and between its updates: each is a request
_RETRY_PAUSE = 60.0  # further seconds after a failed request


def whole(params: Params) -> Params:
    """Return the settings as an argument of a Prefect task, which gets them as they are.

    Prefect looks for results of other tasks inside of arguments. Of settings it does so by `dict(section)`, which takes
    serving.keys for the method of a mapping and fails.
    """
    return cast(Params, opaque(params))


class PrefectProgress(Terminal):
    """Terminal progress bar that is also a progress artifact. Messages also go to the run's log."""

    def __init__(self, stage: str, *, unit: str) -> None:
        super().__init__(stage, unit=unit)
        self._log = get_run_logger()
        self._artifact: UUID | None = None  # a short stage needs none
        self._updated = time.monotonic()
        self._noted = ""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        if self._artifact is not None and kind is None:
            self._publish(100.0)

    def update(self, done: int, total: int, note: str = "") -> None:
        super().update(done, total, note)
        if note.startswith("epoch") and note != self._noted:
            self._noted = note
            self._log.info("%s: %s", self.stage, note)
        now = time.monotonic()
        if now - self._updated < _INTERVAL or not total:
            return
        self._updated = now
        if not self._publish(100.0 * done / total):
            self._updated += _RETRY_PAUSE

    def _publish(self, share: float) -> bool:
        """Update the artifact. Returns False if Prefect's server does not answer; the work continues."""
        try:
            with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 1}):  # the work waits meanwhile
                if self._artifact is None:
                    created = create_progress_artifact(share, key=f"{self.stage}-progress", description=self.words)
                    assert isinstance(created, UUID)
                    self._artifact = created
                else:
                    update_progress_artifact(self._artifact, share, self.words)
        except HTTPError as error:
            super().say(f"Prefect's server does not show the progress ({first_line(error)}); the work continues")
            return False
        return True

    def say(self, text: str) -> None:
        super().say(text)
        self._log.info("%s: %s", self.stage, text)


class _WithoutTraceback(logging.Filter):
    """Shortens the log record of a `RatchetError` to its message, without the engine's traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info is None:
            return True
        error = record.exc_info[1]
        if isinstance(error, RatchetError):
            record.msg, record.args, record.exc_info = str(error), (), None
        # A task that returns its failure as a state is logged with an empty exception. The next line is the state.
        return error is not None


def log_errors_without_traceback() -> None:
    """Let Prefect's engine log a `RatchetError` as its message only. May be called again.

    A failed deployment run raises the error of its flow. The engine would log it with two tracebacks: one in the run's
    log, one in the worker's.
    """
    for name in ("prefect.flow_runs", "prefect.task_runs", "prefect.engine"):
        logger = logging.getLogger(name)
        if not any(isinstance(each, _WithoutTraceback) for each in logger.filters):
            logger.addFilter(_WithoutTraceback())
