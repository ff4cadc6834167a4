"""Rules by which trials pause and end early.

Successive halving (Li et al., A System for Massively Parallel Hyperparameter Tuning, 2020) pauses a trial at each
rung. As soon as it is among the best 1 / reduction of those that have reached the rung, it continues from its
checkpoint. So a trial that is paused is not lost, and no worker waits. Hyperband (Li et al., 2018) runs several of
these, which begin at different rungs. The other pruners are Optuna's; they decide after each epoch, or after each fold.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ratchet.search.records import Study, Trial, best_so_far

if TYPE_CHECKING:
    from ratchet.search.sampling import View

__all__ = ["bracket_of", "finish_next", "is_pruned", "promotable", "rungs", "target"]

_HALVING = ("successive-halving", "hyperband")
_STARTUP = 5  # complete trials before the median pruner ends one


def rungs(study: Study, bracket: int = 0) -> list[int]:
    """Return the epochs at which trials of a bracket pause, in rising order; the end is not among them.

    Counted from the end: 30 epochs and a reduction of 3 give 1, 3 and 10. Bracket 1 begins one rung later.
    """
    places: list[int] = []
    while study.pruner in _HALVING:
        epoch = round(study.epochs / study.search.reduction ** (len(places) + 1))
        if epoch < study.search.min_epochs or epoch in (0, *places[-1:]):
            break
        places.append(epoch)
    return places[::-1][bracket:]


def target(study: Study, trial: Trial) -> int:
    """Return the number of epochs after which the trial pauses next, or ends."""
    places = rungs(study, trial.bracket)
    return places[trial.rung] if trial.seed_of is None and trial.rung < len(places) else study.epochs


def bracket_of(study: Study, number: int) -> int:
    """Return the bracket of a new trial. Hyperband gives each bracket about the same number of epochs."""
    if study.pruner != "hyperband":
        return 0
    most = len(rungs(study)) + 1
    shares = [_trials(most - 1 - bracket, study.search.reduction, most) for bracket in range(most)]
    place = (number * 0.6180339887498949) % 1.0 * sum(shares)  # spreads the brackets evenly over the numbers
    for bracket, share in enumerate(shares):
        place -= share
        if place < 0:
            return bracket
    return most - 1


def promotable(study: Study) -> Trial | None:
    """Return the paused trial that continues next: the best one that its rung lets pass, at the highest rung first."""
    passing_trials: list[tuple[int, float, int, Trial]] = []
    sign = -1.0 if study.maximize[0] else 1.0
    for bracket in {trial.bracket for trial in study.searched}:
        among = [trial for trial in study.searched if trial.bracket == bracket]
        for rung, epoch in enumerate(rungs(study, bracket)):
            reached = [(sign * value, trial) for trial in among if (value := _value_at(trial, epoch)) is not None]
            passing = sorted(reached, key=lambda each: (each[0], each[1].number))[
                : len(reached) // study.search.reduction
            ]
            for value, trial in passing:
                if trial.state == "paused" and trial.rung == rung:
                    passing_trials.append((-epoch, value, trial.number, trial))
    return min(passing_trials)[-1] if passing_trials else None


def is_pruned(study: Study, trial: Trial, view: "View") -> bool:
    """Return whether a running trial ends now, by the median or Wilcoxon pruner."""
    if study.pruner not in ("median", "wilcoxon") or trial.seed_of is not None or not trial.curve:
        return False
    if trial.number == 0 and study.search.seeds > 1:  # the present settings are a finalist whatever they reach
        return False
    from optuna import pruners

    from ratchet.search.sampling import frozen, quiet

    pruner: pruners.BasePruner
    others = [each for each in study.searched if each.number != trial.number]
    with quiet():  # the Wilcoxon pruner is experimental in Optuna
        if study.pruner == "median":
            pruner = pruners.MedianPruner(n_startup_trials=_STARTUP, n_warmup_steps=study.search.min_epochs - 1)
        else:
            pruner = pruners.WilcoxonPruner()
        return bool(pruner.prune(view.update(_only(study, others)), frozen(trial, view.space, several=False)))


def finish_next(study: Study) -> Trial | None:
    """Return a paused trial that continues although its rung does not let it pass.

    Too few finalists are complete, or it has the present settings, which are a finalist whatever they reach.
    """
    present = next((trial for trial in study.searched if trial.number == 0), None)
    if study.search.seeds > 1 and present is not None and present.state == "paused":
        return present
    needed = min(study.search.finalists, len(study.searched)) if study.search.seeds > 1 else 1
    if sum(trial.state == "complete" for trial in study.searched) >= needed:
        return None
    paused = [trial for trial in study.searched if trial.state == "paused"]
    sign = -1.0 if study.maximize[0] else 1.0
    return min(paused, key=lambda trial: (-trial.epochs, sign * (trial.value or 0.0), trial.number), default=None)


def _only(study: Study, trials: Sequence[Trial]) -> Study:
    return replace(study, trials=tuple(trials))


def _value_at(trial: Trial, epoch: int) -> float | None:
    """Return the trial's value at a rung; None: it has not got there. One that has stopped by itself counts on."""
    if trial.state == "failed" or (trial.epochs < epoch and trial.state != "complete"):
        return None
    return best_so_far(trial.curve, epoch)


def _trials(rungs_above: int, reduction: int, brackets: int) -> float:
    """Return the number of trials that begin in a bracket, as a share (Hyperband, algorithm 1)."""
    return float(math.ceil(brackets * reduction**rungs_above / (rungs_above + 1)))
