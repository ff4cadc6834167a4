"""What the parts wrote: the end of each log, several in one by the times in their lines, and what comes after."""

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
from ratchet.platform.condition import TITLES
from ratchet.platform.guard import put_aside
from ratchet.workspace import Workspace

__all__ = ["Line", "read_logs"]

_LOOK = 0.2  # seconds between two looks at a log that is followed
_CLOCK = re.compile(r"\b([01]\d|2[0-3]):([0-5]\d):([0-5]\d)(?:[.,](\d{1,6}))?")  # within the beginning of a line


@dataclass(frozen=True)
class Line:
    """A line of the log of `part`, without its end."""

    part: str
    text: str


def read_logs(
    workspace: Workspace, part: str | None = None, *, lines: int, follow: bool
) -> Generator[Line, None, None]:
    """The last lines of a part's log, or of each part's in the order of time; then, if asked to follow, every new one.

    A log that is put aside, emptied or begins anew is read on. Following never ends.

    Raises:
        PlatformError: there is no such part, or nothing has written a log yet.
    """
    if part is not None and part not in TITLES:
        raise PlatformError(f"there is no part {part!r}: there are {', '.join(TITLES)}")
    names = list(TITLES) if part is None else [part]
    logs = [_Log(name, workspace.state / "logs" / f"{name}.log") for name in names]
    if not any(log.path.exists() for log in logs):
        of = f"{TITLES[part]}: not started" if part else "nothing was started"
        raise PlatformError(f"{of} yet in {workspace.root}, so there is no log: `ratchet up` starts it")
    return _read(logs, lines, follow)


def _read(logs: Sequence["_Log"], lines: int, follow: bool) -> Generator[Line, None, None]:
    try:
        ends = [[(moment, Line(log.name, text)) for moment, text in log.end(lines)] for log in logs]
        for _, line in heapq.merge(*ends, key=lambda dated: dated[0]):
            yield line
        while follow:
            for log in logs:
                for text in log.more():
                    yield Line(log.name, text)
            time.sleep(_LOOK)
    finally:
        for log in logs:
            log.close()


@dataclass
class _Log:
    """One log, read on from where it was left."""

    name: str
    path: Path
    file: BinaryIO | None = None
    rest: bytes = b""  # of a line whose end is not written yet

    def end(self, count: int) -> list[tuple[datetime, str]]:
        """The last lines and when they were written; those put aside are counted in."""
        self._open()
        if self.file is None:
            return []
        found = deque(self.file, maxlen=count)
        if len(found) < count and (old := put_aside(self.path)).exists():
            with old.open("rb") as file:
                found.extendleft(reversed(deque(file, maxlen=count - len(found))))
        written = datetime.fromtimestamp(os.fstat(self.file.fileno()).st_mtime)
        return _dated([_text(line) for line in found], written)

    def more(self) -> list[str]:
        """The whole lines written since."""
        found = self._new()
        if self._replaced():
            found += self._new()  # what was written between the two looks
            self.close()
            self._open()
            found += self._new()
        return found

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
        """Does the path lead to another file than the one that is open?"""
        try:
            return self.file is None or not os.path.samestat(os.fstat(self.file.fileno()), self.path.stat())
        except FileNotFoundError:  # put aside, and the next one not yet begun
            return False

    def _new(self) -> list[str]:
        if self.file is None:
            return []
        if os.fstat(self.file.fileno()).st_size < self.file.tell():  # emptied
            self.file.seek(0)
            self.rest = b""
        *whole, self.rest = (self.rest + self.file.read()).split(b"\n")
        return [_text(line) for line in whole]


def _text(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\r\n")


def _dated(lines: list[str], written: datetime) -> list[tuple[datetime, str]]:
    """When each line was written. Most bear a time of day and no date: the days are counted back from the last line."""
    moments: list[datetime | None] = []
    for line in reversed(lines):
        if found := _CLOCK.search(line[:40]):
            hour, minute, second = map(int, found.groups()[:3])
            moment = written.replace(hour=hour, minute=minute, second=second, microsecond=_micro(found[4]))
            written = moment if moment <= written else moment - timedelta(days=1)
            moments.append(written)
        else:
            moments.append(None)
    last = written
    dated = []
    for line, bears in zip(lines, reversed(moments), strict=True):
        last = bears or last  # the lines of a traceback belong to the one above them
        dated.append((last, line))
    return dated


def _micro(fraction: str | None) -> int:
    return int((fraction or "").ljust(6, "0"))
