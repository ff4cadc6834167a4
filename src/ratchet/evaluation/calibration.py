"""Calibration: reliability bins, the expected calibration error (ECE), and temperature scaling."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ratchet.evaluation.intervals import Interval

__all__ = [
    "CALIBRATION_BINS",
    "Bin",
    "calibration_error",
    "calibration_interval",
    "fit_temperature",
    "log_softmax",
    "reliability",
]

Floats = NDArray[np.float64]

CALIBRATION_BINS = 15
"""Bins of the calibration error (ECE), as Guo et al. 2017."""

_TOO_WIDE = 0.25  # half an interval that says nothing
_LOWEST, _HIGHEST = 0.05, 20.0  # temperatures; beyond these a model is broken, not badly calibrated


@dataclass(frozen=True)
class Bin:
    """Predictions with a confidence in (low, high]; mean `confidence` and `accuracy` are None if there are none."""

    low: float
    high: float
    count: int
    confidence: float | None
    accuracy: float | None


def log_softmax(logits: NDArray[np.floating]) -> Floats:
    """Return log-probabilities, shape (rows, classes), in double precision."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return shifted


def reliability(confidence: Floats, score: Floats, *, bins: int) -> tuple[Bin, ...]:
    """Return mean confidence and mean score in bins (low, high] of equal width (Guo et al. 2017, section 2)."""
    numbers = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
    counts = np.bincount(numbers, minlength=bins)
    confidences = np.bincount(numbers, weights=confidence, minlength=bins)
    scores = np.bincount(numbers, weights=score, minlength=bins)
    return tuple(
        Bin(
            low=number / bins,
            high=(number + 1) / bins,
            count=int(count),
            confidence=float(confidences[number] / count) if count else None,
            accuracy=float(scores[number] / count) if count else None,
        )
        for number, count in enumerate(counts)
    )


def calibration_error(bins: tuple[Bin, ...]) -> float:
    """Return the ECE: the mean gap between confidence and accuracy over all predictions (Guo et al. 2017, eq. 3)."""
    gaps = sum(
        part.count * abs(part.accuracy - part.confidence)
        for part in bins
        if part.accuracy is not None and part.confidence is not None
    )
    return float(gaps) / sum(part.count for part in bins)


def calibration_interval(bins: tuple[Bin, ...], *, resamples: int, confidence: float, seed: int) -> Interval | None:
    """Return the ECE with a conservative interval: its coverage is at least `confidence`.

    None: the samples are too few to say anything. The ECE is not significant, and there are fewer than two samples for
    each bin, or chance alone causes errors as large as the usual limit of the gate.

    A bootstrap of the images misleads. The plug-in estimate grows with the noise of each bin (Roelofs et al. 2022,
    "Mitigating Bias in Calibration Error Estimation"), a resample is twice as noisy, and near 0 the estimate is not
    normal (Sun et al. 2024, "A Confidence Interval for the l2 Expected Calibration Error"). By the triangle inequality
    its distance from the true value is at most the sum of the bins' own errors, and that sum can be simulated: draw
    how many images fall into each bin, and how many of them are right. The probability of a right answer is estimated
    by Laplace's rule of succession, because a bin whose few images were all right may still contain errors.
    """
    rows = sum(part.count for part in bins)
    filled = [part for part in bins if part.accuracy is not None and part.confidence is not None]
    counts = np.array([part.count for part in filled])
    sure = np.array([part.confidence for part in filled])
    right = (np.array([part.accuracy for part in filled]) * counts + 1) / (counts + 2)
    generator = np.random.Generator(np.random.Philox(key=seed))
    drawn = generator.multinomial(rows, counts / rows, size=resamples)
    gaps = drawn * sure - generator.binomial(drawn, right)
    errors = np.abs(gaps - counts * (sure - right)).sum(axis=1) / rows
    value, reach = calibration_error(bins), float(np.quantile(errors, confidence))
    if value <= reach and (reach >= _TOO_WIDE or rows < 2 * len(bins)):
        return None
    return Interval(max(value - reach, 0.0), value, min(value + reach, 1.0))


def fit_temperature(validation_logits: NDArray[np.float32], validation_labels: NDArray[np.int64]) -> float:
    """Return the temperature by which logits are divided to calibrate them; 1.0 where no other is better.

    It minimises the negative log-likelihood of the validation images (Guo et al., "On Calibration of Modern Neural
    Networks", 2017, section 4.2). The order of classes, and so accuracy, does not change. The loss is convex in
    1/temperature, so a bounded search finds its only minimum.
    """
    from scipy.optimize import minimize_scalar

    if len(validation_labels) == 0:
        return 1.0
    rows = np.arange(len(validation_labels))
    logits = validation_logits.astype(np.float64)

    def loss(log_temperature: float) -> float:
        scaled = log_softmax(logits / np.exp(log_temperature))
        return -float(scaled[rows, validation_labels].mean())

    minimum = minimize_scalar(
        loss, bounds=(np.log(_LOWEST), np.log(_HIGHEST)), method="bounded", options={"xatol": 1e-6}
    )
    return float(np.exp(minimum.x)) if minimum.fun < loss(0.0) else 1.0
