"""Intervals of metrics that are no mean over rows: RMSE, R2, F1, ROC-AUC, perplexity, bits per character.

The influence of a row is what the metric loses without it (Tukey's jackknife; Efron & Tibshirani, "An Introduction to
the Bootstrap", 1993, chapter 11). The interval is Hall's for the mean of these influences, or for a share Student's on
the logit scale (Agresti, "Categorical Data Analysis", 2013, section 3.1). Each corrects the skewness once. On skewed
errors Hall's covers the true value more often than the BCa bootstrap, and nothing is drawn. tests/simulations measure
it. Most metrics are written once, as a function of means of per-row terms: the same function gives the value on all
rows and without each single row.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ratchet.evaluation.intervals import Interval, mean_of, share_interval

__all__ = ["Range", "RowMetric", "RowTerms", "interval_of"]

Floats = NDArray[np.float64]
RowMetric = Callable[[Floats], Floats]
"""Values of a metric, (...), from means of terms, (..., terms); NaN where it is not defined."""

Range = Literal["positive", "at most 1", "area", "share"]
"""Range of a metric. An area is ROC-AUC: few rows of one side give it a skewness that no scale corrects."""

_RANGES = {"positive": (0.0, math.inf), "at most 1": (-math.inf, 1.0), "area": (0.0, 1.0), "share": (0.0, 1.0)}
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

    def interval(self, metric: RowMetric, bounds: Range) -> Interval | None:
        """Return the metric with its interval; None: not defined."""
        value = self.value(metric)
        if value is None:
            return None
        return interval_of(value, self._influence(metric, value), bounds, confidence=self.confidence)

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


def interval_of(value: float, influence: Floats, bounds: Range, *, confidence: float) -> Interval:
    """Return a metric with its interval, from the influence of each row, (rows,), with mean 0.

    A share or an area of 0 or 1 has Wilson's bounds, because no row shows how far it may be from there.
    """
    rows = len(influence)
    least, most = _RANGES[bounds]
    if (least, most) == (0.0, 1.0) and not _EDGE < value < 1 - _EDGE:
        interval = share_interval(round(value) * rows, rows, confidence=confidence)
    elif bounds == "share":
        interval = _student(value, influence, confidence)
    else:
        interval = mean_of(value + influence, confidence=confidence)
    return Interval(min(max(interval.low, least), value), value, max(min(interval.high, most), value))


def _student(value: float, influence: Floats, confidence: float) -> Interval:
    """Return a share with Student's interval on the logit scale.

    Where nearly all is right, a few rows have all of the influence. The logit corrects the skewness of that, so Hall's
    correction would do it twice: the interval of 2 errors in 270 rows would begin at 35 %.
    """
    from scipy.special import expit, logit
    from scipy.stats import t as student

    rows = len(influence)
    if rows < 2:
        return Interval(value, value, value)
    error = float(influence.std(ddof=1)) / rows**0.5 / (value * (1 - value))
    reach = float(student.ppf((1 + confidence) / 2, rows - 1)) * error
    return Interval(float(expit(logit(value) - reach)), value, float(expit(logit(value) + reach)))
