"""Verdicts as sentences for people: terminal, page and events."""

import math
from datetime import UTC, datetime

from ratchet.monitoring.rule import RULE, Alarm
from ratchet.monitoring.watch import State, WatchedVersion, current_versions

__all__ = ["alarm_text", "change_text", "lines", "summary", "time_text"]

_LARGEST = 700.0  # of a logarithm whose power is a float


def lines(state: State | None) -> list[str]:
    """Return a line for each served version."""
    if state is None:
        return []
    return [f"{name}: {summary(version, state)}" for name, version in current_versions(state).items()]


def summary(version: WatchedVersion, state: State) -> str:
    """Return the verdict about a version."""
    verdict, good = version.verdict, state.rule.good_windows
    late = int(version.closed[:, 2].sum())
    note = f"; {late:,} late rows are not judged" if late else ""
    note += f"; not watched, without rows: {', '.join(version.silent)}" if version.silent else ""
    if verdict.alarm:
        return alarm_text(verdict.alarm) + note
    if not verdict.judged:
        reference = "" if version.normal else f" ({len(version.latest)} windows for the reference so far)"
        return f"learning, {verdict.learned} of {good} windows{reference}{note}"
    learning = f" ({verdict.learning_classes} of {state.rule.classes} times of the {state.rule.season} still learn)"
    if state.rule.season == "none":
        learning = f"; ranks began again, {verdict.learned} of {good} windows are learned"
    return f"no drift in {verdict.judged} windows{learning if verdict.learning_classes else ''}{note}"


def alarm_text(alarm: Alarm) -> str:
    """Return what has changed, since when, and the evidence."""
    than = "from" if alarm.direction == "different" else "than"
    return (
        f"drift since {time_text(alarm.since)}: {alarm.feature} is {alarm.direction} {than} what is normal, by "
        f"{change_text(alarm.direction, alarm.effect)} (rule {RULE}, window {time_text(alarm.window)}, "
        f"evidence {_power(alarm.evidence)}, limit {_power(alarm.limit)})"
    )


def change_text(direction: str, effect: float) -> str:
    """Return the size of a change with its unit."""
    return f"{effect:.2f} {'total variation' if direction == 'different' else 'standard deviations'}"


def time_text(seconds: int) -> str:
    """Return a time as 2026-01-31 12:00 UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _power(logarithm: float) -> str:
    return (
        f"{math.exp(min(logarithm, _LARGEST)):,.0f}"
        if logarithm < math.log(1e6)
        else f"1e{logarithm / math.log(10):.0f}"
    )
