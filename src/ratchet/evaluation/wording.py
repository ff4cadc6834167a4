"""Metrics and samples as text for people: the same on pages, in the gate's table and in the terminal."""

import math
from collections.abc import Mapping
from types import MappingProxyType

from ratchet.evaluation.intervals import Interval
from ratchet.evaluation.metrics import BaselineResult, NamedMetric

__all__ = [
    "SAMPLES",
    "baseline_sentence",
    "ci_text",
    "gain_text",
    "metric_text",
    "number",
    "range_text",
    "signed_range",
    "value_text",
]

SAMPLES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {"image": ("image", "images"), "table": ("row", "rows"), "text": ("text", "texts"), "tokens": ("piece", "pieces")}
)
"""One sample and several samples of each kind of input; other kinds are called samples."""

_MINUS = "\N{MINUS SIGN}"


def number(value: float, *, step: float = 0.0) -> str:
    """Return a number with as many digits as `step`, such as half a confidence interval, makes sensible.

    Args:
        value: any finite number.
        step: its uncertainty, of which two digits are shown; 0: four significant digits.
    """
    if not step or not math.isfinite(step):
        text = f"{value:.4g}"
    elif step < 1e-6 * max(abs(value), 1e-4) or abs(value) >= 1e9:
        text = f"{value:.6g}"
    else:
        text = f"{value:,.{max(0, 1 - math.floor(math.log10(step)))}f}"
    return text.replace("-", _MINUS) if not text.startswith("-0") or float(text.replace(",", "")) else text[1:]


def value_text(metric: NamedMetric, *, digits: int = 1) -> str:
    """Return the value of a metric: "38.2" or "81.3 %"."""
    interval = metric.interval
    if metric.share:
        return f"{100 * interval.value:.{digits}f} %"
    return number(interval.value, step=_half(interval))


def range_text(metric: NamedMetric, *, digits: int = 1) -> str:
    """Return the bounds of a metric's interval: "36.0-40.5" or "79.0-83.5 %"."""
    low, high = metric.interval.low, metric.interval.high
    if metric.share:
        return f"{100 * low:.{digits}f}-{100 * high:.{digits}f} %"
    texts = [number(bound, step=_half(metric.interval)) for bound in (low, high)]
    return (" to " if low < 0 else "-").join(texts)


def ci_text(metric: NamedMetric, confidence: float, *, digits: int = 1) -> str:
    """Return value and interval: "38.2 (95 % CI 36.0-40.5)"."""
    return f"{value_text(metric, digits=digits)} ({100 * confidence:g} % CI {range_text(metric, digits=digits)})"


def metric_text(metric: NamedMetric, confidence: float) -> str:
    """Return name, value and interval: "MAE 38.2 (95 % CI 36.0-40.5)"."""
    return f"{metric.name} {ci_text(metric, confidence)}"


def signed_range(difference: Interval, *, factor: float = 1.0, share: bool = False, ci: str = "") -> str:
    """Return a difference with its interval: "+2.8 (95 % CI +1.2 to +4.4)", in points where it is of shares."""
    if share:
        value, low, high = (_signed(100 * bound, 0.01) for bound in (difference.value, difference.low, difference.high))
        return f"{value} points ({ci}{low} to {high})"
    step = abs(factor) * _half(difference)
    bounds = (difference.value, difference.low, difference.high)
    value, low, high = (_signed(factor * bound, step) for bound in bounds)
    return f"{value} ({ci}{low} to {high})"


def gain_text(difference: Interval, *, factor: float = 1.0, share: bool = False, ci: str = "") -> str:
    """Return a difference that is above 0 where the model is better: "better by 2.8 (95 % CI 1.2 to 4.4)".

    A difference that rounds to 0 is "equal (95 % CI -1.2 to 1.4)".

    Args:
        difference: of scores.
        factor: positive; units of the metric for one unit of the score.
        share: the metric is a share, and the difference is shown in points.
        ci: such as "95 % CI ".
    """
    low, value, high = (factor * bound for bound in (difference.low, difference.value, difference.high))
    better, step = value >= 0, (high - low) / 2
    low, high = (low, high) if better else (-high, -low)
    if share:
        low, value, high, step = 100 * low, 100 * value, 100 * high, 0.1
    bounds = f"({ci}{number(low, step=step)} to {number(high, step=step)})"
    size = number(abs(value), step=step)
    if not float(size.replace(",", "")):
        return f"equal {bounds}"
    return f"{'better' if better else 'worse'} by {size}{' points' * share} {bounds}"


def baseline_sentence(result: BaselineResult, confidence: float) -> str:
    """Return whether the model is better than its baseline, with both metrics and their difference."""
    verb = "beats" if result.network_is_better else "does not beat"
    ours, theirs, ci = result.network, result.headline, f"{100 * confidence:g} % CI "
    return (
        f"The network {verb} the baseline {result.name}: {ours.name} {value_text(ours)} against {value_text(theirs)}, "
        f"{gain_text(result.difference, share=ours.share, ci=ci)}."
    )


def _half(interval: Interval) -> float:
    return (interval.high - interval.low) / 2


def _signed(value: float, step: float) -> str:
    text = number(value, step=step)
    return f"+{text}" if value > 0 and float(text.replace(",", "")) else text
