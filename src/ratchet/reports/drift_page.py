"""Page of `ratchet monitor`: the verdict about each served version, what has changed, and the evidence over time."""

import math
from collections.abc import Sequence

from ratchet.monitoring.drift_text import change_text, summary
from ratchet.monitoring.rule import RULE, DriftRule, counts_of, effect, windows_between
from ratchet.monitoring.watch import State, WatchedVersion, current_versions
from ratchet.reports.charts import Chart, Line, line_chart
from ratchet.reports.problem_sections import ReportSection, Table
from ratchet.reports.templating import render_html

__all__ = ["drift_page"]

_FEATURES = 5  # whose bins are shown


def drift_page(state: State, quality: Sequence[str] = ()) -> str:
    """Return the page. `quality`: sentences about the quality of the versions."""
    versions = current_versions(state)
    verdicts = [f"{name}: {summary(version, state)}" for name, version in versions.items()] + [*quality]
    sections = [section for name, version in versions.items() for section in _sections(name, version, state.rule)]
    return render_html(
        "drift.html.j2",
        title="Drift",
        kicker="Requests of the served versions",
        verdicts=verdicts,
        sections=sections,
    )


def _sections(name: str, version: WatchedVersion, rule: DriftRule) -> list[ReportSection]:
    evidence = version.evidence
    if not evidence:
        return []
    scale = math.log(10)
    points = [(float(window), value / scale) for window, value in enumerate(evidence, start=1)]
    limit = version.verdict.limit / scale
    drawn = [
        Line("largest evidence, as a power of ten", "--series-1", points),
        Line("limit", "--bad", [(1.0, limit), (float(len(evidence)), limit)]),
    ]
    drawing = line_chart(drawn, name=f"Evidence of drift, {name}", x_label="judged window")
    chart = Chart(f"Evidence (rule {RULE})", drawing, drawn)
    note = f"Scores are distances from the first {version.first} windows, which are its reference."
    if not version.first:
        note = "Scores are distances from the test rows with which the version was registered."
    return [
        ReportSection(f"{name}: evidence", note=note, charts=[chart]),
        ReportSection(f"{name}: what has changed", tables=_changes(version, rule)),
    ]


def _changes(version: WatchedVersion, rule: DriftRule) -> list[Table]:
    """Return the bins of the features that have changed most, before and after; that of the alarm is the first.

    After an alarm the windows are those whose change it names.
    """
    alarm, ranked, later = version.verdict.alarm, [], version.latest
    assert version.normal is not None, "windows were judged"
    if alarm:
        later = windows_between(version.latest, alarm.since, alarm.window, rule)
    for layout in version.layouts:
        before, after = (counts_of(layout, windows).sum(0) for windows in ([version.normal], later))
        if not before.sum() or not after.sum():
            continue
        is_first = alarm is not None and alarm.feature == layout.name
        direction = alarm.direction if alarm and is_first else "different"
        change = effect(after, before, direction)
        rows = [
            (bin_name, f"{first:.1%}", f"{second:.1%}", f"{number:,}")
            for bin_name, first, second, number in zip(
                layout.names, before / before.sum(), after / after.sum(), after.tolist(), strict=True
            )
            if first or second
        ]
        title = f"{layout.name}: {change_text(direction, change)}"
        ranked.append((is_first, change, Table(title, ["bin", "normal", "since then", "rows"], rows)))
    ranked.sort(key=lambda entry: entry[:2], reverse=True)
    return [table for *_, table in ranked[:_FEATURES]]
