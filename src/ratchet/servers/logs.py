"""Logs of the services: the last lines, merged by their times, and new lines as they are written."""

import heapq
import os
import re
import time
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import BinaryIO

from ratchet.errors import PlatformError
from ratchet.servers.server_record import TITLES
from ratchet.servers.supervisor import rotated
from ratchet.workspace import Workspace

__all__ = ["LogLine", "read_logs"]

_INTERVAL = 0.2  # seconds between two checks of a log that is followed
_CLOCK = re.compile(r"\b([01]\d|2[0-3]):([0-5]\d):([0-5]\d)(?:[.,](\d{1,6}))?")  # within the beginning of a line


@dataclass(frozen=True)
class LogLine:
    """A line of a service's log, without its line break."""

    service: str
    text: str


def read_logs(
    workspace: Workspace, service: str | None = None, *, lines: int, follow: bool
) -> Generator[LogLine, None, None]:
    """Yield the last lines of a service's log, or of all logs in the order of time. With `follow`, yield new lines too.

    Rotated, emptied and replaced logs are followed. Following never ends.

    Raises:
        PlatformError: the service is unknown, or there is no log yet.
    """
    if service is not None and service not in TITLES:
        raise PlatformError(f"no service is named {service!r}. Allowed: {', '.join(TITLES)}")
    names = list(TITLES) if service is None else [service]
    logs = [_Log(name, workspace.state / "logs" / f"{name}.log") for name in names]
    if not any(log.path.exists() for log in logs):
        missing = f"{TITLES[service]}: it was not" if service else "no server was"
        raise PlatformError(f"{missing} started yet in {workspace.root}, so there is no log. Fix: `ratchet up`")
    return _read(logs, lines, follow)


def _read(logs: Sequence["_Log"], lines: int, follow: bool) -> Generator[LogLine, None, None]:
    try:
        ends = [[(moment, LogLine(log.name, text)) for moment, text in log.end(lines)] for log in logs]
        for _, line in heapq.merge(*ends, key=lambda dated: dated[0]):
            yield line
        while follow:
            for log in logs:
                for text in log.new_lines():
                    yield LogLine(log.name, text)
            time.sleep(_INTERVAL)
    finally:
        for log in logs:
            log.close()


@dataclass
class _Log:
    """One log file, read on from the last position."""

    name: str
    path: Path
    file: BinaryIO | None = None
    rest: bytes = b""  # of a line whose end is not written yet

    def end(self, count: int) -> list[tuple[datetime, str]]:
        """Return the last lines and their times, including lines of the rotated log."""
        self._open()
        if self.file is None:
            return []
        lines = deque(self.file, maxlen=count)
        if len(lines) < count and (old := rotated(self.path)).exists():
            with old.open("rb") as file:
                lines.extendleft(reversed(deque(file, maxlen=count - len(lines))))
        written = datetime.fromtimestamp(os.fstat(self.file.fileno()).st_mtime)
        return _dated([_text(line) for line in lines], written)

    def new_lines(self) -> list[str]:
        """Return the complete lines written since the last call."""
        lines = self._read_new()
        if self._replaced():
            lines += self._read_new()  # written between the two checks
            self.close()
            self._open()
            lines += self._read_new()
        return lines

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file, self.rest = None, b""

    def _open(self) -> None:
        try:
            self.file = self.path.open("rb")
        except FileNotFoundError:  # not started yet
            self.file = None

    def _replaced(self) -> bool:
        """Return whether the path now names another file than the open one."""
        try:
            return self.file is None or not os.path.samestat(os.fstat(self.file.fileno()), self.path.stat())
        except FileNotFoundError:  # rotated, and the next log has not begun
            return False

    def _read_new(self) -> list[str]:
        if self.file is None:
            return []
        if os.fstat(self.file.fileno()).st_size < self.file.tell():  # emptied
            self.file.seek(0)
            self.rest = b""
        *lines, self.rest = (self.rest + self.file.read()).split(b"\n")
        return [_text(line) for line in lines]


def _text(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\r\n")


def _dated(lines: list[str], written: datetime) -> list[tuple[datetime, str]]:
    """Return each line with its time. Most lines have no date: days are counted back from the time of the last line."""
    times: list[datetime | None] = []
    for line in reversed(lines):
        if match := _CLOCK.search(line[:40]):
            hour, minute, second = map(int, match.groups()[:3])
            microsecond = int((match[4] or "").ljust(6, "0"))
            moment = written.replace(hour=hour, minute=minute, second=second, microsecond=microsecond)
            written = moment if moment <= written else moment - timedelta(days=1)
            times.append(written)
        else:
            times.append(None)
    last = written
    dated = []
    for line, moment_or_none in zip(lines, reversed(times), strict=True):
        last = moment_or_none or last  # the lines of a traceback belong to the line above them
        dated.append((last, line))
    return dated
