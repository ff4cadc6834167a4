"""Metrics and samples as text for people: the same on pages, in the gate's table and in the terminal."""

import math
from dataclasses import replace

from ratchet.evaluation.intervals import Interval
from ratchet.evaluation.metrics import BaselineResult, ConstantResult, NamedMetric
from ratchet.kinds.registry import noun_of

__all__ = [
    "baseline_text",
    "ci_text",
    "constant_sentence",
    "constant_text",
    "counted",
    "gain_text",
    "metric_text",
    "number",
    "range_text",
    "signed_range",
    "trivial_text",
    "value_text",
]

_MINUS = "\N{MINUS SIGN}"


def number(value: float, *, step: float = 0.0) -> str:
    """Return a number with as many digits as `step`, such as half a confidence interval, makes sensible.

    Args:
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

    Of shares it is "2.8 points better (...)". A difference that rounds to 0 is "equal (95 % CI -1.2 to 1.4)".

    Args:
        factor: positive; units of the metric for one unit of the score.
        share: the metric is a share, and the difference is shown in points.
        ci: such as "95 % CI ".
    """
    size, bounds = _gain(difference, factor=factor, share=share, ci=ci)
    if not size:
        return f"equal {bounds}"
    side = "better" if difference.value >= 0 else "worse"
    return f"{size} points {side} {bounds}" if share else f"{side} by {size} {bounds}"


def _gain(difference: Interval, *, factor: float = 1.0, share: bool = False, ci: str = "") -> tuple[str, str]:
    """Return the size of a difference, empty where it rounds to 0, and the bounds of its interval."""
    low, value, high = (factor * bound for bound in (difference.low, difference.value, difference.high))
    low, high, step = (low, high, (high - low) / 2) if value >= 0 else (-high, -low, (high - low) / 2)
    if share:
        low, value, high, step = 100 * low, 100 * value, 100 * high, 1.0
    size = number(abs(value), step=step)
    bounds = f"({ci}{number(low, step=step)} to {number(high, step=step)})"
    return size if float(size.replace(",", "")) else "", bounds


def counted(rows: int, kind: str) -> str:
    """Return a number of samples: "34 images"."""
    singular, plural = noun_of(kind)
    return f"{rows:,} {singular if rows == 1 else plural}"


def baseline_text(result: BaselineResult, confidence: float, kind: str = "") -> str:
    """Return the comparison with the baseline as the end of a sentence; `kind` is that of the samples."""
    ours, ci = result.network, f"{100 * confidence:g} % CI "
    gain, reservation = gain_text(result.difference, share=ours.share, ci=ci), _reservation(result, kind)
    verb = "beats" if result.network_is_better else "is not shown to beat" if reservation else "does not beat"
    return f"{verb} {result.name}: {ours.name} {gain}{reservation}"


def _reservation(result: BaselineResult, kind: str) -> str:
    """Return why a difference does not show that the model is better; nothing where it does or is not above 0."""
    if result.network_is_better or result.difference.value <= 0.0:
        return ""
    if result.difference.low > 0.0:
        return ", but not better than one constant answer"
    return f", but with {counted(result.rows, kind) if result.rows else 'these samples'} that can be chance"


def constant_text(result: ConstantResult, confidence: float, rows: int, kind: str = "") -> str:
    """Return the comparison with the best constant answer in one line; `kind` is that of the samples."""
    samples, metric = counted(rows, kind), result.metric
    if result.one_answer:
        return f"gives one answer: {result.answer} to {result.answered:,} of {samples}"
    size, bounds = _gain(result.difference, share=metric.share, ci=f"{100 * confidence:g} % CI ")
    gain = f"{metric.name} {size} points better" if metric.share else f"{metric.name} better by {size}"
    if result.is_better:
        return f"{gain} than {result.name} {bounds}"
    could = f"{samples} can show a difference of {_amount(result.smallest, metric)} at least"
    if size and result.difference.value > 0:
        return f"{gain} than {result.name} {bounds}, but with {samples} that can be chance; {could}"
    both = value_text(metric), value_text(replace(metric, interval=Interval(*(result.constant,) * 3)))
    return f"not better than {result.name}: {metric.name} {both[0]} against {both[1]}; {could}"


def constant_sentence(result: ConstantResult, confidence: float, rows: int, kind: str = "") -> str:
    """Return the headline of the best constant answer, and the comparison with the model's deciding metric."""
    trivial, text = trivial_text(result), constant_text(result, confidence, rows, kind)
    return f"{trivial[:1].upper()}{trivial[1:]}. {text[:1].upper()}{text[1:]}."


def trivial_text(result: ConstantResult) -> str:
    """Return the headline metric of the best constant answer: "always answering 'ants': accuracy 61.8 %"."""
    return f"{result.name}: {result.headline.name} {value_text(result.trivial_metric)}"


def _amount(difference: float, metric: NamedMetric) -> str:
    return f"{100 * difference:.0f} points" if metric.share else number(difference, step=difference)


def _half(interval: Interval) -> float:
    return (interval.high - interval.low) / 2


def _signed(value: float, step: float) -> str:
    text = number(value, step=step)
    return f"+{text}" if value > 0 and float(text.replace(",", "")) else text
