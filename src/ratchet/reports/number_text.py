"""Numbers and values as text for people, the same on pages, in Markdown and in the terminal."""

import re

from ratchet.evaluation.intervals import Interval

__all__ = [
    "decimal",
    "measured",
    "percent",
    "percent_range",
    "setting",
    "shown",
]

_LISTED = 30  # items of a list that are written out
# Control characters, marks that change the direction of the text around them, and halves of surrogate pairs
_HARMFUL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def shown(value: object) -> str:
    """Text of a value of any type: an int with thousands separators, a float with four digits, None as a dash.

    Characters that could damage the text around them are replaced.
    """
    if value is None:
        return "\N{EN DASH}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        more = f" and {len(value) - _LISTED:,} more" if len(value) > _LISTED else ""
        return ", ".join(map(shown, value[:_LISTED])) + more or shown(None)
    return _HARMFUL.sub("\N{REPLACEMENT CHARACTER}", str(value))


def percent(share: float, digits: int = 1) -> str:
    """A share of 1 in per cent: "97.5 %"."""
    return f"{100 * share:.{digits}f} %"


def percent_range(interval: Interval, digits: int = 1) -> str:
    """The bounds of an interval in per cent: "97.5-99.8 %"."""
    return f"{percent(interval.low, digits)[:-2]}\N{EN DASH}{percent(interval.high, digits)}"


def decimal(value: float | None) -> str:
    """A metric between 0 and 1 with three digits; None as a dash."""
    return shown(None) if value is None else f"{value:.3f}"


def measured(value: Interval | float | None) -> str:
    """A metric, with its interval where it has one; None as a hyphen, which every terminal shows."""
    if value is None:
        return "-"
    if not isinstance(value, Interval):
        return f"{value:,.0f}" if value > 1 and value == int(value) else f"{value:.4f}"
    return f"{value.value:.4f} ({value.low:.4f} to {value.high:.4f})"


def setting(value: object) -> str:
    """A setting or a package version as it is written in params.yaml; a list in one line, None as a hyphen."""
    if value is None:
        return "-"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
