"""Scales of charts: linear, logarithmic, or stretched towards 100 %, where good accuracies are close together."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ratchet.reports.charts import tick_text, ticks
from ratchet.reports.numbers import percent

__all__ = ["Scale"]

_STRETCHED_FROM = 0.9  # best accuracy from which the scale is stretched
_LOG_FROM = 20.0  # ratio of the largest to the smallest positive value from which the scale is logarithmic
_MARKS = 6  # about the number of marks
_SHARES = (0.0, 0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995, 0.9998, 0.9999)


@dataclass(frozen=True)
class Scale:
    """The values that an axis shows, from `low` to `high`, and their places on it.

    Attributes:
        share: the values are in per cent.
        whole: the marks are whole numbers.
    """

    low: float
    high: float
    kind: Literal["linear", "log", "stretched"] = "linear"
    share: bool = False
    whole: bool = False

    @classmethod
    def of(cls, values: Sequence[float], *, share: bool = False, whole: bool = False, log: bool = False) -> "Scale":
        """Return a scale from the smallest to the largest value. A linear one begins and ends with a mark."""
        low, high = min(values), max(values)
        if log and 0 < low < high:
            return cls(low, high, "log", share=share, whole=whole)
        marks = ticks([low, high], most=_MARKS, whole=whole)
        return cls(marks[0], marks[-1], share=share, whole=whole)

    @classmethod
    def of_objective(cls, values: Sequence[float], *, maximize: bool, share: bool) -> "Scale":
        """Return the scale for values of an objective, from the best to the worst, or less if few are far off."""
        low, high = _limits(values, maximize=maximize)
        if share and maximize and _STRETCHED_FROM <= high <= 1 and high > low:
            return cls(max(low, 0.0), min(high, 0.9999), "stretched", share=True)
        return cls.of([low, high], share=share, log=not share and low > 0 and high > _LOG_FROM * low)

    def place(self, value: float) -> float:
        """Return the place of a value between 0 and 1. Values outside are at the edge."""
        low, high = self._change(self.low), self._change(self.high)
        return min(1.0, max(0.0, (self._change(value) - low) / (high - low))) if high > low else 0.5

    @property
    def marks(self) -> list[tuple[float, str]]:
        """Values with their texts, at least two."""
        if self.kind == "linear":
            return self._linear_marks()
        if self.kind == "stretched":
            inside = [value for value in _SHARES if self.low <= value <= self.high]
            return [(value, _share_text(value)) for value in inside] if len(inside) > 2 else self._linear_marks()
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        every = -(-(last - first) // _MARKS)
        decades = [10.0**power for power in range(first, last + 1, every)]
        steps = [factor * 10.0**power for power in range(first, last + 1) for factor in (1, 2, 5)]
        for values in (decades, steps):
            inside = [value for value in values if self.low * (1 - 1e-9) <= value <= self.high * (1 + 1e-9)]
            if len(inside) > 2 or (values is steps and len(inside) == 2):
                return [(value, _short(value)) for value in inside]
        return [(value, _short(value)) for value in (self.low, self.high)]

    def _linear_marks(self) -> list[tuple[float, str]]:
        marks = ticks([self.low, self.high], most=_MARKS, whole=self.whole)
        inside = [mark for mark in marks if self.low - 1e-9 <= mark <= self.high + 1e-9]
        marks = inside if len(inside) > 1 else [self.low, self.high]
        step = marks[1] - marks[0] or 1.0
        return [(mark, f"{mark:g}" if self.whole else self._text(mark, step)) for mark in marks]

    def _text(self, mark: float, step: float) -> str:
        return _short(mark) if not self.share and abs(step) >= 1000 else tick_text(mark, step, share=self.share)

    def _change(self, value: float) -> float:
        if self.kind == "log":
            return math.log(max(value, self.low / 2))
        return -math.log(1 - min(value, self.high)) if self.kind == "stretched" else value


def _limits(values: Sequence[float], *, maximize: bool) -> tuple[float, float]:
    """Return the range from the best value to the worst, or less if few of them are far off.

    One trial whose loss is 1e6 would otherwise hide the differences between all others.
    """
    ordered = sorted(values, reverse=maximize)
    best, worst, quartile = ordered[0], ordered[-1], ordered[max(0, 3 * len(ordered) // 4 - 1)]
    reach = 3 * abs(quartile - best)
    if reach and abs(worst - best) > 2 * reach:
        worst = best - reach if maximize else best + reach
    return min(best, worst), max(best, worst)


def _share_text(value: float) -> str:
    return percent(value, 0 if value <= 0.99 else 1 if value <= 0.999 else 2)


def _short(value: float) -> str:
    """Return a number in few characters: 1.5M, 20k, 0.01, 1e-5."""
    for factor, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g}{letter}"
    return f"{value:.3g}".replace("e-0", "e-")
