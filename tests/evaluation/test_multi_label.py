"""Metrics of predicted labels equal scikit-learn's, and the fitted thresholds have the highest F1."""

import json
from pathlib import Path

import numpy as np
import pytest
from measured import measure
from scipy.special import expit
from sklearn import metrics as sk

from ratchet.evaluation.multi_label import MultiLabelMetrics, fit_thresholds
from ratchet.evaluation.predictions import Predictions, read_predictions, write_predictions
from ratchet.evaluation.problems import read_metrics, thresholds_for
from ratchet.problems import Labels
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
