"""Rules about when to train again, replayed over the periods of a history: simulated or recorded.

A model has the number of the period at whose end it was trained. It answers from the next period on.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ratchet.monitoring.rule import RULE, SEASONS, DriftRule
from ratchet.monitoring.sketch import Reference, WindowSketch
from ratchet.monitoring.watch import WatchedVersion, advanced
from ratchet.problems.named_answers import NamedAnswers
from ratchet.typed_json import STRICT

__all__ = [
    "CALENDAR",
    "Answered",
    "Floats",
    "History",
    "Replay",
    "Trigger",
    "TriggerComparison",
    "compare",
    "losses",
    "merged",
    "triggers_of",
]

_PERMUTATIONS = 40  # of good windows, for the chance of a false alarm
CALENDAR = (2, 4)
"""Periods between two trainings of the calendars that are compared."""
_SECONDS = 3600
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Answered:
    """Answers of one model in one period.

    Attributes:
        rows: with labels.
        loss: sum over them: 1 for a wrong answer, or the absolute error.
        windows: in the order of their starts.
    """

    rows: int
    loss: float
    windows: list[WindowSketch] = field(default_factory=list)

    __pydantic_config__ = STRICT


class History(ABC):
    """Periods with the answers of models. The model 0 answers in period 1.

    Attributes:
        periods: number of the last one.
    """

    periods: int

    @abstractmethod
    def answered(self, model: int, period: int) -> Answered:
        """Return the answers of a model in a later period."""

    @abstractmethod
    def reference(self, model: int) -> Reference | None:
        """Return the bins with which a model is watched; None: its first windows are the reference."""

    @abstractmethod
    def champion_after(self, trigger: str, champion: int, period: int) -> int:
        """Train at the end of a period, and return the champion after the gate."""

    @abstractmethod
    def cpu_seconds(self, model: int) -> float:
        """Return the processor time of a training."""

    def ends(self, period: int) -> bool:
        """Return whether the record itself has another version after a period, whatever a rule says."""
        return False


@dataclass(frozen=True)
class Trigger:
    """A rule about when to train again.

    Attributes:
        every: periods between two trainings; 0: there is no calendar.
        rule: of drift; None: drift is not watched.
    """

    name: str
    every: int = 0
    rule: DriftRule | None = None

    def watched(
        self, history: History, model: int, before: WatchedVersion, new: Sequence[WindowSketch]
    ) -> WatchedVersion:
        """Return what is known of a model after new windows."""
        if self.rule is None or not new:
            return before
        windows = merged(new, self.rule.window)
        return advanced(self.rule, new[0].version, before, windows, lambda bins: history.reference(model))

    def is_due(self, periods: int, watched: WatchedVersion) -> bool:
        """Return whether to train now, so many periods after the last training."""
        return watched.verdict.alarm is not None or bool(self.every and periods >= self.every)


@dataclass(frozen=True)
class Step:
    """One period: the model that answered, and the champion after a training at its end (None: there was none)."""

    model: int
    rows: int
    loss: float
    champion: int | None = None

    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class Replay:
    """A history under one trigger.

    Attributes:
        useless: trainings that did not lower the loss of the next period, those that the gate refused included. Periods
            without labels do not count, here and in delay.
        delay: periods in which a training would have lowered the loss of the next one, before each training that did.
        cpu_hours: of all trainings.
        false_alarm: share of permutations of good windows with an alarm; None: no drift is watched, or too few windows.
        cost: loss and price of the trainings, in the first and the second half, per row.
    """

    trigger: str
    steps: list[Step]
    useless: int
    delay: float | None
    cpu_hours: float
    false_alarm: float | None
    cost: list[float]

    __pydantic_config__ = STRICT

    @property
    def trainings(self) -> int:
        return sum(step.champion is not None for step in self.steps)

    def loss(self, begin: int, end: int | None = None) -> float:
        """Return the loss per row in a range of its steps."""
        return sum(step.loss for step in self.steps[begin:end]) / max(
            1, sum(step.rows for step in self.steps[begin:end])
        )


@dataclass(frozen=True)
class TriggerComparison:
    """All triggers over one history.

    Attributes:
        price: loss that one training must save to pay.
        half: number of periods in the first half.
        best: trigger with the least cost in the first half.
        optimum: least possible cost per row in the second half, of all choices of trainings and without a gate.
    """

    price: float
    half: int
    best: str
    optimum: float
    replays: list[Replay]

    __pydantic_config__ = STRICT

    @property
    def recommended(self) -> Replay:
        return next(each for each in self.replays if each.trigger == self.best)


def losses(answers: NamedAnswers | type[NamedAnswers], predictions: Floats, labels: Floats) -> Floats:
    """Return the loss of each row: 1 for a wrong answer, else 0; of numbers the mean absolute error."""
    right = answers.right_rows(predictions, labels)
    loss: Floats = np.abs(predictions - labels).mean(axis=1) if right is None else 1.0 - right
    return loss


def triggers_of(rule: DriftRule, calendar: Sequence[int], *, period: int = 0) -> list[Trigger]:
    """Return the triggers that are compared: of drift around a rule, of a calendar, always and never.

    A window of twice the length is among them if a season and a period have whole ones. `period`: seconds; 0: periods
    of the history begin and end with such windows.
    """
    rules = [replace(rule, alpha=alpha) for alpha in sorted({rule.alpha, 0.01, 0.2})]
    if SEASONS[rule.season] % (2 * rule.window) == period % (2 * rule.window) == 0:
        rules.append(replace(rule, window=2 * rule.window))
    drift = [Trigger(f"{RULE}, alpha {each.alpha:g}, window {each.window // 60} min", rule=each) for each in rules]
    every = [Trigger(f"every {number} periods", every=number) for number in calendar]
    return [Trigger("never"), *drift, *every, Trigger("always", every=1)]


def compare(history: History, triggers: Sequence[Trigger], *, price: float, seed: int) -> TriggerComparison:
    """Replay triggers, choose the best by the first half, and find what was possible in the second.

    Args:
        price: of a training, as a share of the loss of a period without trainings.
        seed: of the permutations.
    """
    half = history.periods // 2
    steps = {trigger: _replayed(trigger, history) for trigger in triggers}
    first = [history.answered(0, period) for period in range(1, half + 1)]
    amount = price * sum(each.loss for each in first) / max(1, half)
    replays = [_judged(trigger, each, history, half, amount, seed) for trigger, each in steps.items()]
    best = min(replays, key=lambda replay: (replay.cost[0], replay.trainings))
    return TriggerComparison(amount, half, best.trigger, _optimum(history, half, amount), replays)


def _replayed(trigger: Trigger, history: History) -> list[Step]:
    champion = last = 0
    watched, steps = WatchedVersion(), list[Step]()
    for period in range(1, history.periods + 1):
        answered = history.answered(champion, period)
        watched = trigger.watched(history, champion, watched, answered.windows)
        after = None
        if period < history.periods and trigger.is_due(period - last, watched):
            after = history.champion_after(trigger.name, champion, period)
        steps.append(Step(champion, answered.rows, answered.loss, after))
        if after is not None or history.ends(period):
            last, watched = period, WatchedVersion()
        champion = period if history.ends(period) else champion if after is None else after
    return steps


def _judged(trigger: Trigger, steps: list[Step], history: History, half: int, price: float, seed: int) -> Replay:
    useless, waited, delays, cpu = 0, 0, list[int](), 0.0
    for period, step in enumerate(steps[:-1], start=1):
        after = history.answered(step.model, period + 1)
        kept, has_labels = after.loss, after.rows > 0
        pays = has_labels and history.answered(period, period + 1).loss < kept
        if step.champion is None:
            waited += pays
            continue
        cpu += history.cpu_seconds(period)
        if history.answered(step.champion, period + 1).loss < kept:
            delays.append(waited)
        else:
            useless += has_labels
        waited = 0
    parts = (steps[:half], steps[half:])
    cost = [_cost(part, price) for part in parts]
    false = _false_alarm(trigger, history, price, seed)
    return Replay(trigger.name, steps, useless, float(np.mean(delays)) if delays else None, cpu / _SECONDS, false, cost)


def _cost(steps: Sequence[Step], price: float) -> float:
    """Return loss and price of the trainings, per row."""
    trainings = sum(step.champion is not None for step in steps)
    return (sum(step.loss for step in steps) + price * trainings) / max(1, sum(step.rows for step in steps))


def _optimum(history: History, half: int, price: float) -> float:
    """Return the least cost per row of the periods after `half`, from any model that could be there then."""
    last, rows = history.periods, 0
    after = dict.fromkeys(range(last), 0.0)  # cost of the later periods, by the model that answers them
    for period in range(last, half, -1):
        rows += history.answered(period - 1, period).rows
        if period < last and history.ends(period):
            after = dict.fromkeys(range(period), after[period])
        elif period < last:
            after = {model: min(after[model], price + after[period]) for model in range(period)}
        after = {model: history.answered(model, period).loss + after[model] for model in range(period)}
    return min(after[model] for model in range(half + 1)) / max(1, rows)


def _false_alarm(trigger: Trigger, history: History, price: float, seed: int) -> float | None:
    """Return the share of permutations with an alarm, of windows before a training would have paid.

    Windows change places with those of the same time of the season.
    """
    if trigger.rule is None:
        return None
    windows: list[WindowSketch] = []
    for period in range(1, history.periods):
        windows += history.answered(0, period).windows
        gain = history.answered(0, period + 1).loss - history.answered(period, period + 1).loss
        if gain > price or history.ends(period):
            break
    windows = merged(windows, trigger.rule.window)
    if len(windows) < 2 * trigger.rule.good_windows * trigger.rule.classes:
        return None
    random, classes = np.random.default_rng(seed), [trigger.rule.season_class(each.start) for each in windows]
    alarms = 0
    for _ in range(_PERMUTATIONS):
        places = np.arange(len(windows))
        for season_class in set(classes):
            own = np.flatnonzero(np.array(classes) == season_class)
            places[own] = random.permutation(own)
        moved = [replace(windows[place], start=at.start) for place, at in zip(places, windows, strict=True)]
        alarms += trigger.watched(history, 0, WatchedVersion(), moved).verdict.alarm is not None
    return alarms / _PERMUTATIONS


def merged(windows: Sequence[WindowSketch], length: int) -> list[WindowSketch]:
    """Return windows of a length in seconds, which is a multiple of theirs."""
    longer: dict[int, WindowSketch] = {}
    for window in windows:
        start = window.start // length * length
        longer[start] = longer.get(start, WindowSketch(window.version, start)) + window
    return list(longer.values())
