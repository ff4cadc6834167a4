"""Confidence intervals of a classifier's headline metrics.

Accuracy and top-k accuracy have Wilson's interval; log-loss, macro F1 and ROC-AUC have that of the jackknife. The
calibration error has an interval of its own (see calibration.py).
"""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ratchet.evaluation.calibration import CALIBRATION_BINS, calibration_interval, reliability
from ratchet.evaluation.intervals import Interval, share_interval
from ratchet.evaluation.jackknife import interval_of
from ratchet.settings.model import EvaluationSettings

if TYPE_CHECKING:
    from ratchet.evaluation.classification import ClassAnswers

__all__ = ["FEW_ROWS", "intervals", "macro_f1_influence", "rare_class", "roc_auc_influence"]

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

FEW_ROWS = 15
"""Rows of a class with which the intervals of ROC-AUC and F1 cover.

Of 200 sets of 300 rows, with a ROC-AUC of .80, less than half of the 95 % intervals contain it with one row of the
rarer class, and more than 90 % with 15. tests/evaluation/test_coverage.py repeats both.
"""


def intervals(
    answers: "ClassAnswers", *, macro_f1: float, roc_auc: float | None, settings: EvaluationSettings, seed: int
) -> dict[str, Interval]:
    """Return the interval of each metric by name; top-k accuracy, ROC-AUC, macro F1 and ECE may have none.

    bench/coverage.py measures the coverage of each.
    """
    level, loss, rows = settings.confidence, float(answers.losses.mean()), answers.rows
    bins = reliability(answers.confidence, answers.score, bins=CALIBRATION_BINS)
    bounds = {
        "accuracy": share_interval(int(answers.score.sum()), rows, confidence=level),
        "log_loss": interval_of(loss, answers.losses - loss, "positive", confidence=level),
    }
    if ece := calibration_interval(bins, resamples=settings.resamples, confidence=level, seed=seed):
        bounds["ece"] = ece
    if settings.top_k < answers.width:
        bounds["top_k"] = share_interval(int((answers.rank < settings.top_k).sum()), rows, confidence=level)
    if rare_class(np.bincount(answers.labels, minlength=answers.width)) is None:
        bounds["macro_f1"] = interval_of(macro_f1, macro_f1_influence(answers), "share", confidence=level)
        if roc_auc is not None:
            bounds["roc_auc"] = interval_of(roc_auc, roc_auc_influence(answers), "area", confidence=level)
    return bounds


def rare_class(counts: Labels) -> int | None:
    """Return the class with the fewest rows where means over the classes have no interval; None: they have one.

    A class with few rows does not show its spread. So there is no interval where such classes cause more than half of
    the variance of a mean over the classes, to which each adds about one over its rows.
    """
    rows = counts[counts > 0]
    variance = 1 / rows
    if len(rows) < 2 or variance[rows < FEW_ROWS].sum() <= variance.sum() / 2:
        return None
    return int(np.where(counts > 0, counts, counts.max() + 1).argmin())


def macro_f1_influence(answers: "ClassAnswers") -> Floats:
    """Return the influence of each row on macro F1, (rows,): it changes F1 of its class and of the predicted one."""
    labels, predicted, hits = answers.labels, answers.predicted, answers.counts[1]
    either = np.bincount(labels, minlength=answers.width) + np.bincount(predicted, minlength=answers.width)
    f1 = _ratio(2 * hits, either)
    hit, miss = f1 - _ratio(2 * (hits - 1), either - 2), f1 - _ratio(2 * hits, either - 1)
    change = np.where(answers.score > 0, hit[labels], miss[labels] + miss[predicted]) / np.count_nonzero(either)
    influence: Floats = (answers.rows - 1) * (change - change.mean())
    return influence


def _ratio(part: NDArray[np.number], whole: NDArray[np.number]) -> Floats:
    ratio: Floats = np.divide(part, whole, out=np.zeros(len(whole)), where=whole > 0)
    return ratio


def roc_auc_influence(answers: "ClassAnswers") -> Floats:
    """Return the influence of each row on the mean ROC-AUC, (rows,), from its placement (DeLong et al. 1988).

    The placement of a row is the share of the other side's rows that are on the right side of it; a tie counts half.
    """
    from scipy.stats import rankdata

    rows, classes = answers.rows, np.unique(answers.labels)
    total, influence = np.zeros(rows), np.empty(rows)
    for number in classes:
        own, score = answers.labels == number, answers.probabilities[:, number]
        ranks, count = rankdata(score), int(own.sum())
        for side, size, sign in ((own, count, 1), (~own, rows - count, -1)):
            placement = (ranks[side] - rankdata(score[side])) / (rows - size)
            # The factor makes the variance of each side unbiased.
            influence[side] = sign * (placement - placement.mean()) * rows / max(1, size * (size - 1)) ** 0.5
        total += influence
    return total / len(classes)
