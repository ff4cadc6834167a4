"""Metrics of a token stream follow from the losses of its pieces."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from measured import measure

from ratchet.evaluation.language import LanguageMetrics
from ratchet.evaluation.predictions import Predictions, read_predictions, write_predictions
from ratchet.evaluation.problems import read_metrics
from ratchet.problems import NextToken
from ratchet.settings.model import EvaluationSettings
from ratchet.typed_json import to_plain


def pieces(count: int = 60, *, seed: int = 0) -> Predictions:
    """Return the losses of pieces of 64 tokens, the last one shorter."""
    drawn = np.random.default_rng(seed)
    tokens = np.full(count, 64)
    tokens[-1] = 9
    nats = tokens * drawn.normal(1.5, 0.2, count)
    sizes = np.stack([tokens, tokens * 2, tokens * 3], axis=1)
    return Predictions(nats[:, None].astype(np.float32), sizes, tuple(map(str, range(count))), NextToken(50))


def measured(predictions: Predictions) -> LanguageMetrics:
    metrics = measure(predictions, settings=EvaluationSettings(resamples=500))
    assert isinstance(metrics, LanguageMetrics)
    return metrics


def test_metrics_are_ratios_of_sums() -> None:
    predictions = pieces()
    metrics, nats = measured(predictions), float(predictions.outputs.astype(np.float64).sum())
    tokens = 59 * 64 + 9
    assert (metrics.tokens, metrics.characters) == (tokens, 2 * tokens)
    assert metrics.loss.value == pytest.approx(nats / tokens)
    assert metrics.perplexity.value == pytest.approx(math.exp(nats / tokens))
    assert metrics.bits_per_character.value == pytest.approx(nats / math.log(2) / (2 * tokens))
    assert metrics.bits_per_byte.value == pytest.approx(nats / math.log(2) / (3 * tokens))
    assert metrics.loss.low < metrics.loss.value < metrics.loss.high
    assert metrics.loss.high - metrics.loss.low == pytest.approx(2 * 1.96 * 0.2 / 60**0.5, rel=0.3)


def test_mean_score_is_the_loss_per_character() -> None:
    predictions = pieces()
    metrics = measured(predictions)
    assert -predictions.score.mean() / math.log(2) == pytest.approx(metrics.bits_per_character.value)
    assert predictions.answers.values.mean() == pytest.approx(metrics.bits_per_character.value)


def test_metrics_and_predictions_survive_their_files(tmp_path: Path) -> None:
    predictions = pieces()
    metrics = measured(predictions)
    (tmp_path / "evaluation.json").write_text(json.dumps(to_plain(metrics), allow_nan=False))
    assert read_metrics(tmp_path) == metrics
    write_predictions(tmp_path / "predictions.parquet", predictions)
    back = read_predictions(tmp_path / "predictions.parquet")
    assert np.array_equal(back.outputs, predictions.outputs)
    assert np.array_equal(back.targets, predictions.targets)
    assert back.target == predictions.target
