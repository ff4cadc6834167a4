"""The report of a run: one offline page with the gate's verdict first, then the metrics that explain it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ratchet.evaluation.details import ExplainedText
from ratchet.evaluation.importance import Importance
from ratchet.evaluation.metrics import Metrics
from ratchet.evaluation.predictions import Predictions
from ratchet.evaluation.wording import trivial_text
from ratchet.exports.variants import Variant
from ratchet.gate.verdict import Verdict, outcome
from ratchet.gate.verdict_text import message, rule_text
from ratchet.reports import inline_images, variant_table
from ratchet.reports.charts import COLOURS, Chart, Line, line_chart
from ratchet.reports.inline_images import ErrorExample, error_cards
from ratchet.reports.problem_pages import pages_of
from ratchet.reports.problem_sections import (
    ERROR_NOTE,
    ReportSection,
    Table,
    baseline_section,
    importance_section,
    text_sections,
)
from ratchet.reports.templating import render_html
from ratchet.urls import redacted

__all__ = ["ErrorExample", "ReportContent", "render"]

Epochs = Sequence[Mapping[str, float | None]]


@dataclass(frozen=True)
class ReportContent:
    """Everything the report shows. Any text in it may come from data: the page escapes it."""

    title: str
    verdict: Verdict | None  # None: not judged yet
    metrics: Metrics
    # Of each epoch: epoch, train/loss, train/accuracy, train/learning_rate, validation/loss, validation/accuracy
    history: Epochs = ()
    examples: Sequence[ErrorExample] = ()  # the most confident wrong predictions, worst first
    unexplained: str = ""  # why no example has contributions
    kind: str = "image"  # of the samples
    predictions: Predictions | None = None  # for the plots of numbers, and the errors of samples without an image
    importance: Importance | None = None  # of a table's columns
    texts: Sequence[ExplainedText] = ()  # the most confident wrong answers to texts, worst first
    generated: Sequence[tuple[str, str]] = ()  # prompts, and the text that a language model wrote after each
    variants: Sequence[Variant] = ()  # of the ONNX program
    manifest: Mapping[str, Any] = field(default_factory=dict)  # of the data: numbers, and named numbers
    settings: Mapping[str, Any] = field(default_factory=dict)
    lineage: Mapping[str, Any] = field(default_factory=dict)


def render(content: ReportContent) -> str:
    """Return the page as HTML; the same content gives the same text."""
    metrics, verdict, pages = content.metrics, content.verdict, pages_of(content.metrics)
    return render_html(
        "run_report.html.j2",
        title=content.title,
        verdict=verdict,
        summary=_summary(verdict) if verdict else "",
        rules=[(rule, outcome(rule), rule_text(rule, verdict.kind)) for rule in verdict.rules] if verdict else [],
        trivial=trivial_text(metrics.constant) if metrics.constant else "",
        metrics=metrics,
        curves=_curves(content.history, pages.curves),
        data=_flat(content.manifest),
        settings=_flat(content.settings),
        provenance=_flat(content.lineage),
        cards=list(metrics.named().values()),
        undefined=pages.undefined,
        no_interval=pages.no_interval,
        baseline=baseline_section(metrics.baseline, metrics.confidence, content.kind),
        sections=pages.sections(content.predictions, has_cards=bool(content.examples)),
        errors=error_cards(content.examples),
        error_note=ERROR_NOTE,
        error_colours=inline_images.COLOURS,
        unexplained=content.unexplained,
        features=[
            *importance_section(content.importance),
            *text_sections(content.texts, content.generated),
            *_variant_sections(content.variants),
        ],
    )


def _summary(verdict: Verdict) -> str:
    """Return the summary with the rules that failed or leave a doubt, and the comparison with the champion."""
    begin = message(verdict) if verdict.failed or verdict.doubts else f"{verdict.summary}."
    details = (rule_text(rule, verdict.kind).details for rule in verdict.rules)
    return " ".join([begin, *filter(None, details)])


def _curves(history: Epochs, own: Sequence[tuple[str, str]]) -> list[Chart]:
    """Draw loss, the problem's metrics and learning rate by epoch, as far as the history has them."""
    both = (("training", "train", COLOURS[1]), ("validation", "validation", COLOURS[0]))
    charts = []
    for title, metric, kinds in (
        ("Loss", "loss", both),
        *((title, metric, both) for title, metric in own),
        ("Learning rate", "learning_rate", (("learning rate", "train", COLOURS[0]),)),
    ):
        every = [Line(name, colour, _points(history, f"{split}/{metric}")) for name, split, colour in kinds]
        lines = [line for line in every if line.points]  # the legend names what is drawn
        drawing = line_chart(lines, name=f"{title} by epoch", x_label="epoch", share=metric == "accuracy")
        charts.append(Chart(title, drawing, lines))
    return [chart for chart in charts if chart.drawing]


def _points(history: Epochs, column: str) -> list[tuple[float, float]]:
    """Return (epoch, value) for each epoch whose value in this column is finite."""
    values = [(epoch.get("epoch"), epoch.get(column)) for epoch in history]
    return [(float(x), float(y)) for x, y in values if x is not None and y is not None and math.isfinite(y)]


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


def _variant_sections(variants: Sequence[Variant]) -> list[ReportSection]:
    if not variants:
        return []
    table = Table("", variant_table.HEADER, variant_table.rows(variants), "text")
    note = "Faster forms of the ONNX program, measured with one thread in alternation with fp32."
    return [ReportSection("Variants", note, variant_table.slice_sentences(variants), tables=[table])]
