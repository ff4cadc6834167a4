"""The sections of a run report as data: what run_report.html.j2 shows of the metrics."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ratchet.evaluation.figures import ClassFigures, Figures
from ratchet.evaluation.intervals import Interval
from ratchet.evaluation.robustness import NotMeasured, Robustness
from ratchet.evaluation.slices import Slice
from ratchet.reports.charts import COLOURS, Line, heat_map, line_chart, reliability_chart
from ratchet.reports.numbers import percent, percent_range, points, span

__all__ = [
    "Calibration",
    "Chart",
    "Classes",
    "Confusion",
    "Corruptions",
    "Slices",
    "calibration",
    "classes",
    "confusion",
    "corruptions",
    "curves",
    "slices",
]

Rows = Sequence[Sequence[object]]

_NUMBERED = 20  # with more classes the confusion matrix is drawn without numbers
_PAIRS = 10  # most frequent confusions
_LISTED = 30  # longer lists show half as many rows and fold the others away


@dataclass(frozen=True)
class Chart:
    """A drawing with its lines, which the legend names."""

    title: str
    drawing: Markup
    lines: Sequence[Line]


def curves(history: Sequence[Mapping[str, float | None]]) -> list[Chart]:
    """Draw loss, accuracy and learning rate by epoch, as far as the history has them."""
    both = (("training", COLOURS[1]), ("validation", COLOURS[0]))
    charts = []
    for title, metric, names in (
        ("Loss", "loss", both),
        ("Accuracy", "accuracy", both),
        ("Learning rate", "learning_rate", (("learning rate", COLOURS[0]),)),
    ):
        lines = [
            Line(name, colour, _points(history, f"{'validation' if name == 'validation' else 'train'}/{metric}"))
            for name, colour in names
        ]
        drawing = line_chart(lines, name=f"{title} by epoch", x_label="epoch", share=metric == "accuracy")
        charts.append(Chart(title, drawing, lines))
    return [chart for chart in charts if chart.drawing]


def _points(history: Sequence[Mapping[str, float | None]], column: str) -> list[tuple[float, float]]:
    """Return (epoch, value) for each epoch whose value in this column is finite."""
    values = [(epoch.get("epoch"), epoch.get(column)) for epoch in history]
    return [(float(x), float(y)) for x, y in values if x is not None and y is not None and math.isfinite(y)]


@dataclass(frozen=True)
class HeatCell:
    """A cell of the confusion matrix."""

    count: int
    share: float  # of the true class
    correct: bool


@dataclass(frozen=True)
class Confusion:
    """The confusion matrix: cells with numbers, or a drawing where there are many classes."""

    classes: Sequence[str]
    cells: Sequence[Sequence[HeatCell]]  # [true class][predicted class]; empty: `drawing` shows them
    drawing: Markup
    most_frequent: Rows  # confusion, samples, share of the true class

    @property
    def has_long_names(self) -> bool:
        """Whether class names are too long to be written horizontally above their columns."""
        return max(map(len, self.classes)) > 3


def confusion(figures: Figures) -> Confusion:
    """Prepare the confusion matrix and the most frequent confusions."""
    names, matrix = figures.classes, figures.confusion
    numbered = len(names) <= _NUMBERED
    cells = [
        [HeatCell(count, count / (sum(row) or 1), actual == predicted) for predicted, count in enumerate(row)]
        for actual, row in enumerate(matrix if numbered else ())
    ]
    wrong = [
        (-count, actual, predicted)
        for actual, row in enumerate(matrix)
        for predicted, count in enumerate(row)
        if actual != predicted and count
    ]
    most_frequent = [
        (f"{names[actual]} → {names[predicted]}", -negative, percent(-negative / sum(matrix[actual])))
        for negative, actual, predicted in sorted(wrong)[:_PAIRS]
    ]
    return Confusion(names, cells, Markup() if numbered else heat_map(matrix), most_frequent)


@dataclass(frozen=True)
class Calibration:
    """The reliability diagram and its bins."""

    drawing: Markup
    bins: Rows  # confidence, samples, mean confidence, accuracy; the highest first


def calibration(figures: Figures) -> Calibration:
    """Draw the reliability diagram and list its bins that are not empty."""
    bins = [
        (f"{span(bin.low, bin.high)} %", bin.count, percent(bin.confidence), percent(bin.accuracy))
        for bin in reversed(figures.reliability)
        if bin.confidence is not None and bin.accuracy is not None
    ]
    return Calibration(reliability_chart(figures.reliability), bins[: _LISTED // 2])


@dataclass(frozen=True)
class Slices:
    """Metrics on slices of the test samples, the significantly worse ones first."""

    worse: Sequence[Slice]
    rows: Rows  # slice, samples, accuracy, gap, interval, F1, log loss, ECE
    limit: int  # rows that are not folded away


def slices(figures: Figures) -> Slices:
    """Sort the slices and list their metrics."""
    ordered = sorted(figures.slices, key=lambda slice: (not slice.is_worse, slice.gap.value))
    rows = [
        (
            f"{slice.column}: {slice.value}",
            slice.rows,
            percent(slice.accuracy.value),
            points(slice.gap.value),
            percent_range(slice.accuracy),
            f"{slice.macro_f1:.3f}",
            f"{slice.log_loss:.3f}",
            percent(slice.ece),
        )
        for slice in ordered
    ]
    worse = [slice for slice in ordered if slice.is_worse]
    return Slices(worse, rows, max(_LISTED // 2, len(worse)))


@dataclass(frozen=True)
class Corruptions:
    """Accuracy by kind and strength of corruption."""

    samples: int
    clean: Interval
    mean: float
    chart: Chart
    strengths: Sequence[str]
    rows: Rows  # kind, mean, one accuracy per strength, in per cent
    intervals: Rows  # kind, one interval per strength


def corruptions(robustness: Robustness | NotMeasured) -> Corruptions | None:
    """Prepare what was measured on corrupted images; None: nothing was."""
    if isinstance(robustness, NotMeasured):
        return None
    clean, kinds = robustness.clean, robustness.spoilt
    lines = [
        Line(kind, colour, [(float(at), accuracy.value) for at, accuracy in enumerate((clean, *by_strength))])
        for (kind, by_strength), colour in zip(kinds.items(), COLOURS, strict=True)
    ]
    strengths = [str(number) for number in range(1, 1 + len(next(iter(kinds.values()))))]
    rows: list[Sequence[object]] = [("none", f"{100 * clean.value:.1f}", *("" for _ in strengths))]
    rows += [
        (kind, f"{100 * robustness.mean(kind):.1f}", *(f"{100 * accuracy.value:.1f}" for accuracy in by_strength))
        for kind, by_strength in kinds.items()
    ]
    drawing = line_chart(lines, name="Accuracy by strength", x_label="strength (0: no corruption)", share=True)
    return Corruptions(
        samples=robustness.rows,
        clean=clean,
        mean=robustness.overall,
        chart=Chart("Accuracy by strength", drawing, lines),
        strengths=strengths,
        rows=rows,
        intervals=[
            (kind, *(span(accuracy.low, accuracy.high) for accuracy in by_strength))
            for kind, by_strength in kinds.items()
        ],
    )


@dataclass(frozen=True)
class Classes:
    """Metrics by class; where there are many classes, those with the lowest F1 first."""

    rows: Rows  # class, samples, precision, recall, F1, ROC-AUC, PR-AUC
    limit: int  # rows that are not folded away


def classes(figures: Figures) -> Classes:
    """List the metrics of each class."""
    if len(figures.per_class) <= _LISTED:
        return Classes([_class_row(metrics) for metrics in figures.per_class], _LISTED)
    ordered = sorted(figures.per_class, key=lambda metrics: (metrics.f1 is None, metrics.f1 or 0.0, metrics.name))
    return Classes([_class_row(metrics) for metrics in ordered], _LISTED // 2)


def _class_row(metrics: ClassFigures) -> Sequence[object]:
    values = (metrics.precision, metrics.recall, metrics.f1, metrics.roc_auc, metrics.pr_auc)
    return (metrics.name, metrics.support, *(None if value is None else f"{value:.3f}" for value in values))
