"""Content of report and card for each problem: tables, sections, curves and limits. Each problem has a class."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from ratchet.evaluation.classification import ClassificationMetrics, ClassMetrics
from ratchet.evaluation.intervals import Interval
from ratchet.evaluation.language import LanguageMetrics
from ratchet.evaluation.limits import FEW_IMAGES, find_limits
from ratchet.evaluation.metrics import Metrics, NamedMetric
from ratchet.evaluation.multi_label import MultiLabelMetrics
from ratchet.evaluation.predictions import Predictions
from ratchet.evaluation.regression import NumberMetrics, RegressionMetrics
from ratchet.evaluation.robustness import Robustness
from ratchet.evaluation.wording import (
    baseline_sentence,
    constant_sentence,
    metric_text,
    number,
    range_text,
    signed_range,
    value_text,
)
from ratchet.reports.charts import Chart, scatter_chart
from ratchet.reports.numbers import decimal, percent, percent_range, shown
from ratchet.reports.problem_sections import Cells, ReportSection, Table, error_section, slice_section, worst_slices

__all__ = ["ClassPages", "Pages", "pages_of"]

_PLOTTED = 4  # numbers with their own plots
_WEAK = 5  # classes or slices that are named as a limit, each with a sentence
_CLASSES = 12  # named in a sentence
_LISTED = 8  # classes with the lowest recall
_FEW_ROWS = 1000  # test samples; with fewer the test set counts as small


@dataclass(frozen=True)
class Pages:
    """Content of the pages of one evaluation; here what all problems share."""

    metrics: Any

    template: ClassVar[str] = "report_frame.html.j2"
    curves: ClassVar[Sequence[tuple[str, str]]] = ()  # title and metric of the charts of training
    output: ClassVar[str]  # of `predict`
    variable: ClassVar[str] = "probabilities"  # for what `predict` returns

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

    def sections(self, predictions: Predictions | None) -> list[ReportSection]:
        """Return the sections of metrics, plots, slices and largest errors."""
        errors = [] if predictions is None else [error_section(predictions)]
        return [*self.own_sections(predictions), *slice_section(self.metrics), *errors]

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
        sentences += self.own_limits()
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
        return useless + ([] if result is None or result.network_is_better else [baseline_sentence(result, level)])


@dataclass(frozen=True)
class ClassPages(Pages):
    """Pages of a classifier. The report has a template of its own, which extends that of the others."""

    metrics: ClassificationMetrics

    template: ClassVar[str] = "run_report.html.j2"
    curves: ClassVar[Sequence[tuple[str, str]]] = (("Accuracy", "accuracy"),)
    output: ClassVar[str] = "a probability for each class"

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
        if self.metrics.rare is not None:
            name, rows = self.metrics.rare
            return f"Too few samples of class {name} ({rows:,}) for an interval of F1 and ROC-AUC."
        return ""

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

    def sections(self, predictions: Predictions | None) -> list[ReportSection]:
        """Return nothing: the template has them."""
        return []

    def limits(self) -> list[str]:
        metrics, limits, sentences = self.metrics, find_limits(self.metrics), self._baseline_limit()
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
                f"Calibration error (ECE) is {percent(limits.ece.value)} (CI {percent_range(limits.ece)}): do not read "
                "the probabilities as frequencies. evaluation.temperature_scaling may correct them."
            )
        if limits.untested:
            names = _first(limits.untested, 2 * _WEAK)
            sentences.append(f"Not measured, because there are no test samples: {names}.")
        if limits.barely_tested:
            names = _first([f"{row.name} ({row.support:,})" for row in limits.barely_tested], 2 * _WEAK)
            sentences.append(f"Too few test samples for a reliable recall (fewer than {FEW_IMAGES}): {names}.")
        if limits.accuracy is not None:
            sentences.append(
                f"Small test set ({metrics.rows:,} samples): accuracy has a CI of {percent_range(limits.accuracy)}. A "
                "smaller difference from another model may be chance."
            )
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
                each.name, each.support, f"{each.threshold:.3f}", decimal(each.precision), decimal(each.recall),
                decimal(each.f1), _bounds(each.f1_interval), decimal(each.roc_auc),
            )
            for each in self.metrics.per_label
        ]  # fmt: skip
        return Table("", header, rows)

    def own_sections(self, predictions: Predictions | None) -> list[ReportSection]:
        note = "A label is predicted from its threshold on. Thresholds are fitted on the validation samples or set."
        return [ReportSection("Metrics by label", note, tables=[self.table])]

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

    def sections(self, predictions: Predictions | None) -> list[ReportSection]:
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


def _bounds(interval: Interval | None) -> str:
    return shown(None) if interval is None else f"{interval.low:.3f}-{interval.high:.3f}"


def _first(names: Sequence[str], most: int) -> str:
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
