"""Which settings decided how good a trial is: PED-ANOVA (Watanabe, Bansal and Hutter, 2023), by Optuna."""

import math
from dataclasses import replace

from ratchet.search.optuna_view import quiet, view_of
from ratchet.search.records import Study
from ratchet.settings.model import Params
from ratchet.settings.search_space import Dimension, is_inside, parse_space

__all__ = ["dimensions", "importance"]

_SHARE = 0.1  # of the trials that count as the best ones
_FEWEST_BEST = 5  # Optuna's advice: with fewer of them the result depends on chance


def importance(study: Study) -> dict[str, float]:
    """Return the share of each setting of the space in the differences between trials, the most important first.

    PED-ANOVA asks which settings the best trials have in common: the share of a setting is larger, the more its values
    in the best trials differ from those in all trials. The shares sum to 1. A trial that ended early has its last
    value: it ended because that was bad. Without these only good trials would be left, among which an important
    setting differs little.

    A setting with `when` is compared among the trials that have it. One that no trial has is 0.

    Empty if there are too few trials, or if all of them are equally good.
    """
    from optuna.importance import PedAnovaImportanceEvaluator

    space, several = dimensions(study), len(study.objectives) > 1
    ended = [
        trial for trial in study.searched if trial.state in ("complete", "pruned") and is_inside(space, trial.values)
    ]
    trials = [
        replace(trial, state="complete", objectives=trial.objectives or (trial.curve[-1][1],))
        for trial in ended
        if trial.state == "complete" or not several
    ]
    best = max(_FEWEST_BEST, math.ceil(_SHARE * len(trials)))
    if len(trials) < 2 * best:
        return {}
    with quiet():
        evaluator = PedAnovaImportanceEvaluator(target_quantile=(best - 0.5) / len(trials))  # Optuna rounds up
        raw = evaluator.evaluate(view_of(study, space, trials))
    total = sum(raw.values())
    if not math.isfinite(total) or total <= 0:
        return {}
    order = sorted(space, key=lambda dimension: -raw.get(dimension.key, 0.0))
    return {dimension.key: raw.get(dimension.key, 0.0) / total for dimension in order}


def dimensions(study: Study) -> tuple[Dimension, ...]:
    """Return the space of a study."""
    return parse_space(Params(search=study.search))
