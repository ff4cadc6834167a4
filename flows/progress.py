"""How a flow run shows what it is doing: progress in the terminal and as a Prefect artifact, sentences in its log."""

import logging
import time
from types import TracebackType
from uuid import UUID

from httpx import HTTPError
from prefect import get_run_logger
from prefect.artifacts import create_progress_artifact, update_progress_artifact

from ratchet.errors import RatchetError, first_line
from tasks.progress import Terminal

__all__ = ["PrefectProgress", "tell_mistakes_plainly"]

_SECONDS = 3.0  # before the artifact is made, and between its updates: each is a request
_AWAY_SECONDS = 60.0  # more, after one that failed: it was tried for a while


class PrefectProgress(Terminal):
    """The terminal's bar, and the same as a progress artifact; sentences also go to the run's log."""

    def __init__(self, stage: str, *, unit: str) -> None:
        super().__init__(stage, unit=unit)
        self._log = get_run_logger()
        self._artifact: UUID | None = None  # a stage that is over at once needs none
        self._updated = time.monotonic()
        self._noted = ""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        if self._artifact is not None and kind is None:
            self._publish(100.0)

    def progress(self, done: int, total: int, note: str = "") -> None:
        super().progress(done, total, note)
        if note.startswith("epoch") and note != self._noted:
            self._noted = note
            self._log.info("%s: %s", self.stage, note)
        now = time.monotonic()
        if now - self._updated < _SECONDS or not total:
            return
        self._updated = now
        if not self._publish(100.0 * done / total):
            self._updated += _AWAY_SECONDS

    def _publish(self, share: float) -> bool:
        """Show the percentage and the words. The work goes on where Prefect's server does not answer."""
        try:
            if self._artifact is None:
                created = create_progress_artifact(share, key=f"{self.stage}-progress", description=self.words)
                assert isinstance(created, UUID)
                self._artifact = created
            else:
                update_progress_artifact(self._artifact, share, self.words)
        except HTTPError as error:
            super().say(f"Prefect's server does not show the progress ({first_line(error)}): the work goes on")
            return False
        return True

    def say(self, text: str) -> None:
        super().say(text)
        self._log.info("%s: %s", self.stage, text)


class _Plainly(logging.Filter):
    """Lets a person's mistake through as its sentence, without the traceback that the engine adds."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info is None:
            return True
        error = record.exc_info[1]
        if isinstance(error, RatchetError):
            record.msg, record.args, record.exc_info = str(error), (), None
        # A task that returns its failure as a state: the engine asks for the traceback of no exception, and the next
        # line of the log is the state itself.
        return error is not None


def tell_mistakes_plainly() -> None:
    """From now on Prefect's engine logs a `RatchetError` as its sentence. May be called again.

    A deployment's run ends by raising what its flow failed with, and the engine logs that with two tracebacks: one in
    the run's log, one in the worker's.
    """
    for name in ("prefect.flow_runs", "prefect.task_runs", "prefect.engine"):
        logger = logging.getLogger(name)
        if not any(isinstance(one, _Plainly) for one in logger.filters):
            logger.addFilter(_Plainly())
