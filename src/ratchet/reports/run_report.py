"""One offline page per run: the gate's verdict first, then why."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ratchet.evaluation.figures import Figures
from ratchet.gate.text import message, rule_text
from ratchet.gate.verdict import Verdict
from ratchet.reports import charts
from ratchet.reports.page import Cell, bars, document, figure, folded, pairs, points, section, text
from ratchet.reports.run_sections import (
    calibration_section,
    classes_section,
    confusion_section,
    headline_section,
    robustness_section,
    slices_section,
)
from ratchet.reports.worst_errors import Example, errors_section
from ratchet.urls import redacted

__all__ = ["Example", "ReportContent", "render"]

_LISTED = 30  # more than this, and a list shows its most telling part and folds the rest away


@dataclass(frozen=True)
class ReportContent:
    """All that the page says. Every text in it may come from data: the page escapes it."""

    title: str
    verdict: Verdict | None  # None: not judged yet
    figures: Figures
    # A dict per epoch: epoch, train/loss, train/accuracy, validation/loss, validation/accuracy, learning_rate
    history: Sequence[Mapping[str, float | None]] = ()
    examples: Sequence[Example] = ()  # the most confident wrong answers, worst first
    unexplained: str = ""  # why no example has its contributions
    manifest: Mapping[str, Any] = field(default_factory=dict)  # of the data: numbers, and named numbers
    settings: Mapping[str, Any] = field(default_factory=dict)
    lineage: Mapping[str, Any] = field(default_factory=dict)


def render(content: ReportContent) -> str:
    """The page as HTML: no script, no network; the same content gives the same text."""
    return document(
        content.title,
        [
            _verdict(content),
            headline_section(content.figures),
            _curves(content.history),
            confusion_section(content.figures),
            calibration_section(content.figures),
            slices_section(content.figures),
            robustness_section(content.figures),
            classes_section(content.figures),
            errors_section(content.figures, content.examples, unexplained=content.unexplained),
            _data(content.manifest),
            _settings(content.settings),
            _lineage(content.lineage),
        ],
    )


def _verdict(content: ReportContent) -> str:
    verdict = content.verdict
    over = f'<p class="over">{text(content.title)}</p>'
    if verdict is None:
        words = "These are the figures; no gate has been held against them yet."
        return f'<header class="verdict">{over}<h1>Not judged yet</h1><p class="words">{words}</p></header>'
    texts = [rule_text(rule) for rule in verdict.rules]
    rules = "".join(
        f'<li class="{"good" if rule.passed else "bad"}">{_mark(rule.passed)}<b>{text(rule.name)}</b>'
        f"<span>{text(rule_result.measured)}</span><small>needed: {text(rule_result.limit)}</small></li>"
        for rule, rule_result in zip(verdict.rules, texts, strict=True)
    )
    return (
        f'<header class="verdict {"good" if verdict.passed else "bad"}">{over}'
        f"<h1>{'Passed the gate' if verdict.passed else 'Refused by the gate'}</h1>"
        f'<p class="words">{text(_gist(verdict))}</p><ul class="rules">{rules}</ul>'
        f"{folded('details of every rule', points(each.details for each in texts))}</header>"
    )


def _gist(verdict: Verdict) -> str:
    """Return the summary with what decided it: the failed rules, or the comparison with the champion."""
    champion = [rule_text(rule).details for rule in verdict.rules if rule.name == "champion"]
    return message(verdict) if verdict.failed else " ".join([f"{verdict.summary}.", *champion])


def _mark(passed: bool) -> str:
    shape, name = ("M3 9.5l4 4 8-9", "holds") if passed else ("M4 4l10 10M14 4L4 14", "does not hold")
    return (
        f'<svg class="mark" viewBox="0 0 18 18" role="img" aria-label="{name}"><path d="{shape}" fill="none" '
        'stroke="currentColor" stroke-width="2.4" stroke-linecap="round" stroke-linejoin="round"/></svg>'
    )


def _curves(history: Sequence[Mapping[str, float | None]]) -> str:
    plots = []
    for name, columns, share in (
        ("Loss", (("training", "train/loss"), ("validation", "validation/loss")), False),
        ("Accuracy", (("training", "train/accuracy"), ("validation", "validation/accuracy")), True),
        ("Learning rate", (("learning rate", "train/learning_rate"),), False),
    ):
        colours = ("--two", "--one") if len(columns) > 1 else ("--one",)
        lines = [
            (label, colour, _points(history, column)) for (label, column), colour in zip(columns, colours, strict=True)
        ]
        drawing = charts.line_chart(lines, name=f"{name} by epoch", across="epoch", share=share)
        if drawing:
            plots.append(figure(name, drawing, charts.key(lines) if len(lines) > 1 else ""))
    return section("How it learned", f'<div class="plots">{"".join(plots)}</div>' if plots else "")


def _points(history: Sequence[Mapping[str, float | None]], column: str) -> list[tuple[float, float]]:
    """The defined points of one column over the epochs."""
    points = []
    for line in history:
        epoch, value = line.get("epoch"), line.get(column)
        if epoch is not None and value is not None and math.isfinite(value):
            points.append((float(epoch), float(value)))
    return points


def _data(manifest: Mapping[str, Any]) -> str:
    """Single values as pairs, named numbers as bars, named numbers of several kinds as a table."""
    single = {name: _plain(value) for name, value in manifest.items() if not isinstance(value, Mapping)}
    groups = []
    for name, value in manifest.items():
        if not isinstance(value, Mapping):
            continue
        title = name.replace("_", " ")
        if value and all(isinstance(one, Mapping) and isinstance(one.get("rows"), int) for one in value.values()):
            value = {part: one["rows"] for part, one in value.items()}  # files and digests stand in the manifest itself
        if not value:
            drawing = '<p class="none">none</p>'
        elif all(isinstance(one, int | float) and not isinstance(one, bool) for one in value.values()):
            drawing = _bars(value)
        else:
            drawing = pairs(_flat(value))
        groups.append(figure(title[:1].upper() + title[1:], drawing))
    return section("Data", pairs(single), f'<div class="columns">{"".join(groups)}</div>' if groups else "")


def _settings(settings: Mapping[str, Any]) -> str:
    """Single settings first, then each group folded behind its name: there are a hundred."""
    single = {name: _plain(value) for name, value in settings.items() if not isinstance(value, Mapping)}
    groups = [folded(name, pairs(_flat(value))) for name, value in settings.items() if isinstance(value, Mapping)]
    return section("Settings", pairs(single), *groups)


def _lineage(lineage: Mapping[str, Any]) -> str:
    return section(
        "Lineage", pairs({name: Cell(f"<code>{text(value)}</code>") for name, value in _flat(lineage).items()})
    )


def _bars(values: Mapping[str, float]) -> str:
    if len(values) <= _LISTED:
        return bars(values)
    ordered = dict(sorted(values.items(), key=lambda one: (-one[1], one[0])))
    names = list(ordered)
    half = _LISTED // 4
    ends = {name: ordered[name] for name in names[:half] + names[-half:]}
    return bars(ends) + folded(f"all {len(names):,}", bars(ordered))


def _flat(content: Mapping[str, Any], prefix: str = "") -> dict[str, object]:
    """Nested groups as dotted names."""
    flat: dict[str, object] = {}
    for name, value in content.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = _plain(value)
    return flat


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return None
    if isinstance(value, list | tuple):
        shown = ", ".join(f"{one:.4g}" if isinstance(one, float) else str(one) for one in value[:_LISTED])
        return f"{shown} and {len(value) - _LISTED:,} more" if len(value) > _LISTED else shown or None
    if isinstance(value, str):
        return redacted(value)
    return value
