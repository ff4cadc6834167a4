"""Parity sheets as text for people."""

from ratchet.evaluation.intervals import Interval
from ratchet.exports.variants import FULL, Measured, Variant

__all__ = ["amount", "difference_text", "speed_text", "summary"]


def summary(variant: Variant) -> str:
    """Return one line: the variant, and its figures or the reasons for which it was refused."""
    if not variant.passed or variant.measured is None:
        return f"{variant.name} refused: {'; '.join(variant.reasons)}"
    measured = variant.measured
    return f"{variant.name} passed: {speed_text(measured)}; {difference_text(measured, measured.difference)}"


def speed_text(measured: Measured) -> str:
    """Return "1.90 times as fast as fp32 on one sample and 3.20 times on 32"."""
    speedup = measured.speedup
    return (
        f"{speedup.single:.2f} times as fast as {FULL} on one sample and {speedup.batch:.2f} times on {measured.batch}"
    )


def difference_text(measured: Measured, difference: Interval) -> str:
    """Return a difference of the metric: "accuracy -0.35 points (CI -1.05 to +0.00)"."""
    low, high = sorted((difference.low, difference.high), key=lambda bound: bound * measured.unit)
    return (
        f"{measured.metric} {amount(measured, difference.value)}{' points' if measured.share else ''} "
        f"(CI {amount(measured, low)} to {amount(measured, high)})"
    )


def amount(measured: Measured, score: float) -> str:
    """Return a difference of scores in the metric's unit, with its sign: "-0.35"."""
    return f"{100 * score:+.2f}" if measured.share else f"{measured.unit * score:+.4g}"
