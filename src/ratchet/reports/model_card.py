"""The model card of a version: its performance, limitations and origin, as Markdown and as an HTML page.

Both are rendered from the same template, model_card_text.j2. After Mitchell et al., "Model Cards for Model Reporting"
(2019).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ratchet.cost import Cost
from ratchet.evaluation.classification import ClassificationMetrics
from ratchet.evaluation.intervals import share_interval
from ratchet.evaluation.limits import FEW_IMAGES, find_limits
from ratchet.evaluation.metrics import Metrics, NamedMetric
from ratchet.evaluation.multi_label import MultiLabelMetrics
from ratchet.evaluation.regression import RegressionMetrics
from ratchet.evaluation.robustness import Robustness
from ratchet.evaluation.wording import (
    SAMPLES,
    baseline_sentence,
    constant_sentence,
    metric_text,
    range_text,
    value_text,
)
from ratchet.exports.program import PROGRAM
from ratchet.exports.variants import Variant
from ratchet.gate.text import message, rule_text
from ratchet.gate.verdict import RuleOutcome, Verdict, outcome
from ratchet.kinds import Input
from ratchet.kinds.registry import kind_of
from ratchet.reports import templating, variant_table
from ratchet.reports.numbers import percent, percent_range, setting
from ratchet.reports.problem_sections import target_table, worst_slices
from ratchet.urls import redacted

__all__ = ["CardContent", "description", "limit_sentences", "render_html", "render_markdown"]

Rows = Sequence[Sequence[object]]

_OUTCOMES: Mapping[RuleOutcome, str] = MappingProxyType({"passed": "yes", "doubt": "not shown", "failed": "no"})
_LISTED = 8  # of slices and classes
_WEAK = 5  # classes or slices that are named as a limit, each with a sentence
_CLASSES = 12  # named in a sentence
_FEW_ROWS = 1000  # test samples of numbers, labels or pieces; with fewer the test set counts as small
_OUTPUTS: Mapping[str, str] = {
    "classification": "a probability for each class",
    "regression": "the numbers in their own units",
    "multi-label": "a probability for each label",
    "next-token": "the continuation of each prompt",
}


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
    cost: Cost | None  # of the training; None: not measured here
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
    metrics, unused = content.metrics, content.verdict.unused
    robustness = metrics.robustness if isinstance(metrics, ClassificationMetrics) else None
    measured = robustness if isinstance(robustness, Robustness) else None
    rules = [(rule, rule_text(rule, content.verdict.kind)) for rule in content.verdict.rules]
    unit = kind_of(content.input).unit
    samples = {f"{split} {unit}": count for split, count in content.rows.items()}
    quarantined = ", ".join(f"{rule} {count:,}" for rule, count in content.quarantined.items())
    target, headline, kind = target_table(metrics), metrics.headline, content.verdict.kind
    return {
        "content": content,
        "metrics": metrics,
        "task": _task(content),
        "headline_metric": headline.name[:1].upper() + headline.name[1:],
        "baseline": baseline_sentence(metrics.baseline, metrics.confidence, kind) if metrics.baseline else "",
        "samples": SAMPLES.get(content.verdict.kind, ("sample", "samples"))[1],
        "output": _OUTPUTS[metrics.problem],
        "target_header": list(target.header),
        "target_rows": target.rows,
        "level": percent(metrics.confidence, 0),
        "verdict": message(content.verdict),
        "warnings": limit_sentences(metrics),
        "headline": _headline(metrics),
        "unused": unused,
        "unused_metric": _unused(content),
        "lowest_recall": _lowest_recall(metrics),
        "lowest_slices": _lowest_slices(metrics),
        "corrupted_samples": measured.rows if measured else 0,
        "corruptions": _corruptions(measured) if measured else [],
        "rules": [(rule.name, _OUTCOMES[outcome(rule)], text.measured, text.limit) for rule, text in rules],
        "trivial": constant_sentence(metrics.constant, metrics.confidence, metrics.rows, kind)
        if metrics.constant
        else "",
        "few": _few(metrics),
        "input": kind_of(content.input).summary(content.input),
        "program": _program(content),
        "variants_header": list(variant_table.HEADER),
        "variants": variant_table.rows(content.variants),
        "data": {**content.data, **samples, "quarantined": quarantined or "none"},
        "model": {
            **content.model,
            "cost": content.cost.summary if content.cost else "unknown: it was not trained here",
        },
        "settings": [(key, *(redacted(setting(value)) for value in pair)) for key, pair in content.settings.items()],
        "checksums": list(content.checksums.items()),
    }


def _few(metrics: Metrics) -> str:
    """Return why F1 and ROC-AUC have no interval; nothing where they have one."""
    if not isinstance(metrics, ClassificationMetrics) or metrics.rare is None:
        return ""
    name, rows = metrics.rare
    return f"Too few samples of class {name} ({rows:,}) for an interval of F1 and ROC-AUC."


def _task(content: CardContent) -> str:
    """Return what the model does, in one sentence."""
    metrics, samples = content.metrics, SAMPLES.get(content.verdict.kind, ("sample", "samples"))[1]
    match metrics:
        case ClassificationMetrics():
            return f"Classifies {samples} into {len(metrics.classes):,} classes: {_first(metrics.classes)}."
        case RegressionMetrics():
            return f"Predicts {_first([number.name for number in metrics.per_number])} of {samples}."
        case MultiLabelMetrics():
            names = [label.name for label in metrics.per_label]
            return f"Gives {samples} any of {len(names):,} labels: {_first(names)}."
        case _:
            return "Predicts the next token of a text."


def _first(names: Sequence[str]) -> str:
    more = f" and {len(names) - _CLASSES:,} more" if len(names) > _CLASSES else ""
    return ", ".join(names[:_CLASSES]) + more


def _unused(content: CardContent) -> NamedMetric | None:
    """Return the metric on the samples that no comparison used; None: there are none."""
    unused = content.verdict.unused
    if unused is None or unused.metric is not None:
        return unused.metric if unused else None
    accuracy = share_interval(unused.right, unused.rows, confidence=content.metrics.confidence)
    return NamedMetric("accuracy", "accuracy", accuracy, share=True)


def _feeds(described: Input) -> list[str]:
    names = kind_of(described).array_names(described)
    return [f"{name!r}: {'inputs' if len(names) == 1 else name}" for name in names]


def _headline(metrics: Metrics) -> Rows:
    if not isinstance(metrics, ClassificationMetrics):
        return [(metric.name, value_text(metric), range_text(metric)) for metric in metrics.named().values()]
    intervals = {
        "accuracy": metrics.accuracy,
        "balanced accuracy": metrics.balanced_accuracy,
        f"top-{metrics.k} accuracy": metrics.top_k,
        "macro F1": metrics.macro_f1,
        "log loss": metrics.log_loss,
        "calibration error (ECE)": metrics.ece,
        "ROC-AUC": metrics.roc_auc_interval,
    }
    rows = [
        (name, f"{metric.value:.4f}", f"{metric.low:.4f} to {metric.high:.4f}")
        for name, metric in intervals.items()
        if metric is not None
    ]
    if metrics.rare is None:
        return rows
    values = {"macro F1": metrics.macro.f1, "ROC-AUC": metrics.roc_auc}
    return rows + [(name, f"{value:.4f}", "too few samples") for name, value in values.items() if value is not None]


def _lowest_recall(metrics: Metrics) -> Rows:
    if not isinstance(metrics, ClassificationMetrics):
        return []
    tested = [(row.recall, row.name, row) for row in metrics.per_class if row.recall is not None]
    lowest = sorted(tested, key=lambda item: item[:2])[:_LISTED]
    return [
        (name, percent(recall), None if row.precision is None else percent(row.precision), row.support)
        for recall, name, row in lowest
    ]


def _lowest_slices(metrics: Metrics) -> Rows:
    if not isinstance(metrics, ClassificationMetrics):
        return [
            (f"{part.column}: {part.value}", value_text(mean), range_text(mean), part.rows, part.is_worse)
            for part, mean in worst_slices(metrics)[:_LISTED]
        ]
    return [
        (
            f"{slice.column}: {slice.value}",
            percent(slice.mean.value),
            percent_range(slice.mean),
            slice.rows,
            slice.is_worse,
        )
        for slice in sorted(metrics.slices, key=lambda slice: slice.gap.value)[:_LISTED]
    ]


def _corruptions(robustness: Robustness) -> Rows:
    return [
        (kind, percent(robustness.mean(kind)), percent(strengths[0].value), percent(strengths[-1].value))
        for kind, strengths in robustness.corrupted.items()
    ]


def _program(content: CardContent) -> str:
    """Return the lines of Python that load the model and predict."""
    uri = f"models:/{content.name}/{content.number}"
    target, width = _answers(content.metrics)
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


def _answers(metrics: Metrics) -> tuple[str, object]:
    """Return a variable for what `predict` returns, and its width."""
    match metrics:
        case ClassificationMetrics():
            return "probabilities", len(metrics.classes)
        case MultiLabelMetrics():
            return "probabilities", len(metrics.per_label)
        case RegressionMetrics():
            return "numbers", len(metrics.per_number)
        case _:
            return "logits", "context, tokens"


def limit_sentences(metrics: Metrics) -> list[str]:
    """Return one sentence for each limit of the model, the most serious first; none where there are no limits."""
    if not isinstance(metrics, ClassificationMetrics):
        return _other_limits(metrics)
    return [*_baseline_limit(metrics), *_class_limits(metrics)]


def _baseline_limit(metrics: Metrics) -> list[str]:
    result = metrics.baseline
    constant, level = metrics.constant, metrics.confidence
    useless = [] if constant is None or constant.is_better else [constant_sentence(constant, level, metrics.rows)]
    return useless + ([] if result is None or result.network_is_better else [baseline_sentence(result, level)])


def _other_limits(metrics: Metrics) -> list[str]:
    """Return the limits that hold for every problem: the baseline, weak slices, labels without samples, few samples."""
    sentences = _baseline_limit(metrics)
    sentences += [
        f"Where {part.column} is {part.value}, {mean.name} is {value_text(mean)} on {part.rows:,} test samples "
        f"(CI {range_text(mean)}), significantly worse than on the others."
        for part, mean in worst_slices(metrics)[:_WEAK]
        if part.is_worse
    ]
    if isinstance(metrics, MultiLabelMetrics):
        untested = [label.name for label in metrics.per_label if not label.support]
        if untested:
            sentences.append(f"Not measured, because no test sample has the label: {_listed(untested)}.")
    if metrics.rows < _FEW_ROWS:
        sentences.append(
            f"Small test set ({metrics.rows:,} samples): {metric_text(metrics.headline, metrics.confidence)}. A "
            "smaller difference from another model may be chance."
        )
    return sentences


def _class_limits(metrics: ClassificationMetrics) -> list[str]:
    limits, sentences = find_limits(metrics), []
    for weak in limits.weak_classes[:_WEAK]:
        sentences.append(
            f"Recall of class {weak.name} is {percent(weak.recall.value)} on {weak.rows:,} test samples "
            f"(CI {percent_range(weak.recall)}), significantly below the overall accuracy."
        )
    if more := len(limits.weak_classes[_WEAK:]):
        sentences.append(f"Recall of {more:,} more classes is significantly below the overall accuracy.")
    for part in limits.weak_slices[:_WEAK]:
        sentences.append(
            f"Where {part.column} is {part.value}, accuracy is {percent(part.mean.value)} on {part.rows:,} test "
            f"samples (CI {percent_range(part.mean)}), significantly below the accuracy on the others."
        )
    if more := len(limits.weak_slices[_WEAK:]):
        sentences.append(f"Accuracy on {more:,} more slices is significantly below the accuracy on the others.")
    if limits.ece is not None:
        sentences.append(
            f"Calibration error (ECE) is {percent(limits.ece.value)} (CI {percent_range(limits.ece)}): do not read the "
            "probabilities as frequencies. evaluation.temperature_scaling may correct them."
        )
    if limits.untested:
        sentences.append(f"Not measured, because there are no test samples: {_listed(limits.untested)}.")
    if limits.barely_tested:
        counted = [f"{row.name} ({row.support:,})" for row in limits.barely_tested]
        sentences.append(f"Too few test samples for a reliable recall (fewer than {FEW_IMAGES}): {_listed(counted)}.")
    if limits.accuracy is not None:
        sentences.append(
            f"Small test set ({metrics.rows:,} samples): accuracy has a CI of {percent_range(limits.accuracy)}. A "
            "smaller difference from another model may be chance."
        )
    return sentences


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 2 * _WEAK:,} more" if len(names) > 2 * _WEAK else ""
    return ", ".join(names[: 2 * _WEAK]) + more
