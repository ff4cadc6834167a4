"""Temperature scaling of logits that are too sharp or too flat by a known factor."""

import numpy as np
import pytest

from ratchet.evaluation.calibration import (
    CALIBRATION_BINS,
    calibration_interval,
    fit_temperature,
    log_softmax,
    reliability,
)


def calibrated(rows: int = 20_000) -> tuple[np.ndarray, np.ndarray]:
    """Return calibrated logits, and labels drawn from their probabilities."""
    generator = np.random.default_rng(0)
    logits = generator.normal(scale=2.0, size=(rows, 4))
    chance = np.exp(log_softmax(logits))
    return logits, (generator.random((rows, 1)) > chance.cumsum(axis=1)).sum(axis=1).clip(max=3)


@pytest.mark.parametrize("factor", [0.5, 1.0, 3.0])
def test_known_sharpening_is_found(factor: float) -> None:
    logits, labels = calibrated()
    assert fit_temperature((logits * factor).astype(np.float32), labels) == pytest.approx(factor, rel=0.03)


def test_temperature_is_never_worse_than_none() -> None:
    generator = np.random.default_rng(1)
    for _ in range(20):
        logits = generator.normal(size=(30, 3)).astype(np.float32)
        labels = generator.integers(3, size=30)
        temperature = fit_temperature(logits, labels)
        before, after = (
            -log_softmax(logits.astype(np.float64) / by)[np.arange(30), labels].mean() for by in (1.0, temperature)
        )
        assert after <= before


def test_without_validation_images_nothing_is_scaled() -> None:
    assert fit_temperature(np.zeros((0, 3), np.float32), np.zeros(0, np.int64)) == 1.0


def test_log_softmax_of_huge_logits_stays_finite() -> None:
    assert np.isfinite(log_softmax(np.array([[1e30, 0.0], [-1e30, 0.0]], np.float32))).all()


@pytest.mark.parametrize(
    ("rows", "right", "is_measured"), [(12, 0.9, False), (20, 0.9, False), (12, 0.0, True), (400, 0.9, True)]
)
def test_calibration_error_of_few_samples_needs_significance(rows: int, right: float, is_measured: bool) -> None:
    sure, score = np.full(rows, 0.9), (np.arange(rows) < right * rows).astype(float)
    bins = reliability(sure, score, bins=CALIBRATION_BINS)
    interval = calibration_interval(bins, resamples=500, confidence=0.95, seed=0)
    assert (interval is not None) == is_measured
