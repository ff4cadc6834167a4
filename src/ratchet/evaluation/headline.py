"""Confidence intervals of a classifier's headline metrics.

Accuracy and top-k accuracy have Wilson's interval. Macro F1, ROC-AUC and log-loss share one set of bootstrap resamples:
macro F1 and log-loss are functions of sums over rows, so one sparse product gives them on all resamples at once. The
calibration error has an interval of its own (see calibration.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ratchet.evaluation.calibration import calibration_interval, reliability
from ratchet.evaluation.intervals import (
    Interval,
    bounded_interval,
    mean_interval,
    resample_weights,
    share_interval,
)
from ratchet.settings.model import EvaluationSettings

if TYPE_CHECKING:
    from ratchet.evaluation.classification import ClassAnswers

__all__ = ["FEW_ROWS", "intervals", "rare_class"]

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

# The interval of ROC-AUC takes 24 ns for each of rows x classes x resamples on one core (measured on 5,000 x 10 x
# 2,000). Above this product, 1.2 s, ROC-AUC has no interval.
_ROC_AUC_WORK = 50_000_000

FEW_ROWS = 15
"""Rows of a class with which the intervals of ROC-AUC and F1 cover.

Of 400 sets of 300 rows, with a ROC-AUC of .80, 13 % of the 95 % intervals contain it with one row of the rarer class,
63 % with two, 92 % with five and 94 % with 15. Of macro F1 it is 79 % with one row, 97 % with five and 98 % with 15.
tests/evaluation/test_coverage.py repeats the first and the last for ROC-AUC.
"""


def intervals(
    answers: "ClassAnswers", values: Mapping[str, float], *, settings: EvaluationSettings, seed: int
) -> dict[str, Interval]:
    """Return the interval of each metric in `values`, by name; ROC-AUC and macro F1 are missing where they have none.

    Shares of rows have Wilson's interval, log-loss the bootstrap-t, macro F1 and ROC-AUC a normal one on the logit
    scale. docs/evaluation.md has the measured coverage of each.
    """
    rows, level = answers.rows, settings.confidence
    drawn = _resampled(answers, settings=settings, seed=seed)
    bounds: dict[str, Interval | None] = {
        name: share_interval(round(values[name] * rows), rows, confidence=level)
        for name in ("accuracy", "top_k")
        if name in values
    }
    covers = rare_class(np.bincount(answers.labels, minlength=answers.width)) is None
    for name in ("macro_f1", "roc_auc"):
        if name in values and name in drawn and covers:
            bounds[name] = bounded_interval(drawn[name], values[name], rows=rows, confidence=level)
    bounds["log_loss"] = mean_interval(
        drawn["log_loss"],
        drawn["log_loss_error"],
        mean=values["log_loss"],
        error=float(answers.losses.std()) / rows**0.5,
        confidence=level,
    )
    bins = reliability(answers.confidence, answers.score, bins=settings.calibration_bins)
    bounds["ece"] = calibration_interval(bins, resamples=settings.resamples, confidence=level, seed=seed)
    return {name: interval for name, interval in bounds.items() if interval is not None}


def rare_class(counts: Labels) -> int | None:
    """Return the class with the fewest rows where means over the classes have no interval; None: they have one.

    Resampling shows no spread of a class with few rows. So there is no interval where such classes cause more than half
    of the variance of a mean over the classes, to which each adds about one over its rows.

    Args:
        counts: rows of each class, (classes,).
    """
    rows = counts[counts > 0]
    variance = 1 / rows
    if len(rows) < 2 or variance[rows < FEW_ROWS].sum() <= variance.sum() / 2:
        return None
    return int(np.where(counts > 0, counts, counts.max() + 1).argmin())


def _resampled(answers: "ClassAnswers", *, settings: EvaluationSettings, seed: int) -> dict[str, Floats]:
    """Return the values that the intervals need, by name, shape (resamples,); NaN where a value is not defined."""
    terms, rows, mean = _terms(answers), answers.rows, float(answers.losses.mean())
    with_roc_auc = rows * answers.width * settings.resamples <= _ROC_AUC_WORK
    rankings = [_Ranking.of(answers, number) for number in range(answers.width)] if with_roc_auc else []
    chunks: list[dict[str, Floats]] = []
    for weights in resample_weights(rows, resamples=settings.resamples, seed=seed):
        sums = (terms.T @ weights.T).T
        off, squares = sums[:, 0] / rows, sums[:, 1] / rows
        metrics = {
            "log_loss": mean + off,
            "log_loss_error": np.sqrt(np.maximum(squares - off**2, 0.0) / rows),
            "macro_f1": _macro_f1(sums[:, 2:]),
        }
        if with_roc_auc:
            metrics["roc_auc"] = _mean_defined(np.stack([ranking.roc_auc(weights) for ranking in rankings]))
        chunks.append(metrics)
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}


def _terms(answers: "ClassAnswers") -> Any:
    """Return each row's terms of the sums that the metrics consist of: a sparse matrix of shape (rows, sums).

    Columns: the loss minus the mean loss, and its square; then for each class its labels, its predictions, its hits.
    """
    from scipy.sparse import csr_array

    rows, classes = answers.rows, answers.width
    count, off = np.ones(rows), answers.losses - answers.losses.mean()
    entries = [
        (np.zeros(rows, np.int64), off),
        (np.full(rows, 1), off**2),
        (2 + answers.labels, count),
        (2 + classes + answers.predicted, count),
        (2 + 2 * classes + answers.labels, answers.score),
    ]
    columns = np.stack([column for column, _ in entries], axis=1).ravel()
    values = np.stack([value for _, value in entries], axis=1).ravel()
    starts = np.arange(rows + 1) * len(entries)
    return csr_array((values, columns, starts), shape=(rows, 2 + 3 * classes))


def _macro_f1(sums: Floats) -> Floats:
    """Return mean F1 over the classes that occur, from sums (resamples, labels, predictions and hits of each class)."""
    truth, answered, hits = np.split(sums, 3, axis=1)
    occurs = truth + answered > 0
    f1 = np.divide(2 * hits, truth + answered, out=np.zeros_like(hits), where=occurs)
    mean: Floats = f1.sum(axis=1) / occurs.sum(axis=1)
    return mean


@dataclass(frozen=True)
class _Ranking:
    """Test images in the order of one class's score, lowest first."""

    order: Labels
    truth: NDArray[np.bool_]  # in that order
    starts: Labels  # first position of each run of equal scores

    @classmethod
    def of(cls, answers: "ClassAnswers", number: int) -> "_Ranking":
        score = answers.probabilities[:, number]
        order = np.argsort(score, kind="stable")
        starts = np.flatnonzero(np.diff(score[order], prepend=-1.0))
        return cls(order, (answers.labels == number)[order], starts)

    def roc_auc(self, weights: Floats) -> Floats:
        """Return the ROC-AUC for each line of `weights` (resamples, rows); NaN where one side has no weight."""
        ordered = weights[:, self.order]
        positive = np.add.reduceat(np.where(self.truth, ordered, 0.0), self.starts, axis=1)
        negative = np.add.reduceat(np.where(self.truth, 0.0, ordered), self.starts, axis=1)
        below = np.cumsum(negative, axis=1) - negative / 2.0  # a tie counts half
        pairs = positive.sum(axis=1) * negative.sum(axis=1)
        won = (positive * below).sum(axis=1)
        area: Floats = np.divide(won, pairs, out=np.full(len(won), np.nan), where=pairs > 0)
        return area


def _mean_defined(values: Floats) -> Floats:
    """Return the mean along the first axis, without NaN; NaN where all values are NaN."""
    defined = np.isfinite(values)
    count = defined.sum(axis=0)
    total = np.where(defined, values, 0.0).sum(axis=0)
    mean: Floats = np.divide(total, count, out=np.full(values.shape[1], np.nan), where=count > 0)
    return mean
