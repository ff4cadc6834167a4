"""Content of `ratchet compare` and `ratchet trace` for terminal and page. Equal arguments give equal text."""

from collections.abc import Sequence

from ratchet.provenance.comparison import Change, Comparison, Flip
from ratchet.provenance.lineage import Link
from ratchet.reports.numbers import measured, setting
from ratchet.reports.problem_sections import ReportSection, Table
from ratchet.reports.templating import render_html

__all__ = ["comparison_page", "comparison_sections", "trace_page"]

_ON_PAGE = 1000  # samples of each kind


def trace_page(name: str, summary: Sequence[str], chains: Sequence[Link]) -> str:
    """Return the page for `name`, which `summary` describes: the chain from data to versions as a tree."""
    return render_html("trace.html.j2", name=name, summary=summary, chains=chains)


def comparison_page(comparison: Comparison) -> str:
    """Return the page of a comparison: its result first, then what differs."""
    answers = comparison.answers
    accuracy = answers.accuracy if answers else None
    return render_html(
        "comparison.html.j2",
        names=comparison.names,
        points=100 * accuracy.value if accuracy else None,
        verdict="" if accuracy is None else "good" if accuracy.low > 0 else "bad" if accuracy.high < 0 else "",
        summary=answers.summary if answers else "The predictions on the test samples could not be compared.",
        sections=comparison_sections(comparison, most=_ON_PAGE),
    )


def comparison_sections(comparison: Comparison, *, most: int) -> list[ReportSection]:
    """Return what differs, with at most `most` samples of each kind (0: all)."""
    code = [_versions("the same commit", comparison.code.commits), *comparison.code.stat]
    code += [f"uncommitted: {name}: {where}" for name, where in comparison.code.patched.items()]
    code += [] if comparison.code.patched else ["nothing uncommitted differs"]
    data = [_versions("the same", comparison.data)]
    if comparison.samples is not None:
        data += [*comparison.samples.lines(most), comparison.samples.summary]
    metrics = [(metric.name, measured(metric.before), measured(metric.after)) for metric in comparison.metrics]
    sections = [
        ReportSection("Warnings", sentences=comparison.doubts),
        ReportSection("Code", sentences=code),
        _changes("Settings", comparison.settings, "the same"),
        ReportSection("Data", sentences=data),
        _changes("Environment", comparison.environment, "the same, or not recorded for both"),
        ReportSection("Test metrics", tables=[Table("", ["", "A", "B"], metrics, "text")] if metrics else []),
        ReportSection("Not compared", sentences=comparison.missing),
    ]
    if answers := comparison.answers:
        flips = [_flips("Right -> wrong", answers.worse, most), _flips("Wrong -> right", answers.better, most)]
        sections[-1:-1] = [ReportSection("Test samples", sentences=[answers.summary]), *flips]
    return [section for section in sections if section.sentences or section.tables]


def _versions(same: str, versions: tuple[str | None, str | None]) -> str:
    a, b = (version or "unknown" for version in versions)
    return "unknown for both" if versions == (None, None) else f"{same}, {a}" if a == b else f"{a} -> {b}"


def _changes(title: str, changes: Sequence[Change] | None, same: str) -> ReportSection:
    """Return a section of settings or packages; an empty one if they are unknown."""
    rows = [(change.name, setting(change.before), setting(change.after)) for change in changes or ()]
    tables = [Table("", ["", "A", "B"], rows, "text")] if rows else []
    return ReportSection(title, sentences=[same] if changes is not None and not rows else [], tables=tables)


def _flips(title: str, flips: Sequence[Flip], most: int) -> ReportSection:
    shown = flips[:most] if most else flips
    lines = [f"{flip.id}: {flip.label}, predicted {flip.before} -> {flip.after}" for flip in shown]
    lines += [f"... and {len(flips) - len(shown):,} more: --most 0 lists all"] if len(shown) < len(flips) else []
    return ReportSection(f"{title}: {len(flips):,}", sentences=lines)
