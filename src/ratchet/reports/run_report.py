"""The report of a run: one offline page with the gate's verdict first, then the metrics that explain it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ratchet.evaluation.figures import Figures
from ratchet.evaluation.robustness import NotMeasured
from ratchet.gate.verdict import Verdict
from ratchet.reports import run_sections
from ratchet.reports.templating import render_html
from ratchet.reports.worst_errors import Example, worst_errors
from ratchet.urls import redacted

__all__ = ["Example", "ReportContent", "render"]

_LISTED = 30  # longer lists of numbers show both ends and fold the others away


@dataclass(frozen=True)
class ReportContent:
    """Everything the report shows. Any text in it may come from data: the page escapes it."""

    title: str
    verdict: Verdict | None  # None: not judged yet
    figures: Figures
    # One mapping per epoch: epoch, train/loss, train/accuracy, validation/loss, validation/accuracy, learning_rate
    history: Sequence[Mapping[str, float | None]] = ()
    examples: Sequence[Example] = ()  # the most confident wrong predictions, worst first
    unexplained: str = ""  # why no example has contributions
    manifest: Mapping[str, Any] = field(default_factory=dict)  # of the data: numbers, and named numbers
    settings: Mapping[str, Any] = field(default_factory=dict)
    lineage: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RuleRow:
    """The result of one rule of the gate."""

    name: str
    passed: bool
    measured: str
    required: str
    details: str


@dataclass(frozen=True)
class Head:
    """The verdict, and what decided it."""

    passed: bool
    summary: str
    rules: Sequence[RuleRow]


@dataclass(frozen=True)
class Group:
    """Named values: either as bars, of which long lists fold most away, or as pairs."""

    title: str
    bars: Mapping[str, float]
    all_bars: Mapping[str, float]  # where `bars` are only both ends of them
    pairs: Mapping[str, object]


@dataclass(frozen=True)
class Values:
    """Single values, and groups of values."""

    single: Mapping[str, object]
    groups: Sequence[Group]


def render(content: ReportContent) -> str:
    """Return the page as HTML; the same content gives the same text."""
    figures = content.figures
    robustness = figures.robustness
    return render_html(
        "run_report.html.j2",
        title=content.title,
        head=_head(content.verdict) if content.verdict else None,
        figures=figures,
        curves=run_sections.curves(content.history),
        confusion=run_sections.confusion(figures),
        calibration=run_sections.calibration(figures),
        slices=run_sections.slices(figures),
        corruptions=run_sections.corruptions(robustness),
        not_measured=robustness.why if isinstance(robustness, NotMeasured) else "",
        classes=run_sections.classes(figures),
        errors=worst_errors(figures, content.examples, unexplained=content.unexplained),
        data=_data(content.manifest),
        settings=_settings(content.settings),
        provenance=_flat(content.lineage),
    )


def _head(verdict: Verdict) -> Head:
    """Summarize the verdict by the rules that failed, or else by the comparison with the champion."""
    ending = verdict.words.partition(". ")[0].removesuffix(".") + "."
    failed = [rule for rule in verdict.rules if not rule.passed]
    decisive = failed or [rule for rule in verdict.rules if rule.name == "champion"]
    rules = [RuleRow(rule.name, rule.passed, rule.found, rule.needed, rule.words) for rule in verdict.rules]
    return Head(verdict.passed, " ".join([ending, *(rule.words for rule in decisive)]), rules)


def _data(manifest: Mapping[str, Any]) -> Values:
    groups = [_group(name, value) for name, value in manifest.items() if isinstance(value, Mapping)]
    return Values(_single(manifest), groups)


def _settings(settings: Mapping[str, Any]) -> Values:
    groups = [Group(name, {}, {}, _flat(value)) for name, value in settings.items() if isinstance(value, Mapping)]
    return Values(_single(settings), groups)


def _single(content: Mapping[str, Any]) -> dict[str, object]:
    return {name: _plain(value) for name, value in content.items() if not isinstance(value, Mapping)}


def _group(name: str, values: Mapping[str, Any]) -> Group:
    if values and all(isinstance(value, Mapping) and isinstance(value.get("rows"), int) for value in values.values()):
        values = {split: value["rows"] for split, value in values.items()}  # not its files and digests
    title = name.replace("_", " ")
    title = title[:1].upper() + title[1:]
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values.values()):
        return Group(title, {}, {}, _flat(values))
    if len(values) <= _LISTED:
        return Group(title, values, {}, {})
    ordered = sorted(values.items(), key=lambda item: (-item[1], item[0]))
    end = _LISTED // 4
    return Group(title, dict(ordered[:end] + ordered[-end:]), dict(ordered), {})


def _flat(content: Mapping[str, Any], prefix: str = "") -> dict[str, object]:
    """Return nested groups as one, with dotted names."""
    flat: dict[str, object] = {}
    for name, value in content.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = _plain(value)
    return flat


def _plain(value: object) -> object:
    """Return a value as the page shows it: an empty mapping as nothing, addresses without their passwords."""
    if isinstance(value, Mapping):
        return None
    return redacted(value) if isinstance(value, str) else value
