"""Sections of the report as titles, tables and charts that one template renders, for any problem and kind of data."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from ratchet.evaluation.details import ExplainedText
from ratchet.evaluation.importance import Importance
from ratchet.evaluation.metrics import BaselineResult, Metrics, NamedMetric
from ratchet.evaluation.predictions import Predictions
from ratchet.evaluation.slices import Slice
from ratchet.evaluation.wording import baseline_text, range_text, signed_range, value_text
from ratchet.reports.charts import Chart, bar_chart
from ratchet.reports.number_text import decimal, percent

__all__ = [
    "ERROR_NOTE",
    "Cells",
    "ReportSection",
    "Table",
    "baseline_section",
    "error_section",
    "importance_section",
    "slice_section",
    "text_sections",
    "worst_slices",
]

ERROR_NOTE = "The worst predictions first. The target itself may be wrong: check it before you blame the model."
_LISTED = 24  # rows of a table
_IMPORTANT = 25  # features of the chart

Cells = Sequence[object]
_WORDS, _WORDS_SHOWN = 5, 60  # of a text: with the largest contributions, and shown


@dataclass(frozen=True)
class Table:
    """A table of plain values; the first column names the row."""

    title: str
    header: Sequence[str]
    rows: Sequence[Cells]
    style: Literal["narrow", "tight", "text"] = "narrow"  # tight: many numbers; text: long texts are wrapped


@dataclass(frozen=True)
class ReportSection:
    """A titled part of the page: sentences, then charts, then tables."""

    title: str
    note: str = ""
    sentences: Sequence[str] = ()
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = field(default_factory=tuple)


def baseline_section(result: BaselineResult | None, confidence: float, kind: str = "") -> list[ReportSection]:
    """Return the comparison with the baseline; nothing where there was none."""
    if result is None:
        return []
    ci = f"{100 * confidence:g} % CI"
    rows = [
        (label, value_text(metric), range_text(metric))
        for label, metric in (("this model", result.network), (result.name, result.headline))
    ]
    table = Table("On the same test samples", ["model", result.network.name, ci], rows)
    return [
        ReportSection("Baseline", sentences=[f"The model {baseline_text(result, confidence, kind)}."], tables=[table])
    ]


def worst_slices(metrics: Metrics) -> list[tuple[Slice, NamedMetric]]:
    """Return the slices with their metric: those that are significantly worse first, then by their gap."""
    sign = 1 if metrics.row_metric.larger_is_better else -1
    ordered = sorted(metrics.slices, key=lambda part: (not part.is_worse, sign * part.gap.value))
    return [(part, metrics.of_slice(part)) for part in ordered]


def slice_section(metrics: Metrics) -> list[ReportSection]:
    """Return the metric of each slice; nothing where there are no slices."""
    if not metrics.slices:
        return []
    ordered, name, table = worst_slices(metrics), metrics.row_metric.title, metrics.table()
    others = [(key, table[key]) for key in ordered[0][0].others]
    rows = [
        (
            f"{part.column}: {part.value}",
            part.rows,
            value_text(mean),
            range_text(mean),
            signed_range(part.gap, share=mean.share),
            *(percent(part.others[key]) if line.share else decimal(part.others[key]) for key, line in others),
        )
        for part, mean in ordered
    ]
    worse = [
        f"{part.column}: {part.value} is significantly worse than the rest: {signed_range(part.gap, share=mean.share)}."
        for part, mean in ordered
        if part.is_worse
    ]
    note = (
        f"Slices of the test samples, the worst {name} first. Gap: {name} on the slice minus {name} on all other "
        "samples, with an interval that is corrected for the number of slices."
    )
    header = [
        "slice",
        "samples",
        name,
        f"{100 * metrics.confidence:g} % CI",
        "gap",
        *(line.title for _, line in others),
    ]
    sentences = worse[:5] or ["No slice is significantly worse than the rest."]
    return [ReportSection("Slices", note, sentences, tables=[Table("", header, rows)])]


def error_section(predictions: Predictions) -> ReportSection:
    """Return the samples with the largest errors."""
    rows = [
        (
            predictions.ids[row],
            predictions.truth(row),
            predictions.answer(row),
            *([] if (sureness := predictions.sureness(row)) is None else [percent(sureness)]),
        )
        for row in predictions.worst_errors(_LISTED)
    ]
    if not rows:
        return ReportSection("Largest errors", sentences=["None: all predictions are right."])
    header = ["sample", "true", "predicted", "confidence"][: len(rows[0])]
    return ReportSection("Largest errors", ERROR_NOTE, tables=[Table("", header, rows)])


def text_sections(texts: Sequence[ExplainedText], generated: Sequence[tuple[str, str]]) -> list[ReportSection]:
    """Return the sections of texts: the words of wrong answers, and generated text."""
    sections = []
    if texts:
        rows = []
        for text in texts:
            ordered = sorted(text.contributions, key=lambda word: -word[1])
            speaks = [", ".join(f"{word} {value:+.2f}" for word, value in part if value) for part in _ends(ordered)]
            rows.append((text.id, " ".join(word for word, _ in text.contributions[:_WORDS_SHOWN]), *speaks))
        note = (
            "The most confident wrong answers. A word speaks for the answer by as much as the answer's logit falls "
            "without it."
        )
        table = Table("", ["sample", "text", "words for the answer", "words against it"], rows, "text")
        sections.append(ReportSection("Words of the largest errors", note, tables=[table]))
    if generated:
        note = "Text that the model wrote after prompts from the test part, at temperature 0.8."
        table = Table("", ["prompt", "continuation"], list(generated), "text")
        sections.append(ReportSection("Generated text", note, tables=[table]))
    return sections


def _ends(ordered: Sequence[tuple[str, float]]) -> tuple[Sequence[tuple[str, float]], Sequence[tuple[str, float]]]:
    """Return the words with the largest positive contributions, and those with the largest negative ones."""
    positive = [word for word in ordered if word[1] > 0]
    negative = [word for word in reversed(ordered) if word[1] < 0]
    return positive[:_WORDS], negative[:_WORDS]


def importance_section(importance: Importance | None) -> list[ReportSection]:
    """Return the section of the importance of a table's columns; nothing where it was not measured."""
    if importance is None:
        return []
    ordered = sorted(importance.columns, key=lambda column: -column.drop.value)
    bars = [(column.name, column.drop) for column in ordered[:_IMPORTANT]]
    label = f"change of {importance.metric} for the worse"
    chart = Chart("Importance", bar_chart(bars, name="Feature importance", x_label=label))
    rows = [(column.name, signed_range(column.drop)) for column in ordered]
    note = (
        f"How much worse {importance.metric} becomes when the values of one column are shuffled among "
        f"{importance.rows:,} test samples ({importance.repeats} times). Columns that say the same hide each other."
    )
    if importance.left_out:
        note += (
            f" Only the {len(importance.columns):,} columns that correlate most with the predictions are measured, "
            f"the other {importance.left_out:,} are not."
        )
    table = Table("All columns", ["column", f"change ({100 * importance.confidence:g} % CI)"], rows)
    return [ReportSection("Feature importance", note, charts=[chart], tables=[table])]
