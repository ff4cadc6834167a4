"""Trials that end early, by Optuna's pruners.

Successive halving (Li et al., A System for Massively Parallel Hyperparameter Tuning, 2020) ends a trial at a rung if it
is not among the best third of those that have reached it. Hyperband (Li et al., 2018) runs several of these, which
begin at different rungs. The median pruner decides after each epoch.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ratchet.search.optuna_view import quiet, view_of
from ratchet.search.records import Study, Trial
from ratchet.settings.search_space import Dimension

if TYPE_CHECKING:
    import optuna

__all__ = ["judge", "rungs"]

_HALVING = ("successive-halving", "hyperband")
_REDUCTION = 3
_STARTUP = 5  # complete trials before the median pruner ends one


def rungs(study: Study) -> list[int]:
    """Return the epochs after which successive halving ends trials, in rising order: 30 epochs give 2, 6 and 18."""
    if study.pruner not in _HALVING or study.epochs < _REDUCTION:
        return []
    count = 1
    while _REDUCTION ** (count + 1) <= study.epochs:
        count += 1
    first = -(-study.epochs // _REDUCTION**count)
    places = [first * _REDUCTION**rung for rung in range(count)]
    return [place for place in places if place < study.epochs]


def judge(study: Study, trial: Trial, space: Sequence[Dimension]) -> tuple[bool, dict[str, Any]]:
    """Return whether a running trial ends early after the last value of its curve, and what its pruner notes about it.

    The same question has the same answer: what is noted must be recorded after it. The first trial has the present
    settings. With several seeds it is a finalist whatever it reaches, so it never ends early.
    """
    pruner = _pruner(study)
    if pruner is None or trial.seed_of is not None or not 0 < trial.epochs < study.epochs:
        return False, {}
    with quiet():
        view = view_of(study, space, [trial if each.number == trial.number else each for each in study.trials])
        is_bad = pruner.prune(view, view.get_trials(deepcopy=False)[trial.number])
        marks = view.get_trials(deepcopy=False)[trial.number].system_attrs
    is_finalist = trial.number == 0 and study.search.seeds > 1
    return is_bad and not is_finalist, {name: value for name, value in marks.items() if name not in trial.marks}


def _pruner(study: Study) -> "optuna.pruners.BasePruner | None":
    from optuna import pruners

    first = next(iter(rungs(study)), None)
    with quiet():
        match study.pruner:
            case "successive-halving" if first:
                return pruners.SuccessiveHalvingPruner(first, reduction_factor=_REDUCTION)
            case "hyperband" if first:
                return pruners.HyperbandPruner(first, max_resource=study.epochs, reduction_factor=_REDUCTION)
            case "median":
                return pruners.MedianPruner(n_startup_trials=_STARTUP)
    return None
