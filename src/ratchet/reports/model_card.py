"""The model card of a version: its performance, limitations and origin, as Markdown and as an HTML page.

Both are rendered from the same template, model_card_text.j2. After Mitchell et al., "Model Cards for Model Reporting"
(2019).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ratchet.cost import Cost
from ratchet.evaluation.intervals import share_interval
from ratchet.evaluation.limits import FEW_IMAGES, find_limits
from ratchet.evaluation.metrics import Metrics
from ratchet.evaluation.robustness import Robustness
from ratchet.gate.text import message, rule_text
from ratchet.gate.verdict import Verdict
from ratchet.reports import templating
from ratchet.reports.numbers import percent, percent_range, setting
from ratchet.serving.program import INPUT, PROGRAM
from ratchet.urls import redacted

__all__ = ["CardContent", "description", "limit_sentences", "render_html", "render_markdown"]

Rows = Sequence[Sequence[object]]

_LISTED = 8  # of slices and classes
_WEAK = 5  # classes or slices that are named as a limit, each with a sentence
_CLASSES = 12  # named in a sentence


@dataclass(frozen=True)
class CardContent:
    """Everything the card is made from. Any text in it may come from data: both forms escape it."""

    name: str
    number: str
    purpose: str  # in the user's words; "": not given
    verdict: Verdict
    metrics: Metrics
    input: tuple[int, int, int]  # height, width and channels of one image
    dtype: str  # of its pixels
    data: Mapping[str, Any]  # its name, source and version, and counts
    rows: Mapping[str, int]  # samples of each split
    quarantined: Mapping[str, int]  # samples by rule
    model: Mapping[str, Any]  # architecture and results of training
    settings: Mapping[str, tuple[Any, Any]]  # settings that are not the default, with the default
    cost: Cost | None  # of the training; None: not measured here
    checksums: Mapping[str, str]  # SHA-256 (hex) of the stored files
    address: str  # MLflow's, without a password
    lineage: Mapping[str, Any] = field(default_factory=dict)


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
    metrics, unused, robustness = content.metrics, content.verdict.unused, content.metrics.robustness
    measured = robustness if isinstance(robustness, Robustness) else None
    rules = [(rule, rule_text(rule)) for rule in content.verdict.rules]
    samples = {f"{split} samples": count for split, count in content.rows.items()}
    quarantined = ", ".join(f"{rule} {count:,}" for rule, count in content.quarantined.items())
    return {
        "content": content,
        "metrics": metrics,
        "classes": ", ".join(metrics.classes[:_CLASSES]),
        "more_classes": max(0, len(metrics.classes) - _CLASSES),
        "level": percent(metrics.confidence, 0),
        "verdict": message(content.verdict),
        "warnings": limit_sentences(metrics),
        "headline": _headline(metrics),
        "unused": unused,
        "unused_accuracy": share_interval(unused.right, unused.rows, confidence=metrics.confidence) if unused else None,
        "lowest_recall": _lowest_recall(metrics),
        "lowest_slices": _lowest_slices(metrics),
        "corrupted_samples": measured.rows if measured else 0,
        "corruptions": _corruptions(measured) if measured else [],
        "rules": [(rule.name, rule.passed, text.measured, text.limit) for rule, text in rules],
        "shape": " x ".join(map(str, content.input)),
        "program": _program(content),
        "data": {**content.data, **samples, "quarantined": quarantined or "none"},
        "model": {
            **content.model,
            "cost": content.cost.summary if content.cost else "unknown: it was not trained here",
        },
        "settings": [(key, *(redacted(setting(value)) for value in pair)) for key, pair in content.settings.items()],
        "checksums": list(content.checksums.items()),
    }


def _headline(metrics: Metrics) -> Rows:
    intervals = {
        "accuracy": metrics.accuracy,
        f"top-{metrics.k} accuracy": metrics.top_k,
        "macro F1": metrics.macro_f1,
        "log loss": metrics.log_loss,
        "calibration error (ECE)": metrics.ece,
        "ROC-AUC": metrics.roc_auc_interval,
    }
    return [
        (name, f"{metric.value:.4f}", f"{metric.low:.4f} to {metric.high:.4f}")
        for name, metric in intervals.items()
        if metric is not None
    ]


def _lowest_recall(metrics: Metrics) -> Rows:
    tested = [(row.recall, row.name, row) for row in metrics.per_class if row.recall is not None]
    lowest = sorted(tested, key=lambda item: item[:2])[:_LISTED]
    return [
        (name, percent(recall), None if row.precision is None else percent(row.precision), row.support)
        for recall, name, row in lowest
    ]


def _lowest_slices(metrics: Metrics) -> Rows:
    return [
        (
            f"{slice.column}: {slice.value}",
            percent(slice.accuracy.value),
            percent_range(slice.accuracy),
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
    shape, classes = ", ".join(map(str, ("n", *content.input))), len(content.metrics.classes)
    lines = [
        "import mlflow",
        "",
        f"mlflow.set_tracking_uri({content.address!r})",
        f"model = mlflow.pyfunc.load_model({uri!r})",
        f"probabilities = model.predict(images)  # {content.dtype} ({shape}) -> float32 (n, {classes})",
    ]
    if PROGRAM in content.checksums:
        lines += [
            "",
            "# The same as an ONNX program, without PyTorch or ratchet",
            "import onnxruntime",
            "",
            f"folder = mlflow.artifacts.download_artifacts({uri!r})",
            f'session = onnxruntime.InferenceSession(f"{{folder}}/data/model/{PROGRAM}")',
            f"(probabilities,) = session.run(None, {{{INPUT!r}: images}})",
        ]
    return "\n".join(lines)


def limit_sentences(metrics: Metrics) -> list[str]:
    """Return one sentence for each limit of the model, the most serious first; none where there are no limits."""
    limits, sentences = find_limits(metrics), []
    for weak in limits.weak_classes[:_WEAK]:
        sentences.append(
            f"Recall of class {weak.name} is {percent(weak.recall.value)} on {weak.rows:,} test images "
            f"(CI {percent_range(weak.recall)}), significantly below the overall accuracy."
        )
    if more := len(limits.weak_classes[_WEAK:]):
        sentences.append(f"Recall of {more:,} more classes is significantly below the overall accuracy.")
    for part in limits.weak_slices[:_WEAK]:
        sentences.append(
            f"Where {part.column} is {part.value}, accuracy is {percent(part.accuracy.value)} on {part.rows:,} test "
            f"images (CI {percent_range(part.accuracy)}), significantly below the accuracy on the others."
        )
    if more := len(limits.weak_slices[_WEAK:]):
        sentences.append(f"Accuracy on {more:,} more slices is significantly below the accuracy on the others.")
    if limits.ece is not None:
        sentences.append(
            f"Calibration error (ECE) is {percent(limits.ece.value)} (CI {percent_range(limits.ece)}): do not read the "
            "probabilities as frequencies. evaluation.temperature_scaling may correct them."
        )
    if limits.untested:
        sentences.append(f"Not measured, because there are no test images: {_listed(limits.untested)}.")
    if limits.barely_tested:
        counted = [f"{row.name} ({row.support:,})" for row in limits.barely_tested]
        sentences.append(f"Too few test images for a reliable recall (fewer than {FEW_IMAGES}): {_listed(counted)}.")
    if limits.accuracy is not None:
        sentences.append(
            f"Small test set ({metrics.rows:,} images): accuracy has a CI of {percent_range(limits.accuracy)}. A "
            "smaller difference from another model may be chance."
        )
    return sentences


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 2 * _WEAK:,} more" if len(names) > 2 * _WEAK else ""
    return ", ".join(names[: 2 * _WEAK]) + more
