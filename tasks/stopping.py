"""Why a training leaves before its last step: it was asked to, or its budget is spent."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from ratchet.cost import Cost, Meter, spoken
from ratchet.errors import TrainingError
from ratchet.settings.model import BudgetSettings

__all__ = ["Budget", "BudgetSpent", "TrainingStopped", "on_request"]

_LITTLE, _MINUTE = 0.01, 60.0  # of a budget this share, or so many seconds, are too little to begin with
_PAUSE = 0.05  # seconds between two looks at what was spent, at the least: one takes milliseconds


class TrainingStopped(TrainingError):
    """Asked to leave, by SIGTERM or Ctrl-C; a checkpoint stands."""


class BudgetSpent(TrainingStopped):
    """It has taken what it may; the checkpoint of `step` stands."""

    def __init__(self, message: str, *, step: int) -> None:
        super().__init__(message)
        self.step = step


class Budget:
    """What one training may take, what it took in attempts before this one, and what this one takes.

    Args:
        before: what was told of the attempts before; None: there was none.
    """

    def __init__(self, allowed: BudgetSettings, before: Cost | None, meter: Meter) -> None:
        self.meter = meter
        hours = {"wall": allowed.wall_hours, "cpu": allowed.cpu_hours, "gpu": allowed.gpu_hours}
        self._allowed = {what: 3600 * most for what, most in hours.items() if most}  # seconds
        self._before = before or Cost(0.0, 0.0, 0.0)
        self._next_look = 0.0
        self._spent: str | None = None  # the first of them that was

    def is_spent(self) -> bool:
        """Is asked before every step, so it looks only when the budget can be spent at the soonest."""
        if self._spent or not self._allowed or time.monotonic() < self._next_look:
            return self._spent is not None
        now, cores = self._taken(self.meter.spent()), os.cpu_count() or 1
        left = {what: most - now[what] for what, most in self._allowed.items()}
        self._spent = next((what for what, seconds in left.items() if seconds <= 0), None)
        soonest = min(seconds / (cores if what == "cpu" else 1) for what, seconds in left.items())
        self._next_look = time.monotonic() + max(soonest, _PAUSE)
        return self._spent is not None

    def require_some(self, step: int, total: int) -> None:
        """Refuse to begin with what would be gone before it has led anywhere.

        Raises:
            BudgetSpent: nothing, or nearly nothing, is left; `step` of `total` are done.
        """
        if step >= total:
            return  # what was made is still to be written down
        taken = self._taken()
        for what, most in self._allowed.items():
            if taken[what] and most - taken[what] <= min(_LITTLE * most, _MINUTE):
                raise BudgetSpent(self._words("not continued", what, taken[what], step, total), step=step)

    def stopped(self, step: int, total: int, *, kept: int | None = None) -> TrainingStopped:
        """Why it has stopped after `step` of `total`; `kept` is the step it continues at, where that is another."""
        if self._spent is None:
            at = f"step {step:,} of {total:,}" if total else f"step {step:,}"
            return TrainingStopped(f"stopped at {at}: {_continues(kept)}")
        taken = self._taken(self.meter.spent())[self._spent]
        return BudgetSpent(self._words("stopped", self._spent, taken, step, total, kept=kept), step=step)

    def _taken(self, now: Cost | None = None) -> dict[str, float]:
        """Seconds of each kind, over all attempts, `now` this one's."""
        costs = [self._before, now] if now else [self._before]
        return {what: sum(getattr(cost, what) for cost in costs) for what in self._allowed}

    def _words(self, how: str, what: str, taken: float, step: int, total: int, *, kept: int | None = None) -> str:
        most = self._allowed[what]
        # What the rest takes at this pace, and a tenth more; of what has not begun to move nobody knows.
        enough = 1.1 * taken * total / step if step else 2 * max(taken, most)
        setting, hours = f"budget.{what}_hours", max(0.01, float(f"{enough / 3600:.2g}"))
        return (
            f"{how} at step {step:,} of {total:,}, for its budget is spent: it took {spoken(what, taken)}, and "
            f"{setting}={most / 3600:g} allows {spoken(what, most)}; "
            f"{'its checkpoint is kept: ' if kept is None else ''}"
            f"`ratchet set {setting}={hours:g}` (or 0: no limit; if the command sets it, change it there), and "
            f"{_continues(kept)}"
        )


def _continues(kept: int | None) -> str:
    """Where the same command continues."""
    if kept is None:
        return "the same command continues there"
    where = f"at step {kept:,}, its newest checkpoint" if kept else "from the beginning, because there is no checkpoint"
    return f"the checkpoint of this step could not be written, so the same command continues {where}"


@contextlib.contextmanager
def on_request() -> Iterator[Callable[[], bool]]:
    """A question that turns to yes when SIGTERM or Ctrl-C comes; in a thread, where no handler can live, it stays no.

    A second Ctrl-C does what it does anywhere: it ends the process at once.
    """
    asked = threading.Event()
    before: dict[signal.Signals, Any] = {}

    def note(number: int, _frame: FrameType | None) -> None:
        asked.set()
        signal.signal(number, before[signal.Signals(number)])

    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return
    for one in (signal.SIGTERM, signal.SIGINT):
        before[one] = signal.signal(one, note)
    try:
        yield asked.is_set
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
