"""How the rules say their figures."""

from collections.abc import Sequence

from ratchet.evaluation.intervals import Interval

__all__ = ["around", "listed", "points", "small"]


def points(share: float) -> str:
    """A difference of accuracies in percentage points, signed as prose is."""
    return f"{share * 100:+.2f}".replace("-", "\N{MINUS SIGN}") if share else "0.00"


def around(difference: Interval, *, ci: float | None = None) -> str:
    """A difference in points, with its confidence interval and, if given, the interval's level."""
    level = f"{ci * 100:g} % CI " if ci is not None else ""
    return f"{points(difference.value)} points ({level}{points(difference.low)} to {points(difference.high)})"


def listed(names: Sequence[str], most: int = 5) -> str:
    """The first of them, and how many more there are."""
    shown = ", ".join(repr(name) for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


def small(probability: float) -> str:
    """A probability to two digits: 0.05, 0.00031, 1.2e-07."""
    return f"{probability:.2g}"
