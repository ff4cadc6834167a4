"""Temperature scaling of logits that are too sharp or too flat by a known factor."""

import numpy as np
import pytest

from ratchet.evaluation.calibration import fit_temperature, log_softmax


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
