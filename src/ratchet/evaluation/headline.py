"""The headline figures on every bootstrap resample at once.

Every one of them but ROC-AUC is a function of sums over rows, so one sparse product gives them all.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ratchet.evaluation.answers import Answers
from ratchet.evaluation.calibration import bin_numbers
from ratchet.evaluation.intervals import resample_weights
from ratchet.params import EvaluationSettings

__all__ = ["resampled"]

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

# The interval of ROC-AUC walks every row of every class for every resample: 24 ns for each of rows x classes x
# resamples on one core (measured on 5,000 x 10 x 2,000). Above this, 1.2 s, ROC-AUC stands without an interval.
_ROC_AUC_WORK = 50_000_000


def resampled(answers: Answers, *, settings: EvaluationSettings, seed: int) -> dict[str, Floats]:
    """Each headline figure on every resample, by name, shape (resamples,); NaN where it is not defined."""
    ledger = _ledger(answers, settings=settings)
    with_roc_auc = answers.rows * answers.classes * settings.resamples <= _ROC_AUC_WORK
    rankings = [_Ranking.of(answers, number) for number in range(answers.classes)] if with_roc_auc else []
    chunks: list[dict[str, Floats]] = []
    for weights in resample_weights(answers.rows, resamples=settings.resamples, seed=seed):
        sums = (ledger.T @ weights.T).T
        figures = _from_sums(sums, rows=answers.rows, classes=answers.classes)
        if with_roc_auc:
            figures["roc_auc"] = _mean_defined(np.stack([ranking.roc_auc(weights) for ranking in rankings]))
        chunks.append(figures)
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}


def _ledger(answers: Answers, *, settings: EvaluationSettings) -> Any:
    """What each row adds to the sums that the figures are made of: a sparse matrix of shape (rows, sums).

    Its columns: right, right among the first k, loss; then per class its rows, its answers, its hits; then per bin of
    confidence, confidence minus right.
    """
    from scipy.sparse import csr_array

    rows, classes, correct = answers.rows, answers.classes, answers.correct
    ones = np.ones(rows)
    bins = bin_numbers(answers.confidence, bins=settings.calibration_bins)
    entries = [
        (np.zeros(rows, np.int64), correct),
        (np.full(rows, 1), answers.place < settings.top_k),
        (np.full(rows, 2), answers.losses),
        (3 + answers.labels, ones),
        (3 + classes + answers.predicted, ones),
        (3 + 2 * classes + answers.labels, correct),
        (3 + 3 * classes + bins, answers.confidence - correct),
    ]
    columns = np.stack([column for column, _ in entries], axis=1).ravel()
    values = np.stack([value.astype(np.float64) for _, value in entries], axis=1).ravel()
    starts = np.arange(rows + 1) * len(entries)
    return csr_array((values, columns, starts), shape=(rows, 3 + 3 * classes + settings.calibration_bins))


def _from_sums(sums: Floats, *, rows: int, classes: int) -> dict[str, Floats]:
    """The figures from the ledger's sums, shape (resamples, sums)."""
    truth, answered, hits, gaps = np.split(sums[:, 3:], [classes, 2 * classes, 3 * classes], axis=1)
    occurs = truth + answered > 0
    f1 = np.divide(2 * hits, truth + answered, out=np.zeros_like(hits), where=occurs)
    return {
        "accuracy": sums[:, 0] / rows,
        "top_k": sums[:, 1] / rows,
        "log_loss": sums[:, 2] / rows,
        "macro_f1": f1.sum(axis=1) / occurs.sum(axis=1),
        "ece": np.abs(gaps).sum(axis=1) / rows,
    }


@dataclass(frozen=True)
class _Ranking:
    """The test rows in the order of one class's score, lowest first."""

    order: Labels
    truth: NDArray[np.bool_]  # in that order
    starts: Labels  # where each run of equal scores begins

    @classmethod
    def of(cls, answers: Answers, number: int) -> "_Ranking":
        score = answers.probabilities[:, number]
        order = np.argsort(score, kind="stable")
        starts = np.flatnonzero(np.diff(score[order], prepend=-1.0))
        return cls(order, (answers.labels == number)[order], starts)

    def roc_auc(self, weights: Floats) -> Floats:
        """Weighted ROC-AUC for each line of `weights` (resamples, rows); NaN where one side has no weight."""
        ordered = weights[:, self.order]
        positive = np.add.reduceat(np.where(self.truth, ordered, 0.0), self.starts, axis=1)
        negative = np.add.reduceat(np.where(self.truth, 0.0, ordered), self.starts, axis=1)
        below = np.cumsum(negative, axis=1) - negative / 2.0  # a tie counts half
        pairs = positive.sum(axis=1) * negative.sum(axis=1)
        won = (positive * below).sum(axis=1)
        area: Floats = np.divide(won, pairs, out=np.full(len(won), np.nan), where=pairs > 0)
        return area


def _mean_defined(values: Floats) -> Floats:
    """The mean along the first axis of what is not NaN; NaN where all is."""
    defined = np.isfinite(values)
    count = defined.sum(axis=0)
    total = np.where(defined, values, 0.0).sum(axis=0)
    mean: Floats = np.divide(total, count, out=np.full(values.shape[1], np.nan), where=count > 0)
    return mean
