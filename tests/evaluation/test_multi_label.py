"""Metrics of predicted labels equal scikit-learn's, and the fitted thresholds have the highest F1."""

import json
from pathlib import Path

import numpy as np
import pytest
from measured import measure
from scipy.special import expit
from sklearn import metrics as sk

from ratchet.evaluation.intervals import share_interval
from ratchet.evaluation.multi_label import MultiLabelMetrics, fit_thresholds
from ratchet.evaluation.predictions import Predictions, read_predictions, write_predictions
from ratchet.evaluation.problems import read_metrics, thresholds_for
from ratchet.problems import Labels
from ratchet.reports.problem_pages import pages_of
from ratchet.settings.model import EvaluationSettings
from ratchet.typed_json import to_plain

FEW = EvaluationSettings(resamples=200)
NAMES = ("sea", "sky", "rare")


def predicted(rows: int = 400, *, seed: int = 0, thresholds: tuple[float, ...] = (0.5, 0.4, 0.3)) -> Predictions:
    drawn = np.random.default_rng(seed)
    targets = (drawn.random((rows, 3)) < (0.5, 0.3, 0.08)).astype(np.float32)
    outputs = (drawn.normal(0, 1, (rows, 3)) + 3 * targets - 1.8).astype(np.float32)
    return Predictions(outputs, targets, tuple(map(str, range(rows))), Labels(NAMES), thresholds)


def measured(predictions: Predictions, **options: object) -> MultiLabelMetrics:
    metrics = measure(predictions, settings=FEW, **options)
    assert isinstance(metrics, MultiLabelMetrics)
    return metrics


def test_metrics_equal_scikit_learn() -> None:
    predictions = predicted()
    metrics, truth = measured(predictions), predictions.targets.astype(int)
    chance = expit(predictions.outputs.astype(np.float64))
    answers = (chance >= np.array(predictions.thresholds)).astype(int)
    assert metrics.micro_f1.value == pytest.approx(sk.f1_score(truth, answers, average="micro"))
    assert metrics.macro_f1.value == pytest.approx(sk.f1_score(truth, answers, average="macro"))
    assert metrics.exact_match.value == pytest.approx(sk.accuracy_score(truth, answers))
    assert metrics.right_labels.value == pytest.approx(1 - sk.hamming_loss(truth, answers))
    assert metrics.right_labels.value == pytest.approx(predictions.score.mean())
    assert metrics.roc_auc == pytest.approx(sk.roc_auc_score(truth, chance, average="macro"))
    precision, recall, f1, support = sk.precision_recall_fscore_support(truth, answers)
    for at, each in enumerate(metrics.per_label):
        assert (each.precision, each.recall) == pytest.approx((precision[at], recall[at]))
        assert each.f1 is not None
        assert each.f1 == pytest.approx(f1[at])
        assert (each.support, each.threshold) == (support[at], predictions.thresholds[at])
        assert each.f1_interval is not None
        assert each.f1_interval.low < each.f1 < each.f1_interval.high


@pytest.mark.parametrize("seed", range(5))
def test_fitted_thresholds_have_the_highest_f1(seed: int) -> None:
    predictions = predicted(120, seed=seed)
    chance = np.round(expit(predictions.outputs.astype(np.float64)), 2)  # ties
    for at, threshold in enumerate(fit_thresholds(chance, predictions.targets)):
        truth = predictions.targets[:, at] > 0.5
        best = max(sk.f1_score(truth, chance[:, at] >= value) for value in np.unique(chance[:, at]))
        assert sk.f1_score(truth, chance[:, at] >= threshold) == pytest.approx(best)


def test_label_without_samples_has_no_threshold_of_its_own() -> None:
    assert fit_thresholds(np.array([[0.2], [0.9]]), np.zeros((2, 1))) == (0.5,)


def test_label_that_never_occurs_is_undefined() -> None:
    targets = np.zeros((50, 3), np.float32)
    targets[::2, 0] = 1
    outputs = np.where(targets > 0, 2.0, -2.0).astype(np.float32)
    metrics = measured(Predictions(outputs, targets, tuple(map(str, range(50))), Labels(NAMES)))
    assert metrics.macro_f1.value == metrics.micro_f1.value == 1.0
    assert metrics.per_label[1].f1 is metrics.per_label[1].recall is metrics.per_label[1].roc_auc is None


def rare_labels(hits: int, *, extra: int = 0, missed: int = 0, rows: int = 5_000) -> Predictions:
    """One label with few positives beside one that never occurs."""
    targets, outputs = np.zeros((rows, 2), np.float32), np.full((rows, 2), -2, np.float32)
    targets[: hits + missed, 0] = 1
    outputs[missed : hits + missed + extra, 0] = 2
    return Predictions(outputs, targets, tuple(map(str, range(rows))), Labels(NAMES[:2]))


def test_few_positives_claim_no_narrow_interval() -> None:
    metrics = measured(rare_labels(4, extra=1, missed=1))
    wilson = sharing(4, 6)
    assert metrics.micro_f1.value == pytest.approx(0.8)
    assert (metrics.micro_f1.low, metrics.micro_f1.high) == pytest.approx([2 * p / (1 + p) for p in wilson])
    assert metrics.micro_f1.high - metrics.micro_f1.low > 0.4
    assert metrics.macro_f1 is None
    assert metrics.numbers()["macro_f1"] == metrics.macro == pytest.approx(0.8)
    assert measured(rare_labels(0, extra=2)).micro_f1.high > 0.7
    many = measured(rare_labels(40, extra=10, missed=10))
    assert many.macro_f1 == many.micro_f1


def sharing(hits: int, pairs: int) -> tuple[float, float]:
    interval = share_interval(hits, pairs, confidence=0.95)
    return interval.low, interval.high


def test_intervals_of_few_positives_cover_the_true_f1() -> None:
    """Of 5,000 rows, of which about 5 have the label; the jackknife covers .61 of the sets."""
    drawn, shares = np.random.default_rng(0), np.array([0.0009, 0.0001, 0.0001])
    true, inside, sets = 2 * shares[0] / (2 * shares[0] + shares[1:].sum()), 0, 200
    for _ in range(sets):
        hits, extra, missed, _ = map(int, drawn.multinomial(5_000, [*shares, 1 - shares.sum()]))
        interval = measured(rare_labels(hits, extra=extra, missed=missed)).micro_f1
        inside += interval.low <= true <= interval.high
    assert inside / sets > 0.92


def test_intervals_of_perfect_labels_count_the_pairs_not_the_rows() -> None:
    """Of 300 rows about 24 have the label. Where none is wrong, Wilson's bounds of all rows cover .47 of the sets."""
    perfect = measured(rare_labels(24, rows=300))
    low = 2 * sharing(24, 24)[0] / (1 + sharing(24, 24)[0])
    (label, _), whole = perfect.per_label, perfect.micro_f1
    assert label.f1_interval is not None
    assert (label.f1_interval.low, label.f1_interval.high, whole.low) == pytest.approx((low, 1.0, low))
    assert perfect.macro_f1 == perfect.micro_f1
    wrong = measured(rare_labels(0, extra=10, missed=20, rows=300))
    assert wrong.per_label[0].f1_interval is not None
    assert wrong.per_label[0].f1_interval.high == wrong.micro_f1.high > 0.1


def test_pages_say_why_there_is_no_interval() -> None:
    pages = pages_of(measured(rare_labels(4, extra=1, missed=1)))
    assert pages.undefined == {"macro F1": pytest.approx(0.8)}
    assert pages.no_interval == "Too few samples of label sea (5) for an interval of macro F1."
    assert pages_of(measured(predicted())).no_interval == ""


def test_metrics_and_predictions_survive_their_files(tmp_path: Path) -> None:
    predictions = predicted(90)
    metrics = measured(predictions, columns={"half": [str(at % 2) for at in range(90)]})
    (tmp_path / "evaluation.json").write_text(json.dumps(to_plain(metrics), allow_nan=False))
    assert read_metrics(tmp_path) == metrics
    write_predictions(tmp_path / "predictions.parquet", predictions)
    back = read_predictions(tmp_path / "predictions.parquet")
    assert (back.thresholds, back.target) == (predictions.thresholds, predictions.target)
    assert np.array_equal(back.outputs, predictions.outputs)
    assert np.array_equal(back.targets, predictions.targets)


def test_thresholds_come_from_validation_or_settings() -> None:
    predictions, target = predicted(), Labels(NAMES)

    def validation() -> tuple[np.ndarray, np.ndarray]:
        return predictions.outputs, predictions.targets

    fitted = thresholds_for(target, EvaluationSettings(), validation)
    assert fitted == fit_thresholds(target.predictions(predictions.outputs), predictions.targets)
    assert thresholds_for(target, EvaluationSettings(threshold=0.7), validation) == (0.7,) * 3
