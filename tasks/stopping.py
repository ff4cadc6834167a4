"""Reasons to stop a training before its last step: a signal, or a budget that is used up."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from ratchet.cost import CostMeter, TrainingCost, time_text
from ratchet.errors import TrainingError
from ratchet.settings.model import BudgetSettings

__all__ = ["Budget", "BudgetSpent", "TrainingStopped", "on_request"]

NO_RESULT = "it stops and continues a training, which ends with the same weights"

_MIN_SHARE, _MIN_SECONDS = 0.01, 60.0  # of a budget: with less than the smaller of both, do not start
_CHECK_SECONDS = 0.05  # at least, between two measurements of the cost: each takes milliseconds


class TrainingStopped(TrainingError):
    """Stopped by SIGTERM or Ctrl-C, with a checkpoint."""


class BudgetSpent(TrainingStopped):
    """Stopped because the budget is used up, with a checkpoint of `step`."""

    def __init__(self, message: str, *, step: int) -> None:
        super().__init__(message)
        self.step = step


class Budget:
    """Budget of one training: the limits, the cost of earlier attempts, and the cost of this one.

    Args:
        allowed: the limits, in hours.
        before: recorded cost of the earlier attempts; None: there was none.
    """

    def __init__(self, allowed: BudgetSettings, before: TrainingCost | None, meter: CostMeter) -> None:
        self.meter = meter
        hours = {"wall": allowed.wall_hours, "cpu": allowed.cpu_hours, "gpu": allowed.gpu_hours}
        self._allowed = {kind: 3600 * most for kind, most in hours.items() if most}  # seconds
        self._before = before or TrainingCost(0.0, 0.0, 0.0)
        self._next_check = 0.0
        self._spent: str | None = None  # the first kind that was used up

    def is_spent(self) -> bool:
        """Return whether a limit is reached. Cheap enough for every step: it measures only when that is possible."""
        if self._spent or not self._allowed or time.monotonic() < self._next_check:
            return self._spent is not None
        now, cores = self._taken(self.meter.spent()), os.cpu_count() or 1
        left = {kind: most - now[kind] for kind, most in self._allowed.items()}
        self._spent = next((kind for kind, seconds in left.items() if seconds <= 0), None)
        soonest = min(seconds / (cores if kind == "cpu" else 1) for kind, seconds in left.items())
        self._next_check = time.monotonic() + max(soonest, _CHECK_SECONDS)
        return self._spent is not None

    def require_some(self, step: int, total: int) -> None:
        """Refuse to start with a budget that ends before any progress. `step` of `total` are done.

        Raises:
            BudgetSpent: nothing, or nearly nothing, is left.
        """
        if step >= total:
            return  # only the outputs remain to be written
        taken = self._taken()
        for kind, most in self._allowed.items():
            if taken[kind] and most - taken[kind] <= min(_MIN_SHARE * most, _MIN_SECONDS):
                raise BudgetSpent(self._message("not continued", kind, taken[kind], step, total), step=step)

    def stopped(self, step: int, total: int, *, saved_step: int | None = None) -> TrainingStopped:
        """Return the error for a stop after `step` of `total`.

        Args:
            kept: the step of the newest checkpoint, if the one of `step` could not be written.
        """
        if self._spent is None:
            at = f"step {step:,} of {total:,}" if total else f"step {step:,}"
            return TrainingStopped(f"stopped at {at}: {_continues(saved_step)}")
        taken = self._taken(self.meter.spent())[self._spent]
        return BudgetSpent(self._message("stopped", self._spent, taken, step, total, saved_step=saved_step), step=step)

    def _taken(self, now: TrainingCost | None = None) -> dict[str, float]:
        """Return the seconds of each kind over all attempts; `now` is the cost of this one."""
        costs = [self._before, now] if now else [self._before]
        return {kind: sum(getattr(cost, kind) for cost in costs) for kind in self._allowed}

    def _message(
        self, how: str, kind: str, taken: float, step: int, total: int, *, saved_step: int | None = None
    ) -> str:
        most = self._allowed[kind]
        # The rest at this speed and 10 % more; the double if there was no step to measure the speed.
        enough = 1.1 * taken * total / step if step else 2 * max(taken, most)
        setting, hours = f"budget.{kind}_hours", max(0.01, float(f"{enough / 3600:.2g}"))
        return (
            f"{how} at step {step:,} of {total:,}: the budget is used up ({time_text(kind, taken)} of "
            f"{time_text(kind, most)}, {setting}={most / 3600:g}). {'Checkpoint saved. ' if saved_step is None else ''}"
            f"Fix: `ratchet set {setting}={hours:g}` (0: no limit; if the command sets it, change it there), then "
            f"{_continues(saved_step)}"
        )


def _continues(saved_step: int | None) -> str:
    """Say at which step the same command continues."""
    if saved_step is None:
        return "the same command continues there"
    newest = f"at step {saved_step:,}, its newest checkpoint"
    where = newest if saved_step else "from the beginning, because there is no checkpoint"
    return f"the checkpoint of this step could not be written, so the same command continues {where}"


@contextlib.contextmanager
def on_request() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns True after SIGTERM or Ctrl-C. A second signal has its usual effect.

    In a thread other than the main one it stays False, because signal handlers cannot be set there.
    """
    requested = threading.Event()
    before: dict[signal.Signals, Any] = {}

    def note(number: int, _frame: FrameType | None) -> None:
        requested.set()
        signal.signal(number, before[signal.Signals(number)])

    if threading.current_thread() is not threading.main_thread():
        yield requested.is_set
        return
    for number in (signal.SIGTERM, signal.SIGINT):
        before[number] = signal.signal(number, note)
    try:
        yield requested.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
