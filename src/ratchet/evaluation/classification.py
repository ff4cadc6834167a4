"""Metrics of a classifier's predictions on the test samples."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ratchet.evaluation.answers import ClassAnswers
from ratchet.evaluation.calibration import calibration_error, reliability
from ratchet.evaluation.constant_answer import balanced_accuracy
from ratchet.evaluation.headline import intervals, rare_class
from ratchet.evaluation.intervals import Interval, mean_of
from ratchet.evaluation.metrics import Averages, ClassificationMetrics, ClassMetrics
from ratchet.evaluation.predictions import check_classes
from ratchet.evaluation.robustness import NotMeasured
from ratchet.evaluation.slices import slices
from ratchet.settings.model import EvaluationSettings

__all__ = ["measure_classes"]

Labels = NDArray[np.int64]


def measure_classes(
    logits: NDArray[np.float32],
    labels: Labels,
    threshold: float = 0.5,
    *,
    classes: Sequence[str],
    settings: EvaluationSettings,
    columns: Mapping[str, Sequence[str | None]] = MappingProxyType({}),
    seed: int = 0,
) -> ClassificationMetrics:
    """Return all metrics but robustness.

    Log-loss is computed from the logits in double precision and is not clipped. A class without test images has no
    recall and does not count in the means of ROC-AUC and PR-AUC.

    Args:
        logits: (rows, classes).
        labels: (rows,), indices into `classes`.
        threshold: probability from which the second of two classes is predicted.
        classes: names, in the order of the logits.
        settings: of the evaluation.
        columns: by name, the value of each row to slice by; None: the row is in no slice of that column.
        seed: of the bootstrap's resamples.

    Raises:
        DataError: there are no test images, the shapes disagree, or a label is not a class.
        TrainingError: a logit is not a finite number.
    """
    check_classes(logits, labels, classes=classes)
    answers = ClassAnswers(logits, labels, threshold)
    per_class, confusion = _by_class(answers, classes)
    macro, weighted = _averages(answers, "macro"), _averages(answers, "weighted")
    bins = reliability(answers.confidence, answers.score, bins=settings.calibration_bins)
    values = {
        "accuracy": float(answers.score.mean()),
        "macro_f1": macro.f1,
        "log_loss": float(answers.losses.mean()),
        "ece": calibration_error(bins),
        "top_k": float((answers.rank < settings.top_k).mean()) if settings.top_k < answers.width else None,
        "roc_auc": _mean([row.roc_auc for row in per_class]),
    }
    counts = np.bincount(labels, minlength=len(classes))
    rare, hits = rare_class(counts), np.bincount(labels, weights=answers.score, minlength=len(classes))
    defined = {name: value for name, value in values.items() if value is not None}
    bounds = intervals(answers, defined, settings=settings, seed=seed)
    return ClassificationMetrics(
        rows=answers.rows,
        classes=tuple(classes),
        confidence=settings.confidence,
        k=settings.top_k,
        accuracy=bounds["accuracy"],
        top_k=bounds.get("top_k"),
        macro_f1=bounds.get("macro_f1"),
        log_loss=bounds["log_loss"],
        ece=bounds["ece"],
        roc_auc=values["roc_auc"],
        roc_auc_interval=bounds.get("roc_auc"),
        pr_auc=_mean([row.pr_auc for row in per_class]),
        macro=macro,
        weighted=weighted,
        per_class=per_class,
        confusion=confusion,
        reliability=bins,
        slices=slices(answers, columns, settings),
        robustness=NotMeasured("only `evaluate` measures it"),
        threshold=threshold,
        cost=_cost(answers, settings),
        balanced_accuracy=balanced_accuracy(hits, counts, confidence=settings.confidence),
        rare=None if rare is None else (classes[rare], int(counts[rare])),
    )


def _cost(answers: ClassAnswers, settings: EvaluationSettings) -> Interval | None:
    """Return the mean cost of a prediction of two classes; None where both errors cost the same."""
    positive, negative = settings.false_positive_cost, settings.false_negative_cost
    if answers.width != 2 or positive == negative:
        return None
    costs = (1 - answers.score) * np.where(answers.predicted == 1, positive, negative)
    return mean_of(costs, confidence=settings.confidence)


def _averages(answers: ClassAnswers, kind: Literal["macro", "weighted"]) -> Averages:
    from sklearn.metrics import precision_recall_fscore_support

    means = precision_recall_fscore_support(answers.labels, answers.predicted, average=kind, zero_division=0.0)
    return Averages(*map(float, means[:3]))


def _by_class(
    answers: ClassAnswers, classes: Sequence[str]
) -> tuple[tuple[ClassMetrics, ...], tuple[tuple[int, ...], ...]]:
    """Return the metrics of each class, and the confusion matrix."""
    from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

    labels, predicted = answers.labels, answers.predicted
    every_class = np.arange(len(classes))
    confusion = confusion_matrix(labels, predicted, labels=every_class)
    predictions = confusion.sum(axis=0)
    precision, recall, f1, support = precision_recall_fscore_support(
        labels, predicted, labels=every_class, zero_division=0.0
    )
    per_class = []
    for number, name in enumerate(classes):
        roc_auc, pr_auc = _ranking(answers, number)
        row = ClassMetrics(
            name=name,
            precision=float(precision[number]) if predictions[number] else None,
            recall=float(recall[number]) if support[number] else None,
            f1=float(f1[number]) if support[number] + predictions[number] else None,
            support=int(support[number]),
            predicted=int(predictions[number]),
            roc_auc=roc_auc,
            pr_auc=pr_auc,
        )
        per_class.append(row)
    return tuple(per_class), tuple(tuple(row) for row in confusion.tolist())


def _ranking(answers: ClassAnswers, number: int) -> tuple[float | None, float | None]:
    """Return ROC-AUC and average precision of one class against the rest; None where one side has no images."""
    from sklearn.metrics import average_precision_score, roc_auc_score

    truth, score = answers.labels == number, answers.probabilities[:, number]
    if not truth.any():
        return None, None
    roc_auc = None if truth.all() else float(roc_auc_score(truth, score))
    return roc_auc, float(average_precision_score(truth, score))


def _mean(values: Sequence[float | None]) -> float | None:
    defined = [value for value in values if value is not None]
    return float(np.mean(defined)) if defined else None
