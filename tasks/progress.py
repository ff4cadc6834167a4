"""Progress of a stage on the terminal."""

import os
import sys
import time
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from ratchet.terminal_lines import fitted

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

__all__ = ["LINE_SECONDS_VARIABLE", "StageProgress", "Terminal"]

NO_RESULT = "it prints progress"

LINE_SECONDS_VARIABLE = "RATCHET_LINE_SECONDS"
"""Environment variable with the seconds between progress lines if stderr is not a terminal; without it: 10."""
_WIDE, _NARROW = 100, 70  # columns of a terminal, for a long bar, and for the pace beside it


class StageProgress(Protocol):
    """Receiver of a stage's progress and messages."""

    def update(self, done: int, total: int, note: str = "") -> None:
        """Report that `done` of `total` units are done."""

    def say(self, text: str) -> None:
        """Report a message of one sentence."""


class Terminal:
    """Progress bar with rate and remaining time on a terminal; elsewhere (CI, a log) a line every ten seconds."""

    def __init__(self, stage: str, *, unit: str) -> None:
        from rich.console import Console

        self.stage, self.unit = stage, unit
        self.words = ""  # the progress as text
        self._console = Console(stderr=True, highlight=False)
        self._bar = _bar(self._console)
        self._task = self._bar.add_task(stage, total=None, unit=unit, rate="", note="")
        self._first, self._done = (0.0, 0), sys.maxsize
        self._last_line, self._line_seconds = time.monotonic(), float(os.environ.get(LINE_SECONDS_VARIABLE) or 10)

    def __enter__(self) -> "Terminal":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def update(self, done: int, total: int, note: str = "") -> None:
        now = time.monotonic()
        first = (now, done) if done < self._done else self._first  # other work begins, such as a user's metric
        self._first, self._done = first, done
        seconds = now - self._first[0]
        rate = (done - self._first[1]) / seconds if seconds > 0.5 else 0.0
        pace = f"{rate:,.0f}/s" if rate >= 1.0 else f"{rate:.2g}/s" if rate else ""
        left = f"{timedelta(seconds=round((total - done) / rate))} left" if rate else ""
        parts = [f"{self.stage}: {done:,} of {total:,} {self.unit}", pace, left, note]
        self.words = ", ".join(filter(None, parts))
        self._bar.update(self._task, completed=done, total=total, rate=pace, note=note)
        if self._bar.disable and now - self._last_line > self._line_seconds:
            self._last_line = now
            self._console.print(self.words, markup=False, soft_wrap=True)

    def say(self, text: str) -> None:
        self._console.print(fitted(f"{self.stage}: {text}", sys.stderr), markup=False, soft_wrap=True)


def _bar(console: "Console") -> "Progress":
    """Return a progress bar of one line: a narrow terminal gets fewer columns, not broken lines."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.table import Column

    length = 28 if console.width >= _WIDE else 10
    bar = (TextColumn("[bold]{task.description}"), BarColumn(bar_width=length), MofNCompleteColumn())
    pace = (TextColumn("{task.fields[unit]}  {task.fields[rate]}"), TimeElapsedColumn(), TextColumn("left"))
    # The note gets what is left of the line; the other columns keep their width.
    note = TextColumn("[dim]{task.fields[note]}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"))
    is_narrow = console.width < _NARROW
    columns = (*bar, TimeRemainingColumn()) if is_narrow else (*bar, *pace, TimeRemainingColumn(), note)
    return Progress(*columns, console=console, disable=not sys.stderr.isatty(), expand=not is_narrow)
