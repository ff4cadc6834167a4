"""The next act of a worker, and the end of a trial."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from ratchet.search.early_ends import judge
from ratchet.search.finalists import next_seeds, winner
from ratchet.search.records import Curve, Study, Trial
from ratchet.search.sampling import suggest
from ratchet.search.store import LeaseLost, StudyStore
from ratchet.settings.model import Params
from ratchet.settings.search_space import parse_space

__all__ = ["Decision", "Progress", "Scheduler", "release"]

Decision = Literal["continue", "end", "leave"]
"""Next act of a running trial: train on, end early, or stop because the search stops."""
_PRUNED = "pruned after"  # begin of the reason of a trial that has ended early


@dataclass(frozen=True)
class Progress:
    """Progress of a trial over all its attempts, as in `Trial`."""

    curve: Curve = ()
    steps: int = 0
    cpu: float = 0.0
    run_id: str = ""
    spans: tuple[tuple[float, float], ...] = ()

    @property
    def epochs(self) -> int:
        """Number of epochs of the curve."""
        return self.curve[-1][0] if self.curve else 0


class Scheduler:
    """The study as one worker sees it.

    Args:
        params: the settings outside the space.
        key_of: returns the key of the settings of a trial: (values, seed) -> key. It may raise TrainingError.
        owner: name of this worker; two processes never have the same.
    """

    def __init__(
        self, store: StudyStore, params: Params, key_of: Callable[[Mapping[str, Any], int | None], str], *, owner: str
    ) -> None:
        self.store, self.params, self.owner = store, params, owner
        self.lease = params.search.lease
        self._key_of, self._space = key_of, parse_space(params)
        self._signs: dict[int, tuple[tuple[object, ...], float]] = {}  # by trial: its latest sign, and when it was new

    def next(self) -> Trial | Literal["wait"] | None:
        """Take the next trial. "wait": other workers have what is left. None: the study has ended.

        First comes a trial that has lost its worker, then a new one, then other seeds of the best trials.
        """
        with self.store.lock():
            study = self.store.require()
            if study.stop or study.state == "ended":
                return None
            for trial in study.trials:
                if trial.state == "running" and self._is_silent(trial):
                    _lose(self.store, study, trial)
            study = self.store.require()
            if spent := _spent(study):
                self._end(study, spent)
                return None
            chosen = next((trial for trial in study.trials if trial.state == "waiting"), None)
            if chosen is None and len(study.searched) < study.search.trials and not study.reason:
                chosen = self._new(study)
                study = study if chosen else self.store.require()
            if chosen is None and any(trial.state == "running" for trial in study.searched):
                return "wait"  # the finalists are not known yet
            chosen = chosen or self._seed(study)
            if chosen is None and any(trial.state == "running" for trial in study.trials):
                return "wait"
            if chosen is None:
                self._end(study, study.reason)
                return None
            # In this order a process that is killed here leaves a trial that others take sooner or later.
            self.store.note(chosen.number, owner=self.owner, beat=time.time())
            self.store.move(chosen.number, "running")
            return replace(chosen, state="running", owner=self.owner)

    def report(self, number: int, progress: Progress) -> Decision:
        """Record how far a running trial is, and decide whether it goes on.

        Raises:
            LeaseLost: another worker has it.
        """
        if _is_pruned(self._advance(number, progress, again=True)):
            return "end"
        study = self.store.require()
        return "leave" if study.stop or study.state == "ended" or _spent(study) else "continue"

    def finish(self, number: int, progress: Progress, objectives: tuple[float, ...], *, constant: str = "") -> None:
        """Record the end of a complete trial. `constant` is as in `Trial`."""
        if not all(map(math.isfinite, objectives)):
            self.fail(number, progress, f"its objectives are not finite: {', '.join(map(str, objectives))}")
            return
        with self.store.lock():
            if not self._pruned(number, progress):
                self.store.note(number, constant=constant)
                self.store.move(number, "complete", objectives)

    def fail(self, number: int, progress: Progress, reason: str) -> None:
        """Record that a trial cannot be trained."""
        with self.store.lock():
            if not self._pruned(number, progress):
                self.store.note(number, reason=reason)
                self.store.move(number, "failed")

    def leave(self, number: int, progress: Progress) -> bool:
        """Stop training a trial. Return True if its pruner has ended it; else another worker continues it."""
        with self.store.lock():
            if self._pruned(number, progress):
                return True
            self.store.note(number, owner="")
            self.store.move(number, "waiting")
        return False

    def beat(self, number: int) -> bool:
        """Give a sign of this worker; return False if another one has the trial."""
        try:
            self._own(number)
            self.store.note(number, beat=time.time())
        except LeaseLost:
            return False
        return True

    def _own(self, number: int) -> Trial:
        """Return a trial of this worker."""
        trial = self.store.trial(number)
        if trial.owner != self.owner or trial.state != "running":
            raise LeaseLost
        return trial

    def _advance(self, number: int, progress: Progress, *, again: bool = False) -> Trial:
        """Record the progress of a trial of this worker and, as its reason, that its pruner ends it.

        The pruner judges each new epoch in turn: the storage may not have answered after some of them, and the trial
        ends where it would have ended. Without a new one it judges the last `again`: the worker before may have been
        killed before it recorded the verdict. At the end of a trial it does not, since by now others are better.
        """
        trial = self._own(number)
        curve = progress.curve or trial.curve
        recorded = sum(epoch <= trial.epochs for epoch, _ in curve)
        ends = range(recorded + 1, len(curve) + 1) or range(recorded, recorded + 1)
        for end in ends if not _is_pruned(trial) else ():
            content = asdict(replace(progress, run_id=progress.run_id or trial.run_id, curve=curve[:end]))
            new = tuple(point for point in content.pop("curve") if point not in trial.curve)
            self.store.note(number, curve=new, progress=content)
            trial = replace(trial, **content, curve=curve[:end])
            if end == recorded and not again:
                break
            is_bad, marks = judge(self.store.require(), trial, self._space)
            if is_bad:
                reason = f"{_PRUNED} {trial.epochs}"
                self.store.note(number, reason=reason)
                return replace(trial, reason=reason)
            self.store.note(number, marks=marks)
            trial = replace(trial, marks={**trial.marks, **marks})
        return trial

    def _pruned(self, number: int, progress: Progress) -> bool:
        """Record the progress, and the end of the trial if its pruner ends it; return whether it does."""
        trial = self._advance(number, progress)
        if is_pruned := _is_pruned(trial):
            _, marks = judge(self.store.require(), trial, self._space)
            self.store.note(number, marks=marks)
            self.store.move(number, "pruned", [trial.curve[-1][1]])
        return is_pruned

    def _is_silent(self, trial: Trial) -> bool:
        """Return whether a worker gave no sign for a lease, while this one watched. Clocks differ and are set."""
        sign, now = (trial.owner, trial.beat, trial.epochs), time.monotonic()
        if self._signs.get(trial.number, ((), 0.0))[0] != sign:
            self._signs[trial.number] = sign, now
        return now - self._signs[trial.number][1] > self.lease

    def _new(self, study: Study) -> Trial | None:
        """Add a trial with settings that no trial has; None: there are none left."""
        suggestion = suggest(study, self._space, self.params, self._key_of)
        if suggestion is None:
            self.store.save(reason="every choice of the space has been tried")
            return None
        values, key = suggestion
        return self.store.add(Trial(len(study.trials), key, values), self._space)

    def _seed(self, study: Study) -> Trial | None:
        """Add the next repetition of a finalist with another seed."""
        keys = {trial.key for trial in study.trials}
        for finalist, seed in next_seeds(study):
            key = self._key_of(finalist.values, seed)
            if key not in keys:
                repetition = Trial(len(study.trials), key, finalist.values, seed_of=finalist.number, seed=seed)
                return self.store.add(repetition, self._space)
        return None

    def _end(self, study: Study, reason: str) -> None:
        """End the study, and name its winner."""
        best = winner(study)
        self.store.save(winner=None if best is None else best.trial.number, reason=reason, state="ended")


def release(store: StudyStore, owner: str) -> int:
    """Let others continue the trials of a worker that has ended. Return how many it had."""
    with store.lock():
        study = store.require()
        held = [trial for trial in study.trials if trial.state == "running" and trial.owner == owner]
        for trial in held:
            _lose(store, study, trial)
    return len(held)


def _lose(store: StudyStore, study: Study, trial: Trial) -> None:
    """Record that the worker of a trial is lost. After too many times the trial itself is the probable cause."""
    losses = trial.losses + 1
    if losses < study.search.max_losses:
        store.note(trial.number, losses=losses, owner="")
        store.move(trial.number, "waiting")
        return
    reason = f"its worker was lost {losses} times (search.max_losses); one cause is that its memory did not suffice"
    store.note(trial.number, losses=losses, owner="", reason=reason)
    store.move(trial.number, "failed")


def _is_pruned(trial: Trial) -> bool:
    return trial.reason.startswith(_PRUNED)


def _spent(study: Study) -> str:
    """Return which limit of the budget is reached; empty: none."""
    search = study.search
    if search.hours and study.active >= 3600 * search.hours:
        return f"search.hours: the budget of {search.hours:g} hours is used up"
    if search.cpu_hours and study.cpu_hours >= search.cpu_hours:
        return f"search.cpu_hours: the budget of {search.cpu_hours:g} hours of one core is used up"
    return ""
