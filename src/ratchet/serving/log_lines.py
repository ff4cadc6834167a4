"""The log of the model server: each line has time and level, and no client can fill it.

A line that requests can cause is written once in a minute. The next one of its kind says how many were left out. Lines
about versions, keys and deleted files are all written, because no request causes them.
"""

import logging
import time
import warnings
from collections.abc import Callable

__all__ = ["LimitedHandler", "set_up"]

_EVERY = 60.0  # seconds between two lines of one kind
_UNLIMITED = (
    "ratchet.serving.versions",
    "ratchet.serving.canary",
    "ratchet.serving.keys",
    "ratchet.serving.process",
    "ratchet.traffic",
)
_FORM = "%(asctime)s %(levelname)s {}%(message)s"
_TIME = "%Y-%m-%dT%H:%M:%S%z"
Kind = tuple[object, ...]


class LimitedHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes one line of a kind in an interval.

    Lines of one place in the code, with one type of exception, are a kind.
    """

    def __init__(self, process: str = "", *, clock: Callable[[], float] = time.monotonic) -> None:
        """Write to the standard error. `process` begins each message; `clock` returns seconds."""
        super().__init__()
        self._clock = clock
        self._written: dict[Kind, float] = {}  # time of the latest line
        self._left_out: dict[Kind, int] = {}
        self.setFormatter(logging.Formatter(_FORM.format(process), _TIME))

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, or count it."""
        if not record.name.startswith(_UNLIMITED):
            kind = (record.pathname, record.lineno, record.exc_info and record.exc_info[0])
            now = self._clock()
            if now < self._written.get(kind, now - _EVERY) + _EVERY:
                self._left_out[kind] = self._left_out.get(kind, 0) + 1
                return
            self._written[kind] = now
            if count := self._left_out.pop(kind, 0):
                text = f"{record.getMessage()} ({count:,} more of this kind were left out)"
                record = logging.makeLogRecord(record.__dict__ | {"msg": text, "args": ()})
        super().emit(record)

    def close(self) -> None:
        """Write how many lines were left out."""
        if count := sum(self._left_out.values()):
            self._left_out.clear()
            text = f"{count:,} lines were left out of this log: each kind is written once in {_EVERY:g} s"
            super().emit(logging.makeLogRecord({"levelname": "WARNING", "levelno": logging.WARNING, "msg": text}))
        super().close()


def set_up(process: str = "") -> None:
    """Write the log of this process to the standard error. Libraries write warnings and errors only.

    `process` names it in each line.
    """
    logging.basicConfig(level=logging.WARNING, handlers=[LimitedHandler(process)], force=True)
    logging.getLogger("ratchet").setLevel(logging.INFO)
    warnings.formatwarning = lambda message, category, filename, lineno, line=None: (
        f"{category.__name__}: {message} ({filename}:{lineno})"
    )
    logging.captureWarnings(True)
