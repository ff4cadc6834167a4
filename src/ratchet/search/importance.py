"""Which settings decided how good a trial is: PED-ANOVA (Watanabe, Bansal and Hutter, 2023), by Optuna."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ratchet.search.optuna_view import quiet, view_of
from ratchet.search.records import Study, Trial, best_so_far
from ratchet.settings.model import Params
from ratchet.settings.search_space import Dimension, is_inside, parse_space

__all__ = ["ComparableTrials", "comparison", "dimensions", "importance"]

_SHARE = 0.1  # of the trials that count as the best ones
_FEWEST_BEST = 5  # Optuna's advice: with fewer of them the result depends on chance


@dataclass(frozen=True)
class ComparableTrials:
    """Values of trials that may be compared.

    Attributes:
        epoch: the epoch after which all of `values` were measured; None: at the end of each trial.
        values: value by number of the trial; of several objectives the first one.
        ended: trials that ended before that epoch, because their values were bad.
        best: number of trials that count as the best ones.
    """

    epoch: int | None
    values: Mapping[int, float]
    ended: Sequence[int]
    best: int


def importance(study: Study) -> dict[str, float]:
    """Return the share of each setting of the space in the differences between trials, the most important first.

    PED-ANOVA asks which settings the best trials have in common: the share of a setting is larger, the more its values
    in the best trials differ from those in all trials. The shares sum to 1.

    Values are compared after equal epochs, see `comparison`. With several objectives the best trials are those of the
    Pareto front and of the fronts behind it.

    A setting with `when` is compared among the trials that have it, weighted by how many of the best trials do
    (conditional PED-ANOVA, 2026). Whether a trial has it counts for the setting that `when` names. A setting that no
    trial has is 0.

    Empty if there are too few trials, or if all of them are equally good.
    """
    compared = comparison(study)
    space = dimensions(study)
    if compared is None or not space:
        return {}
    raw = _evaluated(study, space, compared)
    total = sum(raw.values())
    if not math.isfinite(total) or total <= 0:
        return {}
    order = sorted(space, key=lambda dimension: -raw.get(dimension.key, 0.0))
    return {dimension.key: raw.get(dimension.key, 0.0) / total for dimension in order}


def comparison(study: Study) -> ComparableTrials | None:
    """Return the values by which trials are compared; None: there are too few.

    A value after 3 epochs says little beside a value after 30. So trials are compared at the last epoch that twice as
    many trials have reached as count as the best ones: a tenth, and at least five. Complete trials count as having
    reached it even if they stopped earlier by themselves. Trials that the pruner ended before it are not among the
    best. Without them only good trials would be left, among which an important setting differs little. Failed trials,
    running ones that are not yet there, and a first trial whose settings the space does not contain are left out.

    With several objectives only complete trials have a value to compare. At most half of them count
    as the best ones.
    """
    space = dimensions(study)
    trials = [trial for trial in study.searched if trial.state != "failed" and is_inside(space, trial.values)]
    several = len(study.objectives) > 1
    epochs = sorted({epoch for trial in trials for epoch, _ in trial.curve}, reverse=True)
    for epoch in (None,) if several else epochs:
        values = {trial.number: value for trial in trials if (value := _value(trial, epoch)) is not None}
        early = [] if several else [trial for trial in trials if trial.state == "pruned"]
        ended = [trial.number for trial in early if trial.number not in values]
        best = math.ceil(_SHARE * (len(values) + len(ended)))
        best = max(_FEWEST_BEST, best if epoch is not None else min(best, len(values) // 2))
        if len(values) >= 2 * best:
            return ComparableTrials(epoch, values, ended, best)
    return None


def dimensions(study: Study) -> tuple[Dimension, ...]:
    """Return the space of a study."""
    return parse_space(Params(search=study.search))


def _value(trial: Trial, epoch: int | None) -> float | None:
    """Return the first objective after an epoch, or at the end; None: it is not known."""
    if trial.state == "complete" and (epoch is None or trial.epochs <= epoch):
        value = trial.value
    else:
        value = None if epoch is None or trial.epochs < epoch else best_so_far(trial.curve, epoch)
    is_finite = value is not None and all(map(math.isfinite, (value, *trial.objectives)))
    return value if is_finite else None


def _evaluated(study: Study, space: Sequence[Dimension], compared: ComparableTrials) -> dict[str, float]:
    """Return the divergence of each setting, by Optuna."""
    from optuna.importance import PedAnovaImportanceEvaluator

    worst = (min if study.maximize[0] else max)(compared.values.values())
    trials = {trial.number: trial for trial in study.searched}
    shown: list[Trial] = []
    for number in sorted([*compared.values, *compared.ended]):
        several = len(study.objectives) > 1
        values = trials[number].objectives if several else (compared.values.get(number, worst),)
        shown.append(replace(trials[number], state="complete", curve=(), objectives=values))
    with quiet():
        quantile = (compared.best - 0.5) / len(shown)  # Optuna rounds up
        return PedAnovaImportanceEvaluator(target_quantile=quantile).evaluate(view_of(study, space, shown))
