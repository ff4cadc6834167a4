"""A study and its trials, as frozen dataclasses that pages, tables and the scheduler read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from ratchet.settings.search_settings import SearchSettings

__all__ = ["OPEN", "Curve", "State", "Study", "Trial"]

State = Literal["running", "waiting", "complete", "pruned", "failed"]
"""State of a trial.

running: a worker has it. waiting: its worker has left it or is lost, and the next one continues it. The others are
ends: with all its epochs, with fewer, or with an error.
"""
OPEN: tuple[State, ...] = ("running", "waiting")
Curve = tuple[tuple[int, float], ...]
"""(epoch, best value of the first objective so far) after each epoch."""


@dataclass(frozen=True)
class Trial:
    """One choice of settings and what became of it.

    Attributes:
        number: from 0, in the order in which they were chosen.
        key: digest of everything that decides its weights, which also names its checkpoints.
        values: settings of the space by dotted key; those whose `when` does not hold are absent.
        seed_of: number of the finalist that it repeats with another seed; None for a trial of the search itself.
        marks: what Optuna's pruner has noted about it.
        objectives: values at the end, in the order of the study's objectives.
        constant: the answer that it gives to nearly all validation samples; empty: it gives several.
        reason: why it failed, ended early or was lost.
        owner: the worker that has it.
        beat: latest sign of that worker, seconds since 1970 by the clock of its machine.
        losses: how often its worker was lost.
        steps: optimizer steps, those that were lost and repeated included.
        cpu: seconds over all attempts.
        spans: begin of each attempt, seconds since 1970, and the begin plus its seconds by a monotonic clock.
    """

    number: int
    key: str
    values: Mapping[str, Any]
    state: State = "running"
    seed_of: int | None = None
    seed: int | None = None
    marks: Mapping[str, Any] = field(default_factory=dict)
    curve: Curve = ()
    objectives: tuple[float, ...] = ()
    constant: str = ""
    reason: str = ""
    owner: str = ""
    beat: float = 0.0
    losses: int = 0
    steps: int = 0
    cpu: float = 0.0
    spans: tuple[tuple[float, float], ...] = ()
    run_id: str = ""

    @property
    def epochs(self) -> int:
        """Number of epochs that it has completed."""
        return self.curve[-1][0] if self.curve else 0

    @property
    def value(self) -> float | None:
        """First objective: at the end, or so far. None: nothing is known yet, or it failed."""
        if self.state == "failed":
            return None
        if self.objectives:
            return self.objectives[0]
        return self.curve[-1][1] if self.curve else None


@dataclass(frozen=True)
class Study:
    """A search: what it tries, and everything that decides its results.

    Attributes:
        objectives: metric names, `maximize` whether larger is better for each of them.
        search: the settings as the search began; budget and finalists are those of the latest command.
        params: all other settings as the search began (`Params` as JSON).
        parts: what decides every trial, by kind and name; a study is only continued if it is equal.
        state: running, or ended with the reason in `reason`.
        winner: number of the trial that won; None: there is none yet.
    """

    name: str
    objectives: tuple[str, ...]
    maximize: tuple[bool, ...]
    search: SearchSettings
    params: Mapping[str, Any]
    parts: Mapping[str, Mapping[str, Any]]
    epochs: int
    state: Literal["running", "ended"] = "running"
    reason: str = ""
    created: float = 0.0
    stop: bool = False
    winner: int | None = None
    run_id: str = ""
    trials: Sequence[Trial] = field(default=())

    @cached_property
    def searched(self) -> list[Trial]:
        """Trials of the search itself, without the other seeds of finalists."""
        return [trial for trial in self.trials if trial.seed_of is None]

    @property
    def pruner(self) -> str:
        """Pruner, after `auto` is decided."""
        if self.search.pruner != "auto":
            return self.search.pruner
        return "none" if len(self.objectives) > 1 else "successive-halving"

    @property
    def cpu_hours(self) -> float:
        """CPU time of all trials."""
        return sum(trial.cpu for trial in self.trials) / 3600

    @property
    def active(self) -> float:
        """Seconds in which at least one worker searched: the union of all spans."""
        seconds, until = 0.0, 0.0
        for began, ended in sorted(span for trial in self.trials for span in trial.spans):
            seconds += max(0.0, ended - max(began, until))
            until = max(until, ended)
        return seconds

    def ranked(self) -> list[Trial]:
        """Trials with a value, the best first: complete ones before those that ended early, by the first objective."""
        sign = -1.0 if self.maximize[0] else 1.0

        def order(trial: Trial) -> tuple[float, ...]:
            is_complete = trial.state == "complete"
            return not is_complete, 0 if is_complete else -trial.epochs, sign * (trial.value or 0.0), trial.number

        return sorted((trial for trial in self.searched if trial.value is not None), key=order)
