"""The best constant answer to the test rows, which a useful model must beat, and models that give one answer to all.

Classes and labels are judged by balanced accuracy, the mean recall: a constant answer has the same one, whatever the
shares of the classes are. Numbers and tokens are judged by their score. The constant answer is the best for these very
rows, such as their most frequent class or their median, so no difference between the splits favours the model.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ratchet.evaluation.answers import Answers, ClassAnswers, LabelAnswers, NumberAnswers, PieceAnswers
from ratchet.evaluation.intervals import Interval, mean_of, paired_difference
from ratchet.evaluation.metrics import ConstantResult, NamedMetric
from ratchet.settings.model import EvaluationSettings

__all__ = ["CommonAnswer", "balanced_accuracy", "common_answer", "compare_with_constant"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]

_OTHERS = 0.01  # largest share of other answers with which a model gives one answer to nearly all rows
_MISSED = 5  # the truth must differ from that answer so many times as often
_SAME = 1e-3  # of the range of the middle 90 % of the true numbers: closer predictions are one answer


@dataclass(frozen=True)
class CommonAnswer:
    """The answer that a model gives most often.

    Attributes:
        text: for people.
        rows: that get it.
        to_nearly_all: the model gives it to nearly all rows, though the truth is another on clearly more of them.
    """

    text: str
    rows: int
    to_nearly_all: bool


def common_answer(answers: Answers, names: Sequence[str] = ()) -> CommonAnswer | None:
    """Return the most frequent answer; None for pieces of text, of which only losses are known.

    Args:
        answers: of the model.
        names: of the classes; empty: their numbers.
    """
    match answers:
        case ClassAnswers():
            most = int(np.bincount(answers.predicted).argmax())
            text = repr(names[most]) if names else str(most)
            return _common(text, answers.predicted == most, answers.labels == most)
        case LabelAnswers():
            sets, counts = np.unique(answers.predicted, axis=0, return_counts=True)
            common = sets[counts.argmax()]
            text = _set_text([name for name, holds in zip(answers.target.names, common, strict=True) if holds])
            return _common(text, *((values == common).all(axis=1) for values in (answers.predicted, answers.truth)))
        case NumberAnswers():
            middle = np.median(answers.predicted, axis=0)
            low, high = np.quantile(answers.truth, [0.05, 0.95], axis=0)
            reach = np.maximum(_SAME * (high - low), 1e-6 * np.abs(middle))  # the second: rounding of float32
            near = (np.abs(values - middle) <= reach for values in (answers.predicted, answers.truth))
            return _common(_numbers_text(middle), *(mask.all(axis=1) for mask in near))
    return None


def _common(text: str, answered: Mask, true: Mask) -> CommonAnswer:
    others, missed = float((~answered).mean()), float((~true).mean())
    return CommonAnswer(text, int(answered.sum()), others <= _OTHERS and _MISSED * others < missed)


def _set_text(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) or "no label"


def _numbers_text(values: Floats) -> str:
    return ", ".join(f"{value:.4g}" for value in values)


def balanced_accuracy(hits: NDArray[np.number], counts: NDArray[np.number], *, confidence: float) -> Interval:
    """Return the mean recall of the classes that occur, with its interval.

    Each recall has its exact interval (Clopper and Pearson 1934). The distances of the bounds from the recalls are
    combined as those of independent estimates (MOVER: Zou and Donner 2008). So a class of one or two rows shows hardly
    anything, where a bootstrap or Wilson's interval would claim much.

    Args:
        hits: right answers of each class, (classes,).
        counts: rows of each class, (classes,), at least one above 0.
        confidence: level of the interval.
    """
    from scipy.stats import beta

    right, rows = (values[counts > 0].astype(np.float64) for values in (hits, counts))
    share, tail = right / rows, (1 - confidence) / 2
    low = np.where(right > 0, beta.ppf(tail, np.maximum(right, 1e-9), rows - right + 1), 0.0)
    high = np.where(right < rows, beta.ppf(1 - tail, right + 1, np.maximum(rows - right, 1e-9)), 1.0)
    below, above = (float(np.sqrt(((share - bound) ** 2).sum())) / len(rows) for bound in (low, high))
    value = float(share.mean())
    return Interval(max(0.0, value - below), value, min(1.0, value + above))


def compare_with_constant(
    answers: Answers,
    settings: EvaluationSettings,
    *,
    headline: NamedMetric,
    names: Sequence[str] = (),
    shares: Answers | None = None,
) -> ConstantResult:
    """Return the comparison of a model with the best constant answer to the same rows.

    Args:
        answers: of the model.
        settings: of the evaluation.
        headline: of the model.
        names: of the classes.
        shares: of pieces of text: the answers of a model that knows only how frequent each token of this text is.
    """
    match answers:
        case ClassAnswers():
            result = _classes(answers, headline, names, settings.confidence)
        case LabelAnswers():
            result = _labels(answers, headline, settings.confidence)
        case NumberAnswers():
            medians = np.median(answers.truth, axis=0)
            errors = -(np.abs(answers.truth - medians) / np.array(answers.target.std)).mean(axis=1)
            result = _scores(answers, headline, f"always answering {_numbers_text(medians)}", errors, settings)
        case _:
            assert isinstance(shares, PieceAnswers), "the caller measures the shares of the tokens"
            result = _scores(answers, headline, "knowing only how frequent each token is", shares.score, settings)
    common = common_answer(answers, names)
    return result.with_common(common.text, common.rows, common.to_nearly_all) if common else result


def _classes(answers: ClassAnswers, headline: NamedMetric, names: Sequence[str], confidence: float) -> ConstantResult:
    counts = np.bincount(answers.labels, minlength=answers.width)
    hits = np.bincount(answers.labels, weights=answers.score, minlength=answers.width)
    interval, best = balanced_accuracy(hits, counts, confidence=confidence), int(counts.argmax())
    occurring = counts[counts > 0]
    metric = headline
    if len(set(occurring.tolist())) > 1:
        metric = NamedMetric("balanced_accuracy", "balanced accuracy", interval, share=True)
    name = f"always answering {repr(names[best]) if names else best}"
    return _balanced(name, headline, float(counts[best] / answers.rows), metric, interval, [occurring], confidence)


def _labels(answers: LabelAnswers, headline: NamedMetric, confidence: float) -> ConstantResult:
    """Each label is a problem of two classes. The means of the bounds hold however the labels depend on each other."""
    support = answers.truth.sum(axis=0)
    order = np.argsort(-support, kind="stable")
    f1 = 2 * np.cumsum(support[order]) / (answers.rows * np.arange(1, answers.width + 1) + support.sum())
    best = sorted(order[: int(f1.argmax()) + 1])
    name = f"always answering {_set_text([answers.target.names[label] for label in best])}"
    right = answers.predicted == answers.truth
    sides = []
    for label in np.flatnonzero((support > 0) & (support < answers.rows)):
        truth = answers.truth[:, label].astype(np.int64)
        sides.append((np.bincount(truth, weights=right[:, label], minlength=2), np.bincount(truth, minlength=2)))
    parts = [balanced_accuracy(hits, counts, confidence=confidence) for hits, counts in sides]
    bounds = np.mean([(part.low, part.value, part.high) for part in parts], axis=0) if parts else (0.0, 0.5, 1.0)
    interval = Interval(*map(float, bounds))
    metric = NamedMetric("balanced_accuracy", "balanced accuracy", interval, share=True)
    counts = [rows for _, rows in sides] or [np.array([1, 1])]
    return _balanced(name, headline, float(f1.max()), metric, interval, counts, confidence)


def _balanced(
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


def _scores(
    answers: Answers, headline: NamedMetric, name: str, constant: Floats, settings: EvaluationSettings
) -> ConstantResult:
    """Return the comparison by the mean score, in the units that people read."""
    factor = abs(answers.unit.factor)
    score, reference = factor * answers.score, factor * constant
    difference = paired_difference(
        score, reference, resamples=settings.resamples, confidence=settings.confidence, seed=0
    )
    value = float(np.sign(answers.unit.factor) * reference.mean())
    metric = NamedMetric("score", answers.unit.name, mean_of(answers.row_metric.values, confidence=settings.confidence),
                         answers.unit.larger_is_better, answers.unit.share)  # fmt: skip
    return ConstantResult(
        name=name,
        headline=headline,
        trivial=value,
        metric=metric,
        constant=value,
        difference=difference,
        smallest=difference.value - difference.low,
    )
