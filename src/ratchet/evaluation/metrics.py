"""All metrics of one evaluation, as values that are written to JSON and read back. Each problem has its own class.

They share what the gate, the report and the command line need: `rows`, `confidence`, `headline`, `named()`,
`numbers()`, `slices` and `baseline`.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from ratchet.evaluation.calibration import Bin
from ratchet.evaluation.intervals import Interval
from ratchet.evaluation.robustness import NotMeasured, Robustness
from ratchet.evaluation.slices import ScoreSlice, Slice
from ratchet.typed_json import parse

__all__ = [
    "Averages",
    "BaselineResult",
    "ClassMetrics",
    "ClassificationMetrics",
    "ConstantResult",
    "LabelMetrics",
    "LanguageMetrics",
    "Metrics",
    "MultiLabelMetrics",
    "NamedMetric",
    "NumberMetrics",
    "RegressionMetrics",
    "read_metrics",
]

_INTERVALS = ("accuracy", "balanced_accuracy", "top_k", "macro_f1", "log_loss", "ece", "roc_auc_interval")
_NOT_IN_A_KEY = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(frozen=True)
class NamedMetric:
    """A metric with its interval, and how people read it."""

    key: str  # as in metrics.json and gate.minimum_metric
    name: str  # for people: "MAE"
    interval: Interval
    larger_is_better: bool = True
    share: bool = False  # shown in per cent


@dataclass(frozen=True)
class BaselineResult:
    """Comparison of the model with a baseline on the same test rows."""

    name: str  # such as "gradient boosting"
    headline: NamedMetric  # of the baseline
    network: NamedMetric  # the same metric of the model
    difference: Interval  # of the metric, paired by rows; above 0 where the model is better
    network_is_better: bool  # significantly, and also than the best constant answer
    rows: int = 0  # 0: written before it was recorded


@dataclass(frozen=True)
class ConstantResult:
    """Comparison of the model with the best constant answer to the same test rows."""

    name: str  # "always answering 'ants'"
    headline: NamedMetric  # of the model
    trivial: float  # the headline metric of the best constant answer
    metric: NamedMetric  # of the model: the one that decides
    constant: float  # the same metric of a constant answer
    difference: Interval  # of that metric; above 0 where the model is better
    smallest: float  # difference that so many rows can show
    answer: str = ""  # the model's most frequent answer; "": not known
    answered: int = 0  # rows that get it
    one_answer: bool = False  # the model gives it to nearly all rows, though the truth differs on clearly more

    @property
    def is_better(self) -> bool:
        """Whether the model is significantly better than any constant answer."""
        return self.difference.low > 0.0 and not self.one_answer

    @property
    def trivial_metric(self) -> NamedMetric:
        """The headline metric of the best constant answer, without an interval."""
        return replace(self.headline, interval=Interval(self.trivial, self.trivial, self.trivial))

    def with_common(self, answer: str, rows: int, one_answer: bool) -> "ConstantResult":
        """Return the comparison with the model's most frequent answer."""
        return replace(self, answer=answer, answered=rows, one_answer=one_answer)


@dataclass(frozen=True)
class ClassMetrics:
    """Metrics of one class. None: not defined; recall needs samples, precision needs predictions, F1 one of both."""

    name: str
    precision: float | None
    recall: float | None
    f1: float | None
    support: int
    predicted: int
    roc_auc: float | None
    pr_auc: float | None


@dataclass(frozen=True)
class Averages:
    """Means over the classes that occur among labels or predictions; an undefined value counts as 0."""

    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class ClassificationMetrics:
    """All metrics of a classifier on the test samples. None: not defined on these samples."""

    # The test samples
    rows: int
    classes: tuple[str, ...]
    confidence: float  # level of the intervals
    k: int  # of top-k accuracy
    # The headline
    accuracy: Interval
    top_k: Interval | None  # None where k reaches the number of classes: it would be 1
    macro_f1: Interval | None  # None: too few rows of a class for an interval; `macro` has the value
    log_loss: Interval
    ece: Interval
    roc_auc: float | None  # one class against the rest, mean over the classes that occur
    roc_auc_interval: Interval | None  # None also where it costs too much time, or a class has too few rows
    pr_auc: float | None  # average precision, mean over the classes that occur
    # The rest
    macro: Averages
    weighted: Averages  # by support
    per_class: tuple[ClassMetrics, ...]
    confusion: tuple[tuple[int, ...], ...]  # [actual][predicted]
    reliability: tuple[Bin, ...]
    slices: tuple[Slice, ...]
    robustness: Robustness | NotMeasured
    threshold: float = 0.5  # probability from which the second of two classes is predicted
    cost: Interval | None = None  # mean cost of a prediction; None: false positives and negatives cost the same
    balanced_accuracy: Interval | None = None  # mean recall; None: written before there was this metric
    rare: tuple[str, int] | None = None  # class with too few rows for these intervals, and its rows
    baseline: BaselineResult | None = None
    constant: ConstantResult | None = None
    problem: Literal["classification"] = "classification"

    @property
    def headline(self) -> NamedMetric:
        """The metric that people read first."""
        return self.named()["accuracy"]

    def named(self) -> dict[str, NamedMetric]:
        """Return the metrics with an interval by key: those that gate.minimum_metric can name."""
        metrics = (
            ("accuracy", "accuracy", self.accuracy, True, True),
            ("balanced_accuracy", "balanced accuracy", self.balanced_accuracy, True, True),
            ("top_k", f"top-{self.k} accuracy", self.top_k, True, True),
            ("macro_f1", "macro F1", self.macro_f1, True, True),
            ("roc_auc", "ROC-AUC", self.roc_auc_interval, True, False),
            ("log_loss", "log loss", self.log_loss, False, False),
            ("cost", "mean cost", self.cost, False, False),
        )
        return _named(metrics)

    def numbers(self) -> dict[str, float]:
        """Return the defined metrics by name, for DVC and MLflow; the bounds of intervals as NAME_low and NAME_high."""
        flat: dict[str, float] = {}
        for field in _INTERVALS:
            name = field.removesuffix("_interval")
            interval: Interval | None = getattr(self, field)
            if interval is not None:
                flat |= _bounds(name, interval)
        areas = {"macro_f1": self.macro.f1, "roc_auc": self.roc_auc, "pr_auc": self.pr_auc}
        flat |= {name: value for name, value in areas.items() if value is not None}
        flat |= {"macro_precision": self.macro.precision, "macro_recall": self.macro.recall}
        if isinstance(self.robustness, Robustness):
            flat |= self.robustness.numbers()
        if self.cost is not None:
            flat |= _bounds("cost", self.cost)
        return flat | {"weighted_f1": self.weighted.f1, "rows": float(self.rows)} | _comparisons(self)


@dataclass(frozen=True)
class NumberMetrics:
    """Metrics of one predicted number, in its own units, or means over several, in training standard deviations."""

    name: str
    mae: Interval
    rmse: Interval
    r2: Interval | None  # None: the true values do not differ
    median_error: Interval  # median absolute error
    bias: Interval  # mean of predicted minus true value
    mean_mae: float  # MAE of predicting the mean of the training targets, for reference
    mean_rmse: float  # RMSE of the same

    def named(self) -> dict[str, NamedMetric]:
        """Return the metrics with an interval by key."""
        metrics = (
            ("mae", "MAE", self.mae, False, False),
            ("rmse", "RMSE", self.rmse, False, False),
            ("r2", "R2", self.r2, True, False),
            ("median_error", "median absolute error", self.median_error, False, False),
        )
        return _named(metrics)


@dataclass(frozen=True)
class RegressionMetrics:
    """All metrics of predicted numbers on the test samples."""

    rows: int
    confidence: float
    average: NumberMetrics  # of the only number, or the mean over all in training standard deviations
    per_number: tuple[NumberMetrics, ...]
    slices: tuple[ScoreSlice, ...]
    baseline: BaselineResult | None = None
    constant: ConstantResult | None = None
    problem: Literal["regression"] = "regression"

    @property
    def headline(self) -> NamedMetric:
        return self.named()["mae"]

    def named(self) -> dict[str, NamedMetric]:
        """Return the metrics with an interval by key: those that gate.minimum_metric can name."""
        metrics = self.average.named()
        if len(self.per_number) == 1:
            return metrics
        return {
            key: metric if key == "r2" else NamedMetric(key, f"{metric.name} in SD", metric.interval, False)
            for key, metric in metrics.items()
        }

    def numbers(self) -> dict[str, float]:
        """Return the defined metrics by name, for DVC and MLflow; those of one of several numbers as NAME.METRIC."""
        flat = _flat(self.named()) | {"bias": self.average.bias.value, "mean_mae": self.average.mean_mae}
        if len(self.per_number) > 1:
            for number in self.per_number:
                flat |= {f"{_key(number.name)}.{key}": metric.interval.value for key, metric in number.named().items()}
        return flat | {"rows": float(self.rows)} | _comparisons(self)


@dataclass(frozen=True)
class LabelMetrics:
    """Metrics of one label. None: not defined; recall needs samples, precision needs predictions, F1 one of both."""

    name: str
    threshold: float  # probability from which it is predicted
    precision: float | None
    recall: float | None
    f1: float | None
    support: int
    predicted: int
    roc_auc: float | None
    f1_interval: Interval | None = None  # None also where too few rows have the label


@dataclass(frozen=True)
class MultiLabelMetrics:
    """All metrics of predicted labels on the test samples."""

    rows: int
    confidence: float
    micro_f1: Interval  # over all pairs of a sample and a label
    macro_f1: Interval  # mean over the labels that occur among targets or predictions
    right_labels: Interval  # share of all pairs of a sample and a label that are right
    exact_match: Interval  # share of samples all of whose labels are right
    roc_auc: float | None  # mean over the labels that have both kinds of samples
    per_label: tuple[LabelMetrics, ...]
    slices: tuple[ScoreSlice, ...]
    baseline: BaselineResult | None = None
    constant: ConstantResult | None = None
    problem: Literal["multi-label"] = "multi-label"

    @property
    def headline(self) -> NamedMetric:
        return self.named()["micro_f1"]

    def named(self) -> dict[str, NamedMetric]:
        """Return the metrics with an interval by key: those that gate.minimum_metric can name."""
        metrics = (
            ("micro_f1", "micro F1", self.micro_f1, True, True),
            ("macro_f1", "macro F1", self.macro_f1, True, True),
            ("exact_match", "exact match", self.exact_match, True, True),
            ("right_labels", "right labels", self.right_labels, True, True),
        )
        return _named(metrics)

    def numbers(self) -> dict[str, float]:
        """Return the defined metrics by name, for DVC and MLflow."""
        flat = _flat(self.named()) | ({} if self.roc_auc is None else {"roc_auc": self.roc_auc})
        return flat | {"rows": float(self.rows)} | _comparisons(self)


@dataclass(frozen=True)
class LanguageMetrics:
    """All metrics of predicted tokens on the test pieces of a text."""

    rows: int  # pieces
    tokens: int
    characters: int
    confidence: float
    loss: Interval  # nats per token
    perplexity: Interval  # per token
    bits_per_character: Interval
    bits_per_byte: Interval
    slices: tuple[ScoreSlice, ...] = ()
    baseline: BaselineResult | None = None
    constant: ConstantResult | None = None
    problem: Literal["next-token"] = "next-token"

    @property
    def headline(self) -> NamedMetric:
        return self.named()["bits_per_character"]

    def named(self) -> dict[str, NamedMetric]:
        """Return the metrics with an interval by key: those that gate.minimum_metric can name."""
        metrics = (
            ("loss", "loss", self.loss, False, False),
            ("perplexity", "perplexity", self.perplexity, False, False),
            ("bits_per_character", "bits per character", self.bits_per_character, False, False),
            ("bits_per_byte", "bits per byte", self.bits_per_byte, False, False),
        )
        return _named(metrics)

    def numbers(self) -> dict[str, float]:
        """Return the defined metrics by name, for DVC and MLflow."""
        sizes = {"rows": float(self.rows), "tokens": float(self.tokens), "characters": float(self.characters)}
        return _flat(self.named()) | sizes | _comparisons(self)


Metrics = ClassificationMetrics | RegressionMetrics | MultiLabelMetrics | LanguageMetrics

_KINDS: Mapping[str, Any] = MappingProxyType(
    {
        "classification": ClassificationMetrics, "regression": RegressionMetrics, "multi-label": MultiLabelMetrics,
        "next-token": LanguageMetrics,
    }
)  # fmt: skip


def read_metrics(reports: Path) -> Metrics:
    """Read the metrics of the last evaluation from the folder data/reports.

    Raises:
        ValueError: the file was not written by `evaluate`.
    """
    content = (reports / "evaluation.json").read_bytes()
    # A file without a problem was written when there was only classification
    metrics: Metrics = parse(_KINDS[json.loads(content).get("problem", "classification")], content)
    return metrics


def _named(metrics: tuple[tuple[str, str, Interval | None, bool, bool], ...]) -> dict[str, NamedMetric]:
    return {
        key: NamedMetric(key, name, interval, larger_is_better=larger, share=share)
        for key, name, interval, larger, share in metrics
        if interval is not None
    }


def _bounds(name: str, interval: Interval) -> dict[str, float]:
    return {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}


def _flat(metrics: Mapping[str, NamedMetric]) -> dict[str, float]:
    flat: dict[str, float] = {}
    for key, metric in metrics.items():
        flat |= _bounds(key, metric.interval)
    return flat


def _comparisons(metrics: "Metrics") -> dict[str, float]:
    """Return the numbers of the baseline and of the best constant answer."""
    baseline, constant, flat = metrics.baseline, metrics.constant, dict[str, float]()
    if baseline is not None:
        flat |= _bounds("baseline_difference", baseline.difference) | {"baseline": baseline.headline.interval.value}
    if constant is not None:
        flat |= _bounds("constant_difference", constant.difference) | {"constant": constant.trivial}
    return flat


def _key(name: str) -> str:
    """Return a name with only those characters that MLflow allows in the name of a metric."""
    return _NOT_IN_A_KEY.sub("_", name)
