"""How the rules say their figures."""

from collections.abc import Sequence

from ratchet.evaluation.intervals import Interval

__all__ = ["around", "listed", "points"]


def points(share: float) -> str:
    """A difference of accuracies in percentage points, signed as prose is."""
    return f"{share * 100:+.2f}".replace("-", "\N{MINUS SIGN}") if share else "0.00"


def around(difference: Interval) -> str:
    """A difference in points, with its interval."""
    return f"{points(difference.value)} points ({points(difference.low)} to {points(difference.high)})"


def listed(names: Sequence[str], most: int = 5) -> str:
    """The first of them, and how many more there are."""
    shown = ", ".join(repr(name) for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")
