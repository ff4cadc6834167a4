"""Intervals of metrics that are no mean over rows: RMSE, R2, F1, ROC-AUC, perplexity, bits per character.

The influence of a row is what the metric loses without it (Tukey's jackknife; Efron & Tibshirani, "An Introduction to
the Bootstrap", 1993, chapter 11). The interval is Hall's for the mean of these influences, on a scale on which the
metric is less skewed. On skewed errors it covers the true value more often than the BCa bootstrap, and nothing is
drawn. tests/simulations measure it. Most metrics are written once, as a function of means of per-row terms: the same
function gives the value on all rows and without each single row.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ratchet.evaluation.intervals import Interval, mean_of, share_interval

__all__ = ["RowMetric", "RowTerms", "Scale", "interval_of"]

Floats = NDArray[np.float64]
RowMetric = Callable[[Floats], Floats]
"""Values of a metric, (...), from means of terms, (..., terms); NaN where it is not defined."""

Scale = Literal["positive", "share", "at most 1"]
"""Range of a metric: above 0 (log scale), between 0 and 1 (logit), or below 1 (log of the distance to 1)."""

_EDGE = 1e-12


@dataclass(frozen=True)
class RowTerms:
    """Terms of each row, (rows, terms), whose means decide the metrics; `confidence` is the level of the intervals."""

    terms: Floats
    confidence: float

    def value(self, metric: RowMetric) -> float | None:
        """Return the metric on all rows; None: not defined."""
        with np.errstate(invalid="ignore", divide="ignore"):
            value = float(metric(self.terms.mean(axis=0)))
        return value if math.isfinite(value) else None

    def interval(self, metric: RowMetric, scale: Scale) -> Interval | None:
        """Return the metric with its interval; None: not defined."""
        value = self.value(metric)
        if value is None:
            return None
        return interval_of(value, self._influence(metric, value), scale, confidence=self.confidence)

    def _influence(self, metric: RowMetric, value: float) -> Floats:
        """Return the influence of each row, (rows,), with mean 0; 0 where the metric needs the row to be defined."""
        rows = len(self.terms)
        if rows < 2:
            return np.zeros(rows)
        with np.errstate(invalid="ignore", divide="ignore"):
            without = metric((self.terms.sum(axis=0) - self.terms) / (rows - 1))
        influence = (rows - 1) * (value - np.where(np.isfinite(without), without, value))
        centred: Floats = influence - influence.mean()
        return centred


def interval_of(value: float, influence: Floats, scale: Scale, *, confidence: float) -> Interval:
    """Return a metric with its interval, from the influence of each row, (rows,), with mean 0.

    A share of 0 or 1 has Wilson's bounds, because no row shows how far it may be from there.
    """
    rows = len(influence)
    if scale == "share" and not _EDGE < value < 1 - _EDGE:
        closed = share_interval(round(value) * rows, rows, confidence=confidence)
        return Interval(min(closed.low, value), value, max(closed.high, value))
    inside = {"positive": value > 0, "share": True, "at most 1": value < 1}[scale]
    if not inside:
        return mean_of(value + influence, confidence=confidence)
    there, slope, back = _transform(scale, value)
    interval = mean_of(there + slope * influence, confidence=confidence)
    low, high = sorted((back(interval.low), back(interval.high)))
    return Interval(min(low, value), value, max(high, value))


def _transform(scale: Scale, value: float) -> tuple[float, float, Callable[[float], float]]:
    """Return the value on the scale, the slope there, and the way back."""
    match scale:
        case "positive":
            return math.log(value), 1 / value, lambda at: math.exp(min(at, 700.0))
        case "share":
            logit = math.log(value / (1 - value))
            return logit, 1 / (value * (1 - value)), lambda at: 1 / (1 + math.exp(-max(at, -700.0)))
        case "at most 1":
            return math.log(1 - value), -1 / (1 - value), lambda at: 1 - math.exp(min(at, 700.0))
