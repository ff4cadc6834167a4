"""Confidence intervals of means, medians, shares and paired differences.

No single method gives every metric its nominal coverage, so the method depends on the metric; bench/coverage.py
measures the coverage of each. `jackknife` has the intervals of metrics that are no mean of rows.
"""

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Interval",
    "difference_of",
    "exact_share",
    "high_bounds",
    "mean_of",
    "median_of",
    "p_mean_above",
    "paired_difference",
    "share_difference",
    "share_interval",
]

Floats = NDArray[np.float64]

_EDGE = 1e-12  # a share this close to 0 or 1 differs from it by rounding only


@dataclass(frozen=True)
class Interval:
    """A value with the bounds of its confidence interval."""

    low: float
    value: float
    high: float


def paired_difference(score_a: Floats, score_b: Floats, *, resamples: int, confidence: float, seed: int) -> Interval:
    """Return the mean score of A minus that of B on the same rows.

    Scores of 0 and 1 have the paired percentile bootstrap. Rows are resampled in pairs, so the difficulty of a row that
    affects both models cancels out. The interval consists of quantiles of the resampled difference. A row contributes
    +1 (only A is right), -1 (only B is right) or 0. Drawing rows with replacement therefore draws three counts from a
    multinomial, and these are drawn here: the distribution is the same and the cost does not grow with the rows.
    Other scores have the interval of the mean of the rows' differences (`mean_of`). One row shows no spread, so its
    difference can be chance: the interval reaches as far beyond 0.

    Args:
        score_a: (rows,), larger is better.
        resamples: number of draws, for scores of 0 and 1.

    Raises:
        ValueError: the arrays are empty or differ in length.
    """
    if score_a.shape != score_b.shape or score_a.ndim != 1 or score_a.size == 0:
        raise ValueError(f"paired rows of shape {score_a.shape} and {score_b.shape}: need the same, and at least one")
    rows = score_a.size
    if rows == 1 and (value := float(score_a[0] - score_b[0])):
        return Interval(-abs(value), value, abs(value))
    if not (_is_binary(score_a) and _is_binary(score_b)):
        return mean_of(score_a - score_b, confidence=confidence)
    wins, losses = int(np.count_nonzero(score_a > score_b)), int(np.count_nonzero(score_b > score_a))
    return _drawn(wins, losses, rows, resamples, confidence, seed)


@functools.lru_cache(maxsize=64)
def _drawn(wins: int, losses: int, rows: int, resamples: int, confidence: float, seed: int) -> Interval:
    shares = np.array([wins, losses, rows - wins - losses]) / rows
    counts = np.random.Generator(np.random.Philox(key=seed)).multinomial(rows, shares, size=resamples)
    value, tail = (wins - losses) / rows, (1.0 - confidence) / 2.0
    low, high = np.quantile((counts[:, 0] - counts[:, 1]) / rows, [tail, 1.0 - tail])
    return Interval(low=min(float(low), value), value=value, high=max(float(high), value))


def high_bounds(score_a: Floats, score_b: Floats, *, confidence: float) -> tuple[float, float]:
    """Return numbers between which the upper end of `paired_difference` is, without a draw.

    They are the exact quantiles of the resampled difference at twice and at half the tail. With 100 draws in the tail,
    the drawn quantile is outside with a probability below 1e-9.
    """
    if not (_is_binary(score_a) and _is_binary(score_b)):
        return -np.inf, np.inf
    rows, changes = score_a.size, score_a - score_b
    one_row = np.zeros(2 * rows + 1)  # probability of each difference; -1 is the last index
    one_row[[0, 1, -1]] = [np.mean(changes == change) for change in (0, 1, -1)]
    all_rows = np.fft.irfft(np.fft.rfft(one_row) ** rows, 2 * rows + 1)
    at_least = np.cumsum(np.roll(all_rows, rows)[::-1])  # from the difference `rows` downwards
    ends = [rows - int(np.argmax(at_least >= factor * (1.0 - confidence) / 2.0)) for factor in (2.0, 0.5)]
    low, high = (max(end / rows, float(changes.mean())) for end in ends)
    return low, high


def _is_binary(score: Floats) -> bool:
    return bool(((score == 0.0) | (score == 1.0)).all())


def mean_of(values: Floats, *, confidence: float) -> Interval:
    """Return the mean of real values with Hall's interval, which corrects Student's for skewness.

    A cubic of the studentized mean has no skewness to first order and can be inverted (Hall 1992, "On the removal of
    skewness by transformation"). So the interval is in closed form, at any level and for any number of rows.
    """
    from scipy.stats import t as student

    count, mean, spread, skewness = _moments(values)
    if spread == 0.0:
        return Interval(mean, mean, mean)
    reach = float(student.ppf((1 + confidence) / 2, count - 1)) / count**0.5
    low, high = (mean - spread * _skewed(end, skewness, count) for end in (reach, -reach))
    return Interval(min(low, mean), mean, max(high, mean))


def p_mean_above(values: Floats) -> float:
    """Return the p-value of "the mean of the distribution is at most 0"; the inverse of `mean_of`.

    Args:
        values: (rows,), a sample of the distribution, at least one.
    """
    from scipy.stats import t as student

    count, mean, spread, skewness = _moments(values)
    if spread == 0.0:
        return 1.0 if mean <= 0.0 or count == 1 else 0.0
    distance = mean / spread
    cubic = distance + skewness / 3 * distance**2 + skewness**2 / 27 * distance**3 + skewness / (6 * count)
    return float(student.sf(count**0.5 * cubic, count - 1))


def _moments(values: Floats) -> tuple[int, float, float, float]:
    """Return number, mean, standard deviation and skewness; the last two are 0 where values do not differ."""
    count, mean = values.size, float(values.mean())
    off = values - mean
    spread = float(off.std(ddof=1)) if count > 1 else 0.0
    if spread <= _EDGE * abs(mean):
        return count, mean, 0.0, 0.0
    return count, mean, spread, float((off**3).mean()) / spread**3


def _skewed(reach: float, skewness: float, count: int) -> float:
    """Return the value at which Hall's cubic is `reach`."""
    if abs(skewness) < _EDGE:
        return reach
    inner = 1 + skewness * (reach - skewness / (6 * count))
    return 3 / skewness * (float(np.cbrt(inner)) - 1)


def median_of(values: Floats, *, confidence: float) -> Interval:
    """Return the median with the interval between two order statistics.

    The quantiles of the bootstrap's medians are order statistics, too. Their numbers follow from the binomial
    distribution, so nothing is drawn, and the coverage holds for every distribution (Efron & Tibshirani 1993).
    """
    from scipy.stats import binom

    ordered, rows = np.sort(values), len(values)
    below = int(binom.ppf((1 - confidence) / 2, rows, 0.5))
    first = max(below - 1, 0)
    return Interval(float(ordered[first]), float(np.median(ordered)), float(ordered[rows - 1 - first]))


def share_interval(right: int, rows: int, *, confidence: float) -> Interval:
    """Return a share with Wilson's interval (1927), which has a width even where none or all are right."""
    return _wilson(right / rows, rows, confidence=confidence)


def exact_share(right: int, rows: int, *, confidence: float) -> Interval:
    """Return a share with its exact interval (Clopper & Pearson 1934), whose coverage is at least `confidence`."""
    from scipy.stats import beta

    tail = (1 - confidence) / 2
    low = float(beta.ppf(tail, right, rows - right + 1)) if right else 0.0
    high = float(beta.isf(tail, right + 1, rows - right)) if right < rows else 1.0
    return Interval(low, right / rows, high)


def _wilson(share: float, rows: int, *, confidence: float) -> Interval:
    from scipy.stats import norm

    square = float(norm.ppf((1 + confidence) / 2)) ** 2
    centre = (share + square / (2 * rows)) / (1 + square / rows)
    reach = (square * share * (1 - share) / rows + (square / (2 * rows)) ** 2) ** 0.5 / (1 + square / rows)
    low, high = max(centre - reach, 0.0), min(centre + reach, 1.0)
    return Interval(low if share > 0 else 0.0, share, high if share < 1 else 1.0)  # exactly 0 or 1, without rounding


def share_difference(first: tuple[int, int], second: tuple[int, int], *, confidence: float) -> Interval:
    """Return the share of `first` minus the share of `second`, with its interval (Newcombe 1998, method 10).

    Args:
        first: numbers of right rows and of all rows.
        second: the same for other rows; no row is in both.
    """
    a, b = (share_interval(right, rows, confidence=confidence) for right, rows in (first, second))
    return difference_of(a, b)


def difference_of(a: Interval, b: Interval) -> Interval:
    """Return the difference of two independent estimates, from their intervals of the same level (Newcombe 1998)."""
    below = ((a.value - a.low) ** 2 + (b.high - b.value) ** 2) ** 0.5
    above = ((a.high - a.value) ** 2 + (b.value - b.low) ** 2) ** 0.5
    value = a.value - b.value
    return Interval(value - below, value, value + above)
