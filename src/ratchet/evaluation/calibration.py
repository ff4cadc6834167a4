"""Is a confidence of .9 right nine times in ten? Reliability bins, and temperature scaling."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ratchet.evaluation.intervals import Interval

__all__ = [
    "Bin",
    "bin_numbers",
    "calibration_error",
    "calibration_interval",
    "fit_temperature",
    "log_softmax",
    "reliability",
]

Floats = NDArray[np.float64]

_COOLEST, _HOTTEST = 0.05, 20.0  # beyond these a model is broken, not badly calibrated


@dataclass(frozen=True)
class Bin:
    """The rows whose confidence lies in (low, high]; `confidence` and `accuracy` are None where there are none."""

    low: float
    high: float
    count: int
    confidence: float | None
    accuracy: float | None


def log_softmax(logits: NDArray[np.floating]) -> Floats:
    """Log-probabilities, shape (rows, classes), in double precision."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return shifted


def bin_numbers(confidence: Floats, *, bins: int) -> NDArray[np.int64]:
    """Which of `bins` equal parts (low, high] of the unit interval each confidence lies in, from 0."""
    return np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)


def reliability(confidence: Floats, correct: NDArray[np.bool_], *, bins: int) -> tuple[Bin, ...]:
    """Mean confidence against accuracy in equal bins of confidence (Guo et al. 2017, section 2)."""
    numbers = bin_numbers(confidence, bins=bins)
    counts = np.bincount(numbers, minlength=bins)
    confidences = np.bincount(numbers, weights=confidence, minlength=bins)
    hits = np.bincount(numbers, weights=correct, minlength=bins)
    return tuple(
        Bin(
            low=number / bins,
            high=(number + 1) / bins,
            count=int(count),
            confidence=float(confidences[number] / count) if count else None,
            accuracy=float(hits[number] / count) if count else None,
        )
        for number, count in enumerate(counts)
    )


def calibration_error(bins: tuple[Bin, ...]) -> float:
    """Expected calibration error: the gap between confidence and accuracy, over the rows (Guo et al. 2017, eq. 3)."""
    gaps = sum(
        one.count * abs(one.accuracy - one.confidence)
        for one in bins
        if one.accuracy is not None and one.confidence is not None
    )
    return float(gaps) / sum(one.count for one in bins)


def calibration_interval(bins: tuple[Bin, ...], *, resamples: int, confidence: float, seed: int) -> Interval:
    """The calibration error with its interval, a wide one: it holds the truth at least as often as `confidence` says.

    Resampling the rows misleads: the plug-in figure grows with the noise of each bin (Roelofs et al. 2022, "Mitigating
    Bias in Calibration Error Estimation"), a resample is twice as noisy, and near 0 the figure is not normal (Sun et
    al. 2024, "A Confidence Interval for the l2 Expected Calibration Error"). But by the triangle inequality it lies no
    further from the truth than the sum of the bins' own errors, and that sum can be drawn: rows fall into the bins
    and are right there as they were, by Laplace's rule of succession, for a bin whose few rows were all right may err.
    """
    rows = sum(one.count for one in bins)
    filled = [one for one in bins if one.accuracy is not None and one.confidence is not None]
    counts = np.array([one.count for one in filled])
    sure = np.array([one.confidence for one in filled])
    right = (np.array([one.accuracy for one in filled]) * counts + 1) / (counts + 2)
    generator = np.random.Generator(np.random.Philox(key=seed))
    drawn = generator.multinomial(rows, counts / rows, size=resamples)
    gaps = drawn * sure - generator.binomial(drawn, right)
    errors = np.abs(gaps - counts * (sure - right)).sum(axis=1) / rows
    value, reach = calibration_error(bins), float(np.quantile(errors, confidence))
    return Interval(max(value - reach, 0.0), value, min(value + reach, 1.0))


def fit_temperature(validation_logits: NDArray[np.float32], validation_labels: NDArray[np.int64]) -> float:
    """The temperature that logits are divided by so that their probabilities mean what they say.

    Guo et al., "On Calibration of Modern Neural Networks" (2017), section 4.2: the one that minimises the negative
    log-likelihood of validation rows (logits of shape (rows, classes), labels of shape (rows,)). The order of classes,
    and so accuracy, is untouched. 1.0 where no other does better. The loss is convex in 1/temperature, so a
    bounded search finds its one minimum.
    """
    from scipy.optimize import minimize_scalar

    if len(validation_labels) == 0:
        return 1.0
    rows = np.arange(len(validation_labels))
    logits = validation_logits.astype(np.float64)

    def loss(log_temperature: float) -> float:
        scaled = log_softmax(logits / np.exp(log_temperature))
        return -float(scaled[rows, validation_labels].mean())

    found = minimize_scalar(
        loss, bounds=(np.log(_COOLEST), np.log(_HOTTEST)), method="bounded", options={"xatol": 1e-6}
    )
    return float(np.exp(found.x)) if found.fun < loss(0.0) else 1.0
