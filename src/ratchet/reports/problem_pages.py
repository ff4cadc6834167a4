"""Content of report and card for each problem: tables, sections, curves and limits. Each problem has a class."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from ratchet.evaluation.classification import ClassificationMetrics, ClassMetrics
from ratchet.evaluation.intervals import Interval
from ratchet.evaluation.language import LanguageMetrics
from ratchet.evaluation.metrics import Metrics, NamedMetric
from ratchet.evaluation.multi_label import MultiLabelMetrics
from ratchet.evaluation.predictions import Predictions
from ratchet.evaluation.regression import NumberMetrics, RegressionMetrics
from ratchet.evaluation.robustness import STRENGTHS, Robustness
from ratchet.evaluation.weak_classes import FEW_SAMPLES, weak_classes
from ratchet.evaluation.wording import (
    baseline_text,
    constant_sentence,
    metric_text,
    number,
    range_text,
    signed_range,
    value_text,
)
from ratchet.reports.abstention_text import abstention_limits, abstention_section
from ratchet.reports.charts import COLOURS, Chart, Line, heat_map, line_chart, reliability_chart, scatter_chart
from ratchet.reports.coverage_text import coverage_limits, coverage_section
from ratchet.reports.number_text import decimal, percent, percent_range, shown
from ratchet.reports.problem_sections import Cells, ReportSection, Table, error_section, slice_section, worst_slices

__all__ = ["Pages", "pages_of"]

_PLOTTED = 4  # numbers with their own plots
_WEAK = 5  # classes or slices that are named as a limit, each with a sentence
_CLASSES = 12  # named in a sentence
_LISTED = 8  # classes with the lowest recall
_SORTED = 30  # with more classes those with the lowest F1 come first
_NOTABLE_ECE = 0.03  # calibration error that is worth a warning, if chance does not explain it
_FEW_ROWS = 1000  # test samples; with fewer the test set counts as small


@dataclass(frozen=True)
class Pages:
    """Content of the pages of one evaluation; here what all problems share."""

    metrics: Any

    curves: ClassVar[Sequence[tuple[str, str]]] = ()  # title and metric of the charts of training
    output: ClassVar[str]  # of `predict`
    variable: ClassVar[str] = "probabilities"  # for what `predict` returns
    reach: ClassVar[str] = "The model answers for every input, also where it has seen nothing like it."

    @property
    def width(self) -> object:
        """Width of what `predict` returns."""
        return len(self.metrics.by_output)

    def task(self, samples: str) -> str:
        """Return what the model does to samples, in one sentence."""
        raise NotImplementedError

    @property
    def names(self) -> str:
        """Names of the classes, labels or numbers; of many only the first."""
        return _first([each.name for each in self.metrics.by_output], _CLASSES)

    @property
    def table(self) -> Table:
        """Metrics of each class, number or label; empty for tokens."""
        return Table("", [], [])

    @property
    def undefined(self) -> Mapping[str, float]:
        """Metrics that have a value, but no interval."""
        return {}

    @property
    def no_interval(self) -> str:
        """Sentence that says why they have no interval."""
        return ""

    @property
    def lowest_recall(self) -> Sequence[Cells]:
        """Rows of the classes with the lowest recall."""
        return []

    @property
    def robustness(self) -> Robustness | None:
        """Accuracy with corruption, if it was measured."""
        return None

    def sections(self, predictions: Predictions | None, *, has_cards: bool) -> list[ReportSection]:
        """Return the sections of metrics, plots, slices and largest errors, unless these have cards with images."""
        errors = [] if predictions is None or has_cards else [error_section(predictions)]
        coverage = [*coverage_section(self.metrics), *abstention_section(self.metrics)]
        return [*self.own_sections(predictions), *coverage, *slice_section(self.metrics), *errors]

    def own_sections(self, predictions: Predictions | None) -> list[ReportSection]:
        """Return the sections that only this problem has."""
        return []

    def limits(self) -> list[str]:
        """Return one sentence for each limit of the model, the most serious first; none where there are no limits."""
        metrics: Metrics = self.metrics
        sentences = self._baseline_limit()
        sentences += [
            f"Where {part.column} is {part.value}, {mean.name} is {value_text(mean)} on {part.rows:,} test samples "
            f"(CI {range_text(mean)}), significantly worse than on the others."
            for part, mean in worst_slices(metrics)[:_WEAK]
            if part.is_worse
        ]
        sentences += self.own_limits() + coverage_limits(metrics) + abstention_limits(metrics)
        if metrics.rows < _FEW_ROWS:
            sentences.append(
                f"Small test set ({metrics.rows:,} samples): {metric_text(metrics.headline, metrics.confidence)}. A "
                "smaller difference from another model may be chance."
            )
        return sentences

    def own_limits(self) -> list[str]:
        """Return the limits that only this problem has."""
        return []

    def _baseline_limit(self) -> list[str]:
        metrics: Metrics = self.metrics
        result, constant, level = metrics.baseline, metrics.constant, metrics.confidence
        useless = [] if constant is None or constant.is_better else [constant_sentence(constant, level, metrics.rows)]
        return useless + (
            [] if result is None or result.network_is_better else [f"The model {baseline_text(result, level)}."]
        )


@dataclass(frozen=True)
class ClassPages(Pages):
    """Pages of a classifier."""

    metrics: ClassificationMetrics

    curves: ClassVar[Sequence[tuple[str, str]]] = (("Accuracy", "accuracy"),)
    output: ClassVar[str] = "a probability for each class"
    reach: ClassVar[str] = (
        "The model answers with one of its classes for every input: it cannot recognize that none of them applies."
    )

    def task(self, samples: str) -> str:
        return f"Classifies {samples} into {len(self.metrics.classes):,} classes: {self.names}."

    @property
    def table(self) -> Table:
        header = ["class", "samples", "precision", "recall", "F1", "ROC-AUC", "PR-AUC"]
        return Table("", header, [_class_row(each) for each in self.metrics.per_class])

    @property
    def undefined(self) -> Mapping[str, float]:
        metrics = self.metrics
        values = {"macro F1": metrics.macro.f1} if metrics.macro_f1 is None else {}
        if metrics.roc_auc_interval is None and metrics.roc_auc is not None:
            values["ROC-AUC"] = metrics.roc_auc
        return values

    @property
    def no_interval(self) -> str:
        if self.metrics.rare is None:
            return ""
        name, rows = self.metrics.rare
        return f"Too few samples of class {name} ({rows:,}) for an interval of F1 and ROC-AUC."

    @property
    def lowest_recall(self) -> Sequence[Cells]:
        tested = [(row.recall, row.name, row) for row in self.metrics.per_class if row.recall is not None]
        lowest = sorted(tested, key=lambda item: item[:2])[:_LISTED]
        return [
            (name, percent(recall), None if row.precision is None else percent(row.precision), row.support)
            for recall, name, row in lowest
        ]

    @property
    def robustness(self) -> Robustness | None:
        measured = self.metrics.robustness
        return measured if isinstance(measured, Robustness) else None

    def own_sections(self, predictions: Predictions | None) -> list[ReportSection]:
        header, rows = self.table.header, self.table.rows
        if len(rows) > _SORTED:
            each = self.metrics.per_class
            order = sorted(range(len(rows)), key=lambda at: (each[at].f1 is None, each[at].f1 or 0.0, each[at].name))
            rows = [rows[at] for at in order]
        note = "The classes with the lowest F1 first." if len(rows) > _SORTED else ""
        measured = [_robustness(self.robustness, self.metrics.confidence)] if self.robustness else []
        classes = ReportSection("Metrics by class", note, tables=[Table("", header, rows)])
        return [self._confusion(), self._calibration(), *measured, classes]

    def _confusion(self) -> ReportSection:
        names, confusion = self.metrics.classes, self.metrics.confusion
        pairs = [
            (f"{names[actual]} \N{RIGHTWARDS ARROW} {names[predicted]}", count, percent(count / sum(row)))
            for actual, row in enumerate(confusion)
            for predicted, count in enumerate(row)
            if actual != predicted and count
        ]
        pairs.sort(key=lambda pair: -pair[1])
        chart = Chart("Row: true class. Column: predicted class.", heat_map(confusion, names))
        header = ["true \N{RIGHTWARDS ARROW} predicted", "samples", "of true class"]
        tables = [Table("Most frequent confusions", header, pairs[:10])] if pairs else []
        return ReportSection("Confusion matrix", "Shade: share of the true class.", charts=[chart], tables=tables)

    def _calibration(self) -> ReportSection:
        metrics = self.metrics
        if metrics.ece is None:
            return ReportSection("Calibration", self._unmeasured)
        note = (
            "Does the confidence match the accuracy? On the dashed line it does. Points below the line: the model is "
            f"overconfident. Its {metric_text(metrics.named()['ece'], metrics.confidence)}."
        )
        rows = [
            (f"{100 * part.low:.0f}-{percent(part.high, 0)}", part.count, percent(sure), percent(right))
            for part in reversed(metrics.reliability)
            if (sure := part.confidence) is not None and (right := part.accuracy) is not None
        ]
        table = Table("Bins", ["confidence", "samples", "mean confidence", "accuracy"], rows)
        chart = Chart("Accuracy by confidence", reliability_chart(metrics.reliability))
        return ReportSection("Calibration", note, charts=[chart], tables=[table])

    @property
    def _unmeasured(self) -> str:
        return f"Calibration error (ECE) is not measured: {self.metrics.rows:,} test samples are too few."

    def own_limits(self) -> list[str]:
        metrics, weak = self.metrics, weak_classes(self.metrics)
        sentences = [
            f"Recall of class {each.name} is {percent(each.recall.value)} on {each.rows:,} test samples "
            f"(CI {percent_range(each.recall)}), significantly below the overall accuracy."
            for each in weak[:_WEAK]
        ]
        if more := len(weak[_WEAK:]):
            sentences.append(f"Recall of {more:,} more classes is significantly below the overall accuracy.")
        if metrics.ece is None:
            sentences.append(self._unmeasured)
        elif metrics.ece.value >= _NOTABLE_ECE and metrics.ece.low > 0.0:
            sentences.append(
                f"Calibration error (ECE) is {percent(metrics.ece.value)} (CI {percent_range(metrics.ece)}): do not "
                "read the probabilities as frequencies. evaluation.temperature_scaling may correct them."
            )
        if untested := [row.name for row in metrics.per_class if not row.support]:
            sentences.append(f"Not measured, because there are no test samples: {_first(untested, 2 * _WEAK)}.")
        if barely := [f"{row.name} ({row.support:,})" for row in metrics.per_class if 0 < row.support < FEW_SAMPLES]:
            names = _first(barely, 2 * _WEAK)
            sentences.append(f"Too few test samples for a reliable recall (fewer than {FEW_SAMPLES}): {names}.")
        return sentences


@dataclass(frozen=True)
class NumberPages(Pages):
    """Pages of a model that predicts numbers."""

    metrics: RegressionMetrics

    curves: ClassVar[Sequence[tuple[str, str]]] = (("MAE", "mae"), ("R2", "r2"))
    output: ClassVar[str] = "the numbers in their own units"
    variable: ClassVar[str] = "numbers"

    def task(self, samples: str) -> str:
        return f"Predicts {self.names} of {samples}."

    @property
    def table(self) -> Table:
        header = ["number", "MAE", "RMSE", "R2", "median error", "bias", "MAE of the mean"]
        return Table("", header, [_number_row(each) for each in self.metrics.per_number])

    def own_sections(self, predictions: Predictions | None) -> list[ReportSection]:
        note = (
            "Bias: mean of predicted minus true value. MAE of the mean: error of always predicting the mean of the "
            "training targets. Each number is in its own unit."
        )
        sections = [ReportSection("Metrics by number", note, tables=[self.table])]
        if predictions is None:
            return sections
        charts, answers = [], predictions.answers
        for at, name in enumerate(predictions.target.names[:_PLOTTED]):
            true, predicted = predictions.targets[:, at].astype(float), answers.predicted[:, at]
            pairs = list(zip(true.tolist(), predicted.tolist(), strict=True))
            errors = list(zip(predicted.tolist(), (predicted - true).tolist(), strict=True))
            title = f"Predicted against true {name}"
            drawing = scatter_chart(pairs, name=title, x_label=f"true {name}", y_label="predicted", diagonal=True)
            charts.append(Chart(title, drawing))
            title = f"Residuals of {name}"
            drawing = scatter_chart(errors, name=title, x_label=f"predicted {name}", y_label="predicted minus true")
            charts.append(Chart(title, drawing))
        note = "On the dashed lines a prediction is right. At most 1,500 evenly spaced test samples are drawn."
        return [*sections, ReportSection("Predicted and true values", note, charts=charts)]


@dataclass(frozen=True)
class LabelPages(Pages):
    """Pages of a model that predicts any number of labels."""

    metrics: MultiLabelMetrics

    curves: ClassVar[Sequence[tuple[str, str]]] = (("Right labels", "accuracy"), ("F1", "f1"))
    output: ClassVar[str] = "a probability for each label"

    def task(self, samples: str) -> str:
        return f"Gives {samples} any of {len(self.metrics.per_label):,} labels: {self.names}."

    @property
    def table(self) -> Table:
        header = ["label", "samples", "threshold", "precision", "recall", "F1", "CI of F1", "ROC-AUC"]
        rows = [
            (
                each.name,
                each.support,
                f"{each.threshold:.3f}",
                decimal(each.precision),
                decimal(each.recall),
                decimal(each.f1),
                _bounds(each.f1_interval),
                decimal(each.roc_auc),
            )
            for each in self.metrics.per_label
        ]
        return Table("", header, rows)

    def own_sections(self, predictions: Predictions | None) -> list[ReportSection]:
        note = "A label is predicted from its threshold on. Thresholds are fitted on the validation samples or set."
        return [ReportSection("Metrics by label", note, tables=[self.table])]

    @property
    def undefined(self) -> Mapping[str, float]:
        macro = self.metrics.macro
        return {"macro F1": macro} if self.metrics.macro_f1 is None and macro is not None else {}

    @property
    def no_interval(self) -> str:
        rare = min(
            (label for label in self.metrics.per_label if label.support), key=lambda each: each.support, default=None
        )
        few = f" of label {rare.name} ({rare.support:,})" if rare else ""
        return f"Too few samples{few} for an interval of macro F1." if self.undefined else ""

    def own_limits(self) -> list[str]:
        untested = [label.name for label in self.metrics.per_label if not label.support]
        names = _first(untested, 2 * _WEAK)
        return [f"Not measured, because no test sample has the label: {names}."] if untested else []


@dataclass(frozen=True)
class TokenPages(Pages):
    """Pages of a language model."""

    metrics: LanguageMetrics

    curves: ClassVar[Sequence[tuple[str, str]]] = (("Perplexity", "perplexity"),)
    output: ClassVar[str] = "the continuation of each prompt"
    variable: ClassVar[str] = "logits"

    @property
    def width(self) -> object:
        return "context, tokens"

    def task(self, samples: str) -> str:
        return "Predicts the next token of a text."

    def sections(self, predictions: Predictions | None, *, has_cards: bool) -> list[ReportSection]:
        sizes = self.metrics
        text = f"{sizes.characters:,} characters, {sizes.tokens:,} tokens, {sizes.rows:,} pieces."
        return [ReportSection("Text", text), *slice_section(self.metrics)]


_PAGES: Mapping[str, type[Pages]] = MappingProxyType(
    {
        measured.problem: pages
        for measured, pages in (
            (ClassificationMetrics, ClassPages),
            (RegressionMetrics, NumberPages),
            (MultiLabelMetrics, LabelPages),
            (LanguageMetrics, TokenPages),
        )
    }
)


def pages_of(metrics: Metrics) -> Pages:
    """Return the pages of an evaluation."""
    return _PAGES[metrics.problem](metrics)


def _class_row(each: ClassMetrics) -> Cells:
    values = (each.precision, each.recall, each.f1, each.roc_auc, each.pr_auc)
    return each.name, each.support, *map(decimal, values)


def _number_row(each: NumberMetrics) -> Cells:
    named: Mapping[str, NamedMetric] = each.named()
    texts = [value_text(named[key]) if key in named else shown(None) for key in ("mae", "rmse", "r2", "median_error")]
    return each.name, *texts, signed_range(each.bias), number(each.mean_mae)


def _robustness(measured: Robustness, confidence: float) -> ReportSection:
    title, strengths = "Accuracy by strength", [str(strength) for strength in STRENGTHS]
    lines = [
        Line(kind, colour, [(float(at), share.value) for at, share in enumerate((measured.clean, *shares))])
        for (kind, shares), colour in zip(measured.corrupted.items(), COLOURS, strict=True)
    ]
    drawing = line_chart(lines, name=title, x_label="strength (0: no corruption)", share=True)
    rows = [("none", percent(measured.clean.value), *[""] * len(strengths))]
    rows += [
        (kind, percent(measured.mean(kind)), *(percent(share.value) for share in shares))
        for kind, shares in measured.corrupted.items()
    ]
    note = (
        f"{measured.rows:,} evenly spread test samples, evaluated again at five strengths of each corruption (those of "
        f"CIFAR-10-C). Accuracy without corruption: {percent(measured.clean.value)} ({100 * confidence:g} % CI "
        f"{percent_range(measured.clean)}). Mean accuracy with corruption: {percent(measured.overall)}."
    )
    table = Table(title, ["corruption", "mean", *strengths], rows, "tight")
    return ReportSection("Robustness", note, charts=[Chart(title, drawing, lines)], tables=[table])


def _bounds(interval: Interval | None) -> str:
    return shown(None) if interval is None else f"{interval.low:.3f}-{interval.high:.3f}"


def _first(names: Sequence[str], most: int) -> str:
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
