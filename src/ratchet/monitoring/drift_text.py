"""Verdicts as sentences for people: terminal, page and events."""

import math
from datetime import UTC, datetime

from ratchet.monitoring.rule import RULE, Alarm
from ratchet.monitoring.watch import State, WatchedVersion, current_versions

__all__ = ["alarm_text", "lines", "summary", "time_text"]

_LARGEST = 700.0  # of a logarithm whose power is a float


def lines(state: State | None) -> list[str]:
    """Return a line for each served version."""
    if state is None:
        return []
    return [f"{name}: {summary(version, state)}" for name, version in current_versions(state).items()]


def summary(version: WatchedVersion, state: State) -> str:
    """Return the verdict about a version."""
    verdict, good = version.verdict, state.rule.good_windows
    late = sum(window.late for window in version.windows)
    note = f"; {late:,} late rows are not judged" if late else ""
    if verdict.alarm:
        return alarm_text(verdict.alarm) + note
    if not verdict.judged:
        reference = "" if version.layouts else f" ({len(version.windows)} windows for the reference so far)"
        return f"learning, {verdict.learned} of {good} windows{reference}{note}"
    learning = f" ({verdict.learning_classes} of {state.rule.classes} times of the {state.rule.season} still learn)"
    return f"no drift in {verdict.judged} windows{learning if verdict.learning_classes else ''}{note}"


def alarm_text(alarm: Alarm) -> str:
    """Return what has changed, since when, and the evidence."""
    unit = "total variation" if alarm.direction == "different" else "standard deviations"
    than = "from" if alarm.direction == "different" else "than"
    return (
        f"drift since {time_text(alarm.since)}: {alarm.feature} is {alarm.direction} {than} the reference, by "
        f"{alarm.effect:.2f} {unit} (rule {RULE}, window {time_text(alarm.window)}, evidence {_power(alarm.evidence)}, "
        f"limit {_power(alarm.limit)})"
    )


def time_text(seconds: int) -> str:
    """Return a time as 2026-01-31 12:00 UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _power(logarithm: float) -> str:
    return (
        f"{math.exp(min(logarithm, _LARGEST)):,.0f}"
        if logarithm < math.log(1e6)
        else f"1e{logarithm / math.log(10):.0f}"
    )
