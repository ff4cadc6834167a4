"""The next act of a worker, and the end of a trial: transactions on the study."""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from ratchet.search.finalists import next_seeds, winner
from ratchet.search.pruning import bracket_of, finish_next, is_pruned, promotable, target
from ratchet.search.records import Curve, Study, Trial
from ratchet.search.sampling import View
from ratchet.search.store import Change, StudyStore

__all__ = ["Assignment", "Decision", "LeaseLost", "Progress", "Scheduler", "release"]

Decision = Literal["continue", "pause", "end", "leave"]
"""Next act of a running trial: train on, pause at its rung, end early, or stop because the search stops."""


class LeaseLost(Exception):
    """Another worker has taken the trial."""


@dataclass(frozen=True)
class Assignment:
    """A trial for this worker, and the epoch at which it pauses or ends."""

    trial: Trial
    until: int


@dataclass(frozen=True)
class Progress:
    """Progress of a trial over all its attempts: curve, optimizer steps, seconds of CPU and of time, MLflow run."""

    curve: Curve = ()
    steps: int = 0
    cpu: float = 0.0
    wall: float = 0.0
    run_id: str = ""  # MLflow run, as soon as it is known

    def of(self, trial: Trial) -> Trial:
        """Return the trial with this progress."""
        return replace(
            trial, curve=self.curve or trial.curve, steps=self.steps, cpu=self.cpu, wall=self.wall,
            run_id=self.run_id or trial.run_id,
        )  # fmt: skip


class Scheduler:
    """The study as one worker sees it.

    Args:
        store: the study.
        view: for the sampler and Optuna's pruners.
        key_of: returns the key of the settings of a trial: (values, seed) -> key. It may raise TrainingError.
        lease: seconds after which others take a trial of which this worker gives no sign.
        owner: name of this worker; two processes never have the same.
    """

    def __init__(
        self, store: StudyStore, view: View, key_of: Callable[[Mapping[str, Any], int | None], str], *, lease: float,
        owner: str,
    ) -> None:  # fmt: skip
        self.store, self.view, self._key_of, self.lease, self.owner = store, view, key_of, lease, owner

    def next(self) -> Assignment | Literal["wait"] | None:
        """Take the next trial. "wait": other workers have what is left. None: the study has ended.

        First comes a trial that has lost its worker, then one that has earned more epochs, then a new one, then other
        seeds of the best trials.
        """
        with self.store.change() as change:
            study = change.study
            if study.stop or study.state == "ended":
                return None
            _release_expired(change)
            if spent := _spent(change.study):
                self._end(change, spent)
                return None
            waiting = [trial for trial in change.study.trials if trial.state == "waiting"]
            chosen = waiting[0] if waiting else _past_its_rung(promotable(change.study))
            if chosen is None and len(change.study.searched) < study.search.trials and not study.reason:
                chosen = self._new(change)
            if chosen is None and any(trial.state == "running" for trial in change.study.searched):
                return "wait"  # the finalists are not known yet
            if chosen is None:
                chosen = _past_its_rung(finish_next(change.study)) or self._seed(change)
            if chosen is None and any(trial.state == "running" for trial in change.study.trials):
                return "wait"
            if chosen is None:
                self._end(change, "")
                return None
            return self._take(change, chosen)

    def report(self, number: int, progress: Progress) -> Decision:
        """Record how far a running trial is, and decide whether it goes on.

        Raises:
            LeaseLost: another worker has it.
        """
        with self.store.change() as change:
            trial = change.put(progress.of(self._own(change, number)))
            study = change.study
            until = target(study, trial)
            if trial.epochs >= until < study.epochs:
                return "pause"
            if is_pruned(study, trial, self.view):
                return "end"
            return "leave" if study.stop or study.state == "ended" or _spent(study) else "continue"

    def pause(self, number: int, progress: Progress) -> Assignment | None:
        """Leave a trial at its rung. Return it again if it passes at once."""
        with self.store.change() as change:
            trial = progress.of(self._own(change, number))
            change.put(replace(trial, state="paused", owner=""))
            best = promotable(change.study)
            if change.study.stop or _spent(change.study) or best is None or best.number != number:
                return None
            return self._take(change, replace(best, rung=best.rung + 1))

    def finish(self, number: int, progress: Progress, objectives: tuple[float, ...], *, constant: str = "") -> None:
        """Record the end of a complete trial. `constant` is as in `Trial`."""
        self._close(number, progress, "complete", objectives=objectives, constant=constant)

    def end_early(self, number: int, progress: Progress) -> None:
        """Record that the pruner has ended a trial."""
        self._close(number, progress, "pruned", reason=f"pruned after {progress.curve[-1][0]}")

    def fail(self, number: int, progress: Progress, reason: str) -> None:
        """Record that a trial cannot be trained."""
        self._close(number, progress, "failed", reason=reason)

    def leave(self, number: int, progress: Progress) -> None:
        """Give a trial back, because this worker stops; another one continues it at its checkpoint."""
        with self.store.change() as change:
            change.put(replace(progress.of(self._own(change, number)), state="waiting", owner=""))

    def beat(self, number: int) -> bool:
        """Extend the lease; return False if another worker has the trial."""
        return self.store.beat(number, self.owner, lease=self.lease)

    def _close(
        self, number: int, progress: Progress, state: Literal["complete", "pruned", "failed"], *, reason: str = "",
        objectives: tuple[float, ...] = (), constant: str = "",
    ) -> None:  # fmt: skip
        with self.store.change() as change:
            trial = replace(progress.of(self._own(change, number)), state=state, owner="", ended=change.now)
            change.put(replace(trial, reason=reason, objectives=objectives, constant=constant))

    def _own(self, change: Change, number: int) -> Trial:
        trial = next(each for each in change.study.trials if each.number == number)
        if trial.owner != self.owner or trial.state != "running":
            raise LeaseLost
        return trial

    def _take(self, change: Change, trial: Trial) -> Assignment:
        expires = change.now + change.study.search.lease
        began = trial.began or change.now
        taken = change.put(replace(trial, state="running", owner=self.owner, expires=expires, began=began))
        return Assignment(taken, target(change.study, taken))

    def _new(self, change: Change) -> Trial | None:
        """Choose settings that no trial has; None: there are none left."""
        study = change.study
        number = len(study.trials)
        keys = {trial.key for trial in study.trials}
        for attempt in itertools.count():
            values = self.view.suggest(study, number, attempt)
            if values is None:
                break
            if any(dict(trial.values) == values for trial in study.searched):
                continue
            key = self._key_of(values, None)
            if key not in keys:
                return Trial(number, key, values, bracket=bracket_of(study, number), folds=study.search.folds)
        change.save(reason="every choice of the space has been tried")
        return None

    def _seed(self, change: Change) -> Trial | None:
        """Return the next repetition of a finalist with another seed."""
        keys = {trial.key for trial in change.study.trials}
        for finalist, seed in next_seeds(change.study):
            key = self._key_of(finalist.values, seed)
            if key not in keys:
                number = len(change.study.trials)
                return Trial(
                    number, key, finalist.values, seed_of=finalist.number, seed=seed, folds=change.study.search.folds
                )
        return None

    def _end(self, change: Change, reason: str) -> None:
        """End the study, and name its winner. Paused trials stay so: a larger budget may continue them."""
        best = winner(change.study)
        reason = reason or change.study.reason
        change.save(state="ended", reason=reason, winner=None if best is None else best.trial.number)


def release(store: StudyStore, owner: str) -> int:
    """Let others continue the trials of a worker that has ended. Return how many it had."""
    with store.change() as change:
        held = [trial for trial in change.study.trials if trial.state == "running" and trial.owner == owner]
        for trial in held:
            _lose(change, trial)
    return len(held)


def _past_its_rung(trial: Trial | None) -> Trial | None:
    return None if trial is None else replace(trial, rung=trial.rung + 1)


def _release_expired(change: Change) -> None:
    """Let others continue the trials of workers that give no sign any more."""
    for trial in change.study.trials:
        if trial.state == "running" and trial.expires < change.now:
            _lose(change, trial)


def _lose(change: Change, trial: Trial) -> None:
    """Record that the worker of a trial is lost. After too many times the trial itself is the probable cause."""
    losses = trial.losses + 1
    if losses < change.study.search.max_losses:
        change.put(replace(trial, state="waiting", owner="", losses=losses))
        return
    reason = f"its worker was lost {losses} times (search.max_losses); one cause is that its memory did not suffice"
    change.put(replace(trial, state="failed", owner="", losses=losses, reason=reason, ended=change.now))


def _spent(study: Study) -> str:
    """Return which limit of the budget is reached; empty: none."""
    search = study.search
    if search.hours and study.active >= 3600 * search.hours:
        return f"search.hours: the budget of {search.hours:g} hours is used up"
    if search.cpu_hours and study.cpu_hours >= search.cpu_hours:
        return f"search.cpu_hours: the budget of {search.cpu_hours:g} hours of one core is used up"
    return ""
