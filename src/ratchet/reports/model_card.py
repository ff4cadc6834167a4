"""The model card of a version: its performance, limitations and origin, as Markdown and as an HTML page.

Both are rendered from the same template, model_card_text.j2. After Mitchell et al., "Model Cards for Model Reporting"
(2019).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ratchet.cost import TrainingCost
from ratchet.evaluation.metrics import Metrics
from ratchet.evaluation.robustness import Robustness
from ratchet.evaluation.wording import (
    baseline_text,
    constant_sentence,
    range_text,
    value_text,
)
from ratchet.exports.program import PROGRAM
from ratchet.exports.variants import Variant
from ratchet.gate.verdict import RuleOutcome, Verdict, outcome
from ratchet.gate.verdict_text import message, rule_text
from ratchet.kinds import Input
from ratchet.kinds.registry import kind_of, noun_of
from ratchet.reports import templating, variant_table
from ratchet.reports.abstention_text import abstention_table
from ratchet.reports.coverage_text import coverage_table
from ratchet.reports.number_text import percent, setting
from ratchet.reports.problem_pages import pages_of
from ratchet.reports.problem_sections import Table, worst_slices
from ratchet.urls import redacted

__all__ = ["CardContent", "description", "render_html", "render_markdown"]

Rows = Sequence[Sequence[object]]

_OUTCOMES: Mapping[RuleOutcome, str] = MappingProxyType({"passed": "yes", "doubt": "not shown", "failed": "no"})
_LISTED = 8  # slices


@dataclass(frozen=True)
class CardContent:
    """Everything the card is made from. Any text in it may come from data: both forms escape it."""

    name: str
    number: str
    purpose: str  # in the user's words; "": not given
    verdict: Verdict
    metrics: Metrics
    input: Input  # of the model
    data: Mapping[str, Any]  # its name, source and version, and counts
    rows: Mapping[str, int]  # samples of each split
    quarantined: Mapping[str, int]  # samples by rule
    model: Mapping[str, Any]  # architecture and results of training
    settings: Mapping[str, tuple[Any, Any]]  # settings that are not the default, with the default
    cost: TrainingCost | None  # of the training; None: not measured here
    checksums: Mapping[str, str]  # SHA-256 (hex) of the stored files
    address: str  # MLflow's, without a password
    lineage: Mapping[str, Any] = field(default_factory=dict)
    variants: Sequence[Variant] = ()  # of the ONNX program


def render_markdown(content: CardContent) -> str:
    """Return the card as Markdown; the same content gives the same text."""
    return templating.render_markdown("model_card.md.j2", **_values(content))


def render_html(content: CardContent) -> str:
    """Return the card as an offline page; the same content gives the same text."""
    return templating.render_html("model_card.html.j2", **_values(content))


def description(content: CardContent) -> str:
    """Return the card's opening and most serious warning as Markdown: the version's description in MLflow."""
    return templating.render_markdown("model_card_description.md.j2", **_values(content)).rstrip("\n")


def _values(content: CardContent) -> dict[str, object]:
    verdict, kind = content.verdict, kind_of(content.input)
    rules = [(rule, rule_text(rule, verdict.kind)) for rule in verdict.rules]
    split_rows = {f"{split} {kind.unit}": count for split, count in content.rows.items()}
    quarantined = ", ".join(f"{rule} {count:,}" for rule, count in content.quarantined.items())
    return {
        "content": content,
        **_performance(content),
        "verdict": message(verdict),
        "rules": [(rule.name, _OUTCOMES[outcome(rule)], text.measured, text.limit) for rule, text in rules],
        "input": kind.summary(content.input),
        "program": _program(content),
        "variants_header": list(variant_table.HEADER),
        "variants": variant_table.rows(content.variants),
        "data": {**content.data, **split_rows, "quarantined": quarantined or "none"},
        "model": {
            **content.model,
            "cost": content.cost.summary if content.cost else "unknown: it was not trained here",
        },
        "settings": [(key, *(redacted(setting(value)) for value in pair)) for key, pair in content.settings.items()],
        "checksums": list(content.checksums.items()),
    }


def _performance(content: CardContent) -> dict[str, object]:
    """Return the values about the metrics."""
    metrics, kind = content.metrics, content.verdict.kind
    pages, samples = pages_of(metrics), noun_of(kind)[1]
    headline, measured, level = metrics.headline, pages.robustness, metrics.confidence
    table = Table("", [], []) if pages.lowest_recall else pages.table  # that of many classes would be long
    return {
        "metrics": metrics,
        "task": pages.task(samples),
        "headline_metric": headline.name[:1].upper() + headline.name[1:],
        "baseline": f"The model {baseline_text(metrics.baseline, level, kind)}." if metrics.baseline else "",
        "trivial": constant_sentence(metrics.constant, level, metrics.rows, kind) if metrics.constant else "",
        "samples": samples,
        "output": pages.output,
        "reach": pages.reach,
        "slice_metric": metrics.row_metric.title,
        "target_header": list(table.header),
        "target_rows": table.rows,
        "level": percent(level, 0),
        "warnings": pages.limits(),
        "coverage_header": list(coverage_table(metrics).header),
        "coverage": coverage_table(metrics).rows,
        "abstention_header": list(abstention_table(metrics).header),
        "abstention": abstention_table(metrics).rows,
        "headline": [
            *((metric.name, value_text(metric), range_text(metric)) for metric in metrics.named().values()),
            *((name, f"{value:.4f}", "no interval") for name, value in pages.undefined.items()),
        ],
        "no_interval": pages.no_interval,
        "lowest_recall": pages.lowest_recall,
        "lowest_slices": _lowest_slices(metrics),
        "corrupted_samples": measured.rows if measured else 0,
        "corruptions": _corruptions(measured) if measured else [],
    }


def _feeds(input_spec: Input) -> list[str]:
    names = kind_of(input_spec).array_names(input_spec)
    return [f"{name!r}: {'inputs' if len(names) == 1 else name}" for name in names]


def _lowest_slices(metrics: Metrics) -> Rows:
    return [
        (f"{part.column}: {part.value}", value_text(mean), range_text(mean), part.rows, part.is_worse)
        for part, mean in worst_slices(metrics)[:_LISTED]
    ]


def _corruptions(robustness: Robustness) -> Rows:
    return [
        (kind, percent(robustness.mean(kind)), percent(strengths[0].value), percent(strengths[-1].value))
        for kind, strengths in robustness.corrupted.items()
    ]


def _program(content: CardContent) -> str:
    """Return the lines of Python that load the model and predict."""
    uri = f"models:/{content.name}/{content.number}"
    pages = pages_of(content.metrics)
    target, width = pages.variable, pages.width
    kind = kind_of(content.input)
    argument, answer = "inputs", f"{kind.argument(content.input)} -> float32 (n, {width})"
    if kind.generates:
        argument, answer = '["Once upon"], params={"max_tokens": 100}', "one text for each prompt"
    lines = [
        "import mlflow",
        "",
        f"mlflow.set_tracking_uri({content.address!r})",
        f"model = mlflow.pyfunc.load_model({uri!r})",
        f"{'texts' if kind.generates else target} = model.predict({argument})  # {answer}",
    ]
    if PROGRAM in content.checksums:
        lines += [
            "",
            "# The same as an ONNX program, without PyTorch or ratchet",
            "import onnxruntime",
            "",
            f"folder = mlflow.artifacts.download_artifacts({uri!r})",
            f'session = onnxruntime.InferenceSession(f"{{folder}}/data/model/{PROGRAM}")',
            f"({target},) = session.run(None, {{{', '.join(_feeds(content.input))}}})",
        ]
    return "\n".join(lines)
