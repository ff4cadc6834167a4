"""Page of `ratchet monitor`: the verdict about each served version, what has changed, and the evidence over time."""

import math

import numpy as np

from ratchet.monitoring.drift_text import summary, time_text
from ratchet.monitoring.rule import RULE
from ratchet.monitoring.watch import State, WatchedVersion, current_versions
from ratchet.reports.charts import Chart, Line, line_chart
from ratchet.reports.problem_sections import ReportSection, Table
from ratchet.reports.templating import render_html

__all__ = ["drift_page"]

_FEATURES = 5  # whose bins are shown


def drift_page(state: State) -> str:
    """Return the page."""
    versions = current_versions(state)
    verdicts = [f"{name}: {summary(version, state)}" for name, version in versions.items()]
    sections = [section for name, version in versions.items() for section in _sections(name, version)]
    return render_html("drift.html.j2", verdicts=verdicts, sections=sections)


def _sections(name: str, version: WatchedVersion) -> list[ReportSection]:
    evidence = version.verdict.evidence
    if not evidence:
        return []
    scale = math.log(10)
    points = [(float(window), value / scale) for window, value in enumerate(evidence, start=1)]
    limit = version.verdict.limit / scale
    drawn = [
        Line("largest evidence, as a power of ten", "--series-1", points),
        Line("limit", "--bad", [(1.0, limit), (float(len(evidence)), limit)]),
    ]
    drawing = line_chart(drawn, name=f"Evidence of drift, {name}", x_label="window after the reference")
    chart = Chart(f"Evidence (rule {RULE})", drawing, drawn)
    note = f"Reference: the first {version.reference} windows, from {time_text(version.windows[0].start)}."
    return [
        ReportSection(f"{name}: evidence", note=note, charts=[chart]),
        ReportSection(f"{name}: what has changed", tables=_changes(version)),
    ]


def _changes(version: WatchedVersion) -> list[Table]:
    """Return the bins of the features that have changed most, before and after; that of the alarm is the first."""
    alarm, ranked = version.verdict.alarm, []
    later = [window for window in version.windows[version.reference :] if not alarm or window.start >= alarm.since]
    for layout in version.layouts or []:
        none = [0] * layout.bins
        before, after = (
            np.sum([window.counts.get(layout.name, none) for window in windows], axis=0)
            for windows in (version.windows[: version.reference], later)
        )
        if not before.sum() or not after.sum():
            continue
        shares = before / before.sum(), after / after.sum()
        change = float(np.abs(shares[0] - shares[1]).sum() / 2)
        is_first = alarm is not None and alarm.feature == layout.name
        rows = [
            (bin_name, f"{first:.1%}", f"{second:.1%}", f"{number:,}")
            for bin_name, first, second, number in zip(layout.names, *shares, after.tolist(), strict=True)
            if first or second
        ]
        title = f"{layout.name}: total variation {change:.2f}"
        ranked.append((is_first, change, Table(title, ["bin", "reference", "since then", "rows"], rows)))
    ranked.sort(key=lambda entry: entry[:2], reverse=True)
    return [table for *_, table in ranked[:_FEATURES]]
