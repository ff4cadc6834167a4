"""The end of a search: other seeds of the best trials, the winner, and what its score is likely to be again.

The best of many noisy scores is too good (the winner's curse). So the best trials are trained with other seeds, and the
mean over seeds decides. This mean is selected, too. So the winner is trained with fresh seeds, which decide nothing:
their mean shows how far the score falls.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from ratchet.evaluation.cross_validation import mean_over_trainings
from ratchet.search.records import OPEN, Study, Trial

__all__ = ["Finalist", "finalists", "next_seeds", "winner"]

_CONFIDENCE = 0.95
_FRESH = 1000  # distance of the fresh seeds from those that decide


@dataclass(frozen=True)
class Finalist:
    """A trial with the scores of its seeds.

    Attributes:
        selected: score by which it became a finalist.
        scores: first objective of each seed, that of the search first.
        mean: mean over these scores.
        low, high: 95 % confidence interval of the mean (Student's t); None with one seed.
        fresh: scores of the winner's fresh seeds, which had no part in its selection.
    """

    trial: Trial
    selected: float
    scores: tuple[float, ...]
    mean: float
    low: float | None
    high: float | None
    fresh: tuple[float, ...] = ()

    @property
    def again(self) -> float | None:
        """Mean over the fresh seeds: the score that another training is likely to reach. None: there are none."""
        return sum(self.fresh) / len(self.fresh) if self.fresh else None


def finalists(study: Study) -> list[Finalist]:
    """Return the finalists, the best mean first."""
    sign = -1.0 if study.maximize[0] else 1.0
    ranked = [_finalist(study, trial) for trial in _chosen(study)]
    return sorted(ranked, key=lambda each: (sign * each.mean, each.trial.number))


def winner(study: Study) -> Finalist | None:
    """Return the finalist with the best mean, or, if no trial is complete, the best one so far; None: there is none.

    None too if every complete trial gives one answer: whether a pruned one does is not measured.

    If seeds are missing, because the budget was used up, only those with the most seeds compete.
    """
    if ranked := finalists(study):
        most = max(len(each.scores) for each in ranked)
        return next(each for each in ranked if len(each.scores) == most)
    if any(trial.state == "complete" for trial in study.searched):
        return None  # all give one answer; whether a pruned one does too is not known
    best = next(iter(study.ranked()), None)
    return None if best is None else _finalist(study, best)


def next_seeds(study: Study) -> Iterator[tuple[Trial, int]]:
    """Yield the repetitions of finalists that no worker has begun, with their seeds.

    Fresh seeds of the winner come when the winner is known.
    """
    if len(study.objectives) > 1:
        return
    first, begun = int(study.params["seed"]), {(trial.seed_of, trial.seed) for trial in study.trials}
    for offset in range(1, study.search.seeds):
        for trial in _chosen(study):
            if (trial.number, first + offset) not in begun:
                yield trial, first + offset
    best = winner(study)
    decide = [trial for trial in _repetitions(study) if (trial.seed or 0) < first + _FRESH]
    if best is None or best.trial.state != "complete" or any(trial.state in OPEN for trial in decide):
        return
    for offset in range(study.search.seeds - 1):
        if (best.trial.number, first + _FRESH + offset) not in begun:
            yield best.trial, first + _FRESH + offset


def _chosen(study: Study) -> list[Trial]:
    """Return the finalists: the best complete trials, the present settings, and those that had seeds already.

    The first trial has the present settings. Compared with the same seeds they are replaced only by better ones.
    """
    complete = [trial for trial in study.ranked() if trial.state == "complete" and not trial.constant]
    others = {0, *(trial.seed_of for trial in study.trials)}
    best = complete[: study.search.finalists]
    return best + [trial for trial in complete if trial.number in others and trial not in best]


def _finalist(study: Study, trial: Trial) -> Finalist:
    first = int(study.params["seed"])
    complete = [each for each in _repetitions(study) if each.seed_of == trial.number and each.state == "complete"]
    selecting = [each for each in complete if (each.seed or 0) < first + _FRESH]
    scores = [trial.value or 0.0, *(each.objectives[0] for each in selecting)]
    fresh = tuple(each.objectives[0] for each in complete if each not in selecting)
    if len(scores) == 1:
        return Finalist(trial, scores[0], tuple(scores), scores[0], None, None, fresh)
    mean = mean_over_trainings(scores, study.objectives[0], confidence=_CONFIDENCE)
    return Finalist(trial, scores[0], tuple(scores), mean.value, mean.low, mean.high, fresh)


def _repetitions(study: Study) -> list[Trial]:
    return [trial for trial in study.trials if trial.seed_of is not None]
