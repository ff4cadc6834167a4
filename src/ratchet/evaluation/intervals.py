"""How sure a figure is: percentile bootstrap intervals, and closed ones for shares of few rows.

The method is Efron & Tibshirani, "An Introduction to the Bootstrap" (1993), chapter 13: draw the test rows again with
replacement, take the figure on each such set, and read the interval off the quantiles. Every resample is drawn from a
counter-based generator at (seed, number of the resample), so that neither the size of a chunk nor the order of the
work changes a result.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Interval",
    "mean_interval",
    "paired_difference",
    "percentile",
    "resample_weights",
    "share_difference",
    "share_interval",
]

Floats = NDArray[np.float64]

_CHUNK_ELEMENTS = 4_000_000  # 32 MiB of weights at a time


@dataclass(frozen=True)
class Interval:
    """A figure and the range that it is likely to lie in."""

    low: float
    value: float
    high: float

    def to_json(self) -> dict[str, float]:
        """Plain data; `from_json` reads it."""
        return {"low": self.low, "value": self.value, "high": self.high}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Interval":
        """The interval that `to_json` wrote."""
        return cls(low=float(content["low"]), value=float(content["value"]), high=float(content["high"]))


def resample_weights(rows: int, *, resamples: int, seed: int) -> Iterator[Floats]:
    """Give, in chunks of shape (resamples in the chunk, rows), how often each resample drew each row.

    Each line sums to `rows`. Resample r depends on (seed, r) and `rows` alone.
    """
    chunk = max(1, _CHUNK_ELEMENTS // rows)
    for first in range(0, resamples, chunk):
        numbers = range(first, min(first + chunk, resamples))
        yield np.stack([_draw(rows, seed=seed, number=number) for number in numbers])


def _draw(rows: int, *, seed: int, number: int) -> Floats:
    generator = np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, 0, number]))
    return np.bincount(generator.integers(rows, size=rows), minlength=rows).astype(np.float64)


def percentile(samples: Floats, value: float, *, confidence: float) -> Interval | None:
    """The interval around `value` from its resampled values (shape (resamples,)).

    A resample on which the figure is not defined is NaN and left out; None where that befell more than half of them,
    for then the interval would speak of other data than the figure does. The interval always holds its own figure: one
    that resampling pushes to one side (calibration error grows, for small bins are noisy) could fall outside otherwise.
    """
    defined = samples[np.isfinite(samples)]
    if defined.size * 2 < samples.size:
        return None
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(defined, [tail, 1.0 - tail])
    return Interval(low=min(float(low), value), value=value, high=max(float(high), value))


def mean_interval(values: Floats, *, resamples: int, confidence: float, seed: int) -> Interval:
    """The mean of `values` (shape (rows,), at least one row) with its interval."""
    rows = len(values)
    means = np.concatenate(
        [weights @ values / rows for weights in resample_weights(rows, resamples=resamples, seed=seed)]
    )
    interval = percentile(means, float(values.mean()), confidence=confidence)
    assert interval is not None, "a mean is defined on every resample"
    return interval


def paired_difference(
    correct_a: NDArray[np.bool_], correct_b: NDArray[np.bool_], *, resamples: int, confidence: float, seed: int
) -> Interval:
    """Accuracy of A minus accuracy of B on the same rows, with its interval.

    Both arrays have shape (rows,), with the same row at the same place. Rows are resampled in pairs, so what makes a
    row hard for both models cancels out. A row can only add +1 (A alone is right), -1 (B alone is right) or 0:
    drawing rows with replacement draws the three counts from a multinomial, and that is what is drawn here: the same
    distribution at a cost that does not grow with the rows.

    Raises:
        ValueError: the arrays are empty or differ in length.
    """
    if correct_a.shape != correct_b.shape or correct_a.ndim != 1 or correct_a.size == 0:
        raise ValueError(
            f"paired rows of shape {correct_a.shape} and {correct_b.shape}: need the same, and at least one"
        )
    rows = correct_a.size
    only_a = int(np.count_nonzero(correct_a & ~correct_b))
    only_b = int(np.count_nonzero(correct_b & ~correct_a))
    shares = np.array([only_a, only_b, rows - only_a - only_b]) / rows
    generator = np.random.Generator(np.random.Philox(key=seed))
    counts = generator.multinomial(rows, shares, size=resamples)
    interval = percentile((counts[:, 0] - counts[:, 1]) / rows, (only_a - only_b) / rows, confidence=confidence)
    assert interval is not None, "a difference is defined on every resample"
    return interval


def share_interval(right: int, rows: int, *, confidence: float) -> Interval:
    """A share with Wilson's interval (1927), which has some width even where none or all are right."""
    from scipy.stats import binomtest

    found = binomtest(right, rows).proportion_ci(confidence, method="wilson")
    return Interval(float(found.low), right / rows, float(found.high))


def share_difference(one: tuple[int, int], other: tuple[int, int], *, confidence: float) -> Interval:
    """The share of `one` (right, rows) minus that of `other`, of which no row is in both (Newcombe 1998, method 10)."""
    a, b = (share_interval(right, rows, confidence=confidence) for right, rows in (one, other))
    below = ((a.value - a.low) ** 2 + (b.high - b.value) ** 2) ** 0.5
    above = ((a.high - a.value) ** 2 + (b.value - b.low) ** 2) ** 0.5
    value = a.value - b.value
    return Interval(value - below, value, value + above)
