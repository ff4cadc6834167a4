"""How sure a figure is: bootstrap intervals, and closed ones for shares of rows.

The bootstrap is Efron & Tibshirani, "An Introduction to the Bootstrap" (1993): draw the test rows again with
replacement and take the figure on each such set. How an interval is made of that differs by the kind of figure, for
none makes all of them as sure as they say: docs/gate.md has each one's coverage as measured. Every resample is drawn
from a counter-based generator at (seed, number of the resample), so that neither the size of a chunk nor the order of
the work changes a result.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Interval",
    "bounded_interval",
    "mean_interval",
    "paired_difference",
    "resample_weights",
    "share_difference",
    "share_interval",
]

Floats = NDArray[np.float64]

_CHUNK_ELEMENTS = 4_000_000  # 32 MiB of weights at a time
_EDGE = 1e-12  # a share so near to 0 or 1 is there, but for rounding


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


def bounded_interval(samples: Floats, value: float, *, rows: int, confidence: float) -> Interval | None:
    """The interval around a figure between 0 and 1 from its resampled values (shape (resamples,)).

    Normal on the logit scale, where such a figure is less skewed, with the standard error that the bootstrap finds
    there (Efron & Tibshirani 1993, chapter 12). A resample on which the figure is not defined is NaN and left out;
    None where that befell more than half of them, for then the interval would speak of other data than the figure
    does. At 0 and 1 themselves the logit ends, and resampling shows no spread: there, and where hardly a resample lies
    between them, the bound is Wilson's for a share of `rows`.
    """
    from scipy.special import expit, logit
    from scipy.stats import norm

    defined = samples[np.isfinite(samples)]
    if defined.size * 2 < samples.size:
        return None
    inside = defined[(defined > _EDGE) & (defined < 1 - _EDGE)]
    if not _EDGE < value < 1 - _EDGE or inside.size * 10 < defined.size:
        closed = _wilson(value, rows, confidence=confidence)
        return Interval(min(closed.low, value), value, max(closed.high, value))
    spread = float(norm.ppf((1 + confidence) / 2)) * float(logit(inside).std())
    low, high = expit(logit(value) + np.array([-spread, spread]))
    return Interval(min(float(low), value), value, max(float(high), value))


def mean_interval(
    means: Floats, errors: Floats, *, mean: float, error: float, confidence: float, least: float = 0.0
) -> Interval:
    """The interval around a mean of skewed values that are nowhere below `least`.

    The bootstrap-t (Efron & Tibshirani 1993, chapter 12): how many of its own standard errors each resample's mean
    lies from the mean (all of shape (resamples,)) says how many of `error` the mean lies from the truth. Among losses,
    of which few are large, a percentile interval is too short on the upper side.
    """
    distances = np.divide(means - mean, errors, out=np.full(len(means), np.nan), where=errors > 0)
    defined = distances[np.isfinite(distances)]
    if not defined.size:
        return Interval(mean, mean, mean)
    low, high = mean - error * np.quantile(defined, [(1 + confidence) / 2, (1 - confidence) / 2])
    return Interval(min(max(float(low), least), mean), mean, max(float(high), mean))


def paired_difference(
    correct_a: NDArray[np.bool_], correct_b: NDArray[np.bool_], *, resamples: int, confidence: float, seed: int
) -> Interval:
    """Accuracy of A minus accuracy of B on the same rows, with its interval.

    Both arrays have shape (rows,), with the same row at the same place. Rows are resampled in pairs, so what makes a
    row hard for both models cancels out; the interval is read off the quantiles. A row can only add +1 (A alone is
    right), -1 (B alone is right) or 0: drawing rows with replacement draws the three counts from a multinomial, and
    that is what is drawn here: the same distribution at a cost that does not grow with the rows.

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
    value = (only_a - only_b) / rows
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile((counts[:, 0] - counts[:, 1]) / rows, [tail, 1.0 - tail])
    return Interval(low=min(float(low), value), value=value, high=max(float(high), value))


def share_interval(right: int, rows: int, *, confidence: float) -> Interval:
    """A share with Wilson's interval (1927), which has some width even where none or all are right."""
    return _wilson(right / rows, rows, confidence=confidence)


def _wilson(share: float, rows: int, *, confidence: float) -> Interval:
    from scipy.stats import norm

    square = float(norm.ppf((1 + confidence) / 2)) ** 2
    centre = (share + square / (2 * rows)) / (1 + square / rows)
    reach = (square * share * (1 - share) / rows + (square / (2 * rows)) ** 2) ** 0.5 / (1 + square / rows)
    low, high = max(centre - reach, 0.0), min(centre + reach, 1.0)
    return Interval(low if share > 0 else 0.0, share, high if share < 1 else 1.0)  # to the end itself, unrounded


def share_difference(one: tuple[int, int], other: tuple[int, int], *, confidence: float) -> Interval:
    """The share of `one` (right, rows) minus that of `other`, of which no row is in both (Newcombe 1998, method 10)."""
    a, b = (share_interval(right, rows, confidence=confidence) for right, rows in (one, other))
    below = ((a.value - a.low) ** 2 + (b.high - b.value) ** 2) ** 0.5
    above = ((a.high - a.value) ** 2 + (b.value - b.low) ** 2) ** 0.5
    value = a.value - b.value
    return Interval(value - below, value, value + above)
