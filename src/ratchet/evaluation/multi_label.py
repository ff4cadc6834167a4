"""Metrics of predicted labels on the test samples, and the thresholds from which a label is predicted."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ratchet.evaluation.answers import LabelAnswers
from ratchet.evaluation.headline import FEW_ROWS
from ratchet.evaluation.intervals import Interval, share_interval
from ratchet.evaluation.jackknife import Metric, RowTerms
from ratchet.evaluation.metrics import LabelMetrics, MultiLabelMetrics
from ratchet.evaluation.slices import score_slices
from ratchet.settings.model import EvaluationSettings

__all__ = ["fit_thresholds", "measure_labels"]

Floats = NDArray[np.float64]


def fit_thresholds(probabilities: Floats, targets: NDArray[Any]) -> tuple[float, ...]:
    """Return for each label the threshold with the highest F1 on validation samples.

    It is in the middle between two probabilities, so that rounding does not change a prediction. Of equal F1 the one
    nearest to 0.5 is taken; a label without samples has 0.5 (Lipton et al. 2014, "Optimal Thresholding of Classifiers
    to Maximize F1 Measure").

    Args:
        probabilities: (rows, labels).
        targets: (rows, labels), 0 or 1.
    """
    return tuple(_threshold(probabilities[:, label], targets[:, label] > 0.5) for label in range(targets.shape[1]))


def _threshold(probability: Floats, truth: NDArray[np.bool_]) -> float:
    if not truth.any():
        return 0.5
    order = np.argsort(-probability, kind="stable")
    ordered, hits = probability[order], np.cumsum(truth[order])
    last = np.append(ordered[1:] != ordered[:-1], True)  # of equal probabilities all or none are predicted
    count = np.arange(1, len(ordered) + 1)
    f1 = np.where(last, 2 * hits / (count + truth.sum()), -1.0)
    middle = np.append((ordered[:-1] + ordered[1:]) / 2, ordered[-1] / 2)
    best = np.flatnonzero(f1 >= f1.max() - 1e-12)
    return float(middle[best[np.argmin(np.abs(middle[best] - 0.5))]])


def measure_labels(
    answers: LabelAnswers,
    *,
    settings: EvaluationSettings,
    columns: Mapping[str, Sequence[str | None]] = MappingProxyType({}),
) -> MultiLabelMetrics:
    """Return all metrics of multi-label prediction.

    Args:
        answers: outputs, targets and thresholds of the test rows.
        settings: of the evaluation.
        columns: by name, the value of each row to slice by; None: the row is in no slice of that column.
    """
    names, level = answers.target.names, settings.confidence
    truth, predicted = answers.truth, answers.predicted
    terms = np.stack([truth & predicted, truth.astype(np.int64) + predicted, truth == predicted], axis=2)
    rows = RowTerms(terms.reshape(answers.rows, -1).astype(np.float64), level)
    per_label = tuple(_label(answers, rows, number, name) for number, name in enumerate(names))
    areas = [label.roc_auc for label in per_label if label.roc_auc is not None]
    return MultiLabelMetrics(
        rows=answers.rows,
        confidence=level,
        micro_f1=_defined(
            rows.interval(lambda means: _f1(means[..., 0::3].sum(-1), means[..., 1::3].sum(-1)), "share")
        ),
        macro_f1=_defined(rows.interval(lambda means: _mean(_f1(means[..., 0::3], means[..., 1::3])), "share")),
        right_labels=_defined(rows.interval(lambda means: means[..., 2::3].mean(-1), "share")),
        exact_match=share_interval(int((truth == predicted).all(axis=1).sum()), answers.rows, confidence=level),
        roc_auc=float(np.mean(areas)) if areas else None,
        per_label=per_label,
        slices=score_slices(answers, columns, settings),
    )


def _label(answers: LabelAnswers, rows: RowTerms, number: int, name: str) -> LabelMetrics:
    from sklearn.metrics import roc_auc_score

    truth, predicted = answers.truth[:, number], answers.predicted[:, number]
    hits, support, count = (int(np.count_nonzero(mask)) for mask in (truth & predicted, truth, predicted))
    f1: Metric = lambda means: _f1(means[..., 3 * number], means[..., 3 * number + 1])  # noqa: E731  # has a type
    both = 0 < support < answers.rows
    interval = rows.interval(f1, "share")
    return LabelMetrics(
        name=name,
        threshold=answers.thresholds[number] if answers.thresholds else 0.5,
        precision=hits / count if count else None,
        recall=hits / support if support else None,
        f1=interval.value if interval else None,
        f1_interval=interval if support >= FEW_ROWS else None,
        support=support,
        predicted=count,
        roc_auc=float(roc_auc_score(truth, answers.probabilities[:, number])) if both else None,
    )


def _f1(hits: Floats, either: Floats) -> Floats:
    """Return F1 from hits, and from labels plus predictions; NaN where there are neither."""
    f1: Floats = np.where(either > 0, 2 * hits / np.where(either > 0, either, 1.0), np.nan)
    return f1


def _mean(values: Floats) -> Floats:
    """Return the mean over the last axis without NaN; NaN where all are."""
    defined = np.isfinite(values)
    count = defined.sum(axis=-1)
    mean: Floats = np.where(count > 0, np.where(defined, values, 0.0).sum(axis=-1) / np.maximum(count, 1), np.nan)
    return mean


def _defined(interval: Interval | None) -> Interval:
    """Return the interval, or 0 to 1 where no label occurs among targets and predictions."""
    return Interval(0.0, 0.0, 1.0) if interval is None else interval
