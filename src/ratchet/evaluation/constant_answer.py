"""The best constant answer to the test rows, which a useful model must beat, and models that give one answer to all.

Classes and labels are judged by balanced accuracy, the mean recall: a constant answer has the same one, whatever the
shares of the classes are. Numbers and tokens are judged by their score. The constant answer is the best for these very
rows, such as their most frequent class or their median, so no difference between the splits favours the model.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ratchet.evaluation.answers import Answers, CommonAnswer
from ratchet.evaluation.intervals import Interval, paired_difference
from ratchet.evaluation.metrics import ConstantResult, NamedMetric
from ratchet.settings.model import EvaluationSettings

__all__ = ["balanced", "balanced_accuracy", "by_score", "common"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]

_OTHERS = 0.01  # largest share of other answers with which a model gives one answer to nearly all rows
_MISSED = 5  # the truth must differ from that answer so many times as often


def common(text: str, answered: Mask, true: Mask) -> CommonAnswer:
    """Return the most frequent answer from the rows that get it, and from those whose target it is."""
    others, missed = float((~answered).mean()), float((~true).mean())
    return CommonAnswer(text, int(answered.sum()), others <= _OTHERS and _MISSED * others < missed)


def balanced_accuracy(hits: NDArray[np.number], counts: NDArray[np.number], *, confidence: float) -> Interval:
    """Return the mean recall of the classes that occur, with its interval.

    Each recall has its exact interval (Clopper and Pearson 1934). The distances of the bounds from the recalls are
    combined as those of independent estimates (MOVER: Zou and Donner 2008). So a class of one or two rows shows hardly
    anything, where a bootstrap or Wilson's interval would claim much.

    Args:
        hits: right answers of each class, (classes,).
        counts: rows of each class, (classes,), at least one above 0.
    """
    from scipy.stats import beta

    right, rows = (values[counts > 0].astype(np.float64) for values in (hits, counts))
    share, tail = right / rows, (1 - confidence) / 2
    low = np.where(right > 0, beta.ppf(tail, np.maximum(right, 1e-9), rows - right + 1), 0.0)
    high = np.where(right < rows, beta.ppf(1 - tail, right + 1, np.maximum(rows - right, 1e-9)), 1.0)
    below, above = (float(np.sqrt(((share - bound) ** 2).sum())) / len(rows) for bound in (low, high))
    value = float(share.mean())
    return Interval(max(0.0, value - below), value, min(1.0, value + above))


def balanced(
    name: str,
    headline: NamedMetric,
    trivial: float,
    metric: NamedMetric,
    interval: Interval,
    counts: Sequence[Integers],
    confidence: float,
) -> ConstantResult:
    """Return the comparison by balanced accuracy. `counts`: rows of each class, of each problem that is averaged."""
    chance = 1 / len(counts[0])
    return ConstantResult(
        name=name,
        headline=headline,
        trivial=trivial,
        metric=metric,
        constant=chance,
        difference=Interval(*(bound - chance for bound in (interval.low, interval.value, interval.high))),
        smallest=float(np.mean([_smallest(rows, confidence) for rows in counts])),
    )


def _smallest(counts: Integers, confidence: float) -> float:
    """Return the smallest difference of balanced accuracy from a constant answer that such classes can show."""
    chance = 1 / len(counts)
    low, high = 0.0, 1 - chance
    for _ in range(10):  # bisection
        middle = (low + high) / 2
        if balanced_accuracy((chance + middle) * counts, counts, confidence=confidence).low > chance:
            high = middle
        else:
            low = middle
    return high


def by_score(
    answers: Answers, headline: NamedMetric, name: str, constant: Floats, settings: EvaluationSettings
) -> ConstantResult:
    """Return the comparison by the mean score, in the units that people read."""
    factor = abs(answers.unit.factor)
    score, reference = factor * answers.score, factor * constant
    difference = paired_difference(
        score, reference, resamples=settings.resamples, confidence=settings.confidence, seed=0
    )
    value = float(np.sign(answers.unit.factor) * reference.mean())
    metric = answers.headline("score", settings.confidence)
    return ConstantResult(
        name=name,
        headline=headline,
        trivial=value,
        metric=metric,
        constant=value,
        difference=difference,
        smallest=difference.value - difference.low,
    )
