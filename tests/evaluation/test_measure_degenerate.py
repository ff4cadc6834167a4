"""Metrics on degenerate predictions agree with scikit-learn to 1e-12.

Where they differ on purpose, the test has the plain definition and the reason. A metric that is undefined in
scikit-learn (`zero_division=nan`) is None here.
"""

import math
import warnings

import numpy as np
import pytest
from measured import class_answers
from measured import measure_classes as measure
from scipy.special import log_softmax as scipy_log_softmax
from sklearn import metrics as sk

from ratchet.evaluation.calibration import CALIBRATION_BINS, calibration_error, reliability
from ratchet.evaluation.classification import ClassificationMetrics
from ratchet.settings.model import EvaluationSettings

FEW = EvaluationSettings(resamples=100, top_k=2)
Given = tuple[np.ndarray, np.ndarray]


def drawn(rows: int, classes: int, *, seed: int = 0, raised: float = 1.5) -> Given:
    generator = np.random.default_rng(seed)
    labels = generator.integers(classes, size=rows)
    logits = generator.normal(size=(rows, classes))
    logits[np.arange(rows), labels] += raised
    return logits.astype(np.float32), labels


def cases() -> dict[str, Given]:
    """Return logits and labels by their special property."""
    logits, labels = drawn(200, 5)
    missing = np.where(labels == 2, 3, labels)
    avoided = logits.copy()
    avoided[:, 1] = -50.0
    one_hot = np.eye(5, dtype=np.float32)[labels]
    return {
        "random": (logits, labels),
        "one class missing in the truth": (logits, missing),
        "one class never answered": (avoided, labels),
        "one class neither": (avoided, np.where(labels == 1, 0, labels)),
        "only one class in the truth": (logits, np.full(200, 3)),
        "ties": (np.round(logits).astype(np.float32), labels),
        "constant answers": (np.tile(np.float32([0.3, 2.0, -1.0, 0.0, 0.5]), (200, 1)), labels),
        "equal logits": (np.zeros((200, 5), np.float32), labels),
        "one row": (logits[:1], labels[:1]),
        "one row, wrong": (-one_hot[:1], labels[:1]),
        "two classes": drawn(150, 2, seed=1),
        "100 classes": drawn(300, 100, seed=2, raised=3.0),
        "perfect": (one_hot * 8, labels),
        "all wrong": (one_hot * -8, labels),
        "certain and right": (one_hot * 10_000, labels),
        "extreme": (np.sign(logits).astype(np.float32) * 10_000, labels),
        "extreme and wrong": (one_hot * -10_000, labels),
    }


def near(value: float) -> object:
    return pytest.approx(value, rel=1e-12, abs=1e-12)


def assert_metrics_as_defined(logits: np.ndarray, labels: np.ndarray) -> ClassificationMetrics:
    classes = logits.shape[1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        metrics = measure(logits, labels, classes=[str(number) for number in range(classes)], settings=FEW)
    predicted, everything = logits.argmax(axis=1), np.arange(classes)
    assert metrics.accuracy.value == near(sk.accuracy_score(labels, predicted))
    assert metrics.confusion == tuple(map(tuple, sk.confusion_matrix(labels, predicted, labels=everything)))
    for kind, ours in (("macro", metrics.macro), ("weighted", metrics.weighted)):
        plain = sk.precision_recall_fscore_support(labels, predicted, average=kind, zero_division=0.0)[:3]
        assert (ours.precision, ours.recall, ours.f1) == near(plain), kind
    assert metrics.macro_f1 is None or metrics.macro_f1.value == metrics.macro.f1
    own = sk.precision_recall_fscore_support(labels, predicted, labels=everything, zero_division=np.nan)
    for each, *plain, support in zip(metrics.per_class, *own, strict=True):
        assert each.support == support
        for value, expected in zip((each.precision, each.recall, each.f1), plain, strict=True):
            assert math.isnan(expected) if value is None else value == near(expected), each
    assert_probabilities(metrics, logits, labels)
    return metrics


def assert_probabilities(metrics: ClassificationMetrics, logits: np.ndarray, labels: np.ndarray) -> None:
    """Check top-k, log-loss, calibration error, ROC-AUC and PR-AUC."""
    answers, rows = class_answers(logits, labels), range(len(labels))
    certain = scipy_log_softmax(logits.astype(np.float64), axis=1)
    assert np.allclose(answers.log_probabilities, certain, rtol=1e-13, atol=1e-13)
    # scikit-learn clips probabilities at 2e-16; here a confident error costs its full loss
    assert metrics.log_loss.value == near(-certain[rows, labels].mean())
    # scikit-learn breaks ties for the last class; here as argmax does, for the first, so that top-1 is accuracy
    order = [sorted(range(logits.shape[1]), key=lambda number, row=row: (-logits[row, number], number)) for row in rows]
    if metrics.top_k is not None:
        assert metrics.top_k.value == near(np.mean([labels[row] in order[row][:2] for row in rows]))
    bins = reliability(answers.confidence, answers.score, bins=CALIBRATION_BINS)
    assert calibration_error(bins) == near(plain_calibration_error(answers.confidence, answers.score))
    for number, each in enumerate(metrics.per_class):
        truth, score = labels == number, answers.probabilities[:, number]
        if not truth.any():
            assert (each.roc_auc, each.pr_auc) == (None, None)
            continue
        assert each.pr_auc == near(plain_average_precision(truth, score))
        assert each.pr_auc == near(sk.average_precision_score(truth, score))
        if truth.all():
            assert each.roc_auc is None
        else:
            assert each.roc_auc == near(plain_area(truth, score))
            assert each.roc_auc == near(sk.roc_auc_score(truth, score))
    for mean, name in ((metrics.roc_auc, "roc_auc"), (metrics.pr_auc, "pr_auc")):
        values = [getattr(each, name) for each in metrics.per_class]
        defined = [value for value in values if value is not None]
        assert mean == (near(float(np.mean(defined))) if defined else None)


def plain_area(truth: np.ndarray, score: np.ndarray) -> float:
    """Return the share of pairs (one in the class, one outside) in which the first scores higher; a tie counts half."""
    first, second = score[truth][:, None], score[~truth][None, :]
    return float((first > second).mean() + (first == second).mean() / 2)


def plain_average_precision(truth: np.ndarray, score: np.ndarray) -> float:
    """Return precision at each threshold, weighted by the recall that it adds."""
    total, before = 0.0, 0.0
    for threshold in sorted(set(score.tolist()), reverse=True):
        kept = score >= threshold
        recall = float(truth[kept].sum() / truth.sum())
        total, before = total + (recall - before) * float(truth[kept].mean()), recall
    return total


def plain_calibration_error(confidence: np.ndarray, correct: np.ndarray, bins: int = 15) -> float:
    """Return the ECE of Guo et al. (2017), equation 3, which scikit-learn lacks. A bin is (low, high]."""
    total = 0.0
    for number in range(1, bins + 1):
        inside = np.ceil(confidence * bins).clip(1, bins) == number
        if inside.any():
            total += inside.sum() / len(confidence) * abs(correct[inside].mean() - confidence[inside].mean())
    return float(total)


@pytest.mark.parametrize("name", cases())
def test_metrics_on_degenerate_predictions(name: str) -> None:
    assert_metrics_as_defined(*cases()[name])


def test_without_ties_top_k_equals_scikit_learn() -> None:
    logits, labels = drawn(400, 10, seed=3)
    for k in (2, 3, 9):
        metrics = measure(
            logits, labels, classes=list("abcdefghij"), settings=EvaluationSettings(resamples=100, top_k=k)
        )
        assert metrics.top_k is not None
        assert metrics.top_k.value == near(sk.top_k_accuracy_score(labels, logits, k=k, labels=range(10)))
