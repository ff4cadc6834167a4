"""Text of a rule's result, and its values as text."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ratchet.evaluation.answers import ScoreUnit
from ratchet.evaluation.intervals import Interval
from ratchet.evaluation.wording import number

__all__ = [
    "Noun",
    "RuleText",
    "around",
    "difference_text",
    "finite",
    "largest",
    "listed",
    "percent",
    "points",
    "probability",
    "result_text",
    "tolerance_text",
]

Noun = tuple[str, str]  # of one sample and of several: "image", "images"


@dataclass(frozen=True)
class RuleText:
    """One rule's result as text.

    Attributes:
        fix: ways to pass, with the setting that decides; empty if the rule passed.
        short: `measured` and `limit` in one line.
        details: of the comparison with the champion, in sentences.
    """

    measured: str
    limit: str
    fix: str = ""
    short: str = ""
    details: str = ""


def result_text(measured: str, limit: str, *, passed: bool, fix: str, short: str = "", details: str = "") -> RuleText:
    """Return a result as text; the fix only where it did not pass."""
    return RuleText(measured, limit, "" if passed else fix, short or f"{measured}, {limit}", details)


def points(share: float) -> str:
    """Return a difference of accuracies in percentage points, with its sign."""
    return f"{share * 100:+.2f}".replace("-", "\N{MINUS SIGN}") if share else "0.00"


def tolerance_text(tolerance: float, unit: ScoreUnit | None) -> str:
    """Return a tolerance as the end of a phrase; empty where it is 0."""
    if not tolerance:
        return ""
    if unit is None or unit.share:
        return f" by more than {tolerance * 100:.2f} points"
    return f" by more than {number(tolerance * abs(unit.factor))}"


def percent(share: float, digits: int | None = None) -> str:
    """Return a share in per cent."""
    return f"{100 * share:g} %" if digits is None else f"{100 * share:.{digits}f} %"


def around(interval: Interval, digits: int, *, ci: str = "") -> str:
    """Return a share with its confidence interval: "99.3 % (97.5-99.8 %)"."""
    low, high = (f"{100 * bound:.{digits}f}" for bound in (interval.low, interval.high))
    return f"{percent(interval.value, digits)} ({ci}{low}-{high} %)"


def difference_text(difference: Interval, ci: str = "") -> str:
    """Return a difference in points with its confidence interval."""
    return f"{points(difference.value)} points ({ci}{points(difference.low)} to {points(difference.high)})"


def probability(value: float) -> str:
    """Return a probability with two digits: 0.05, 0.00031, 1.2e-07."""
    return f"{value:.2g}"


def largest(difference: float | None) -> str:
    """Return a difference as text; None: it is not a finite number."""
    return "not a number" if difference is None else f"{difference:.2g}"


def listed(names: Sequence[str], most: int = 5) -> str:
    """Return the first names, and how many more there are."""
    shown = ", ".join(repr(name) for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


def finite(value: float) -> float | None:
    """Return a value, or None if it is not finite, which JSON cannot hold."""
    return value if math.isfinite(value) else None
