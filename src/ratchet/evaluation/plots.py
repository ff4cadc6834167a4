"""Plots for DVC and MLflow: CSV files for `dvc plots`, and the confusion matrix as a PNG image."""

import csv
import io
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ratchet import files
from ratchet.evaluation.calibration import Bin
from ratchet.evaluation.classification import ClassificationMetrics
from ratchet.evaluation.metrics import Metrics
from ratchet.evaluation.predictions import Predictions
from ratchet.evaluation.regression import NumberAnswers
from ratchet.evaluation.wording import metric_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_confusion", "draw_scatter", "write_confusion", "write_plots", "write_reliability"]

_RIGHT, _WRONG = (17, 107, 92), (178, 60, 38)
_NUMBERED = 25  # classes; with more, numbers in the cells would be too small to read
_LONGEST_NAME = 18


def write_plots(reports: Path, predictions: Predictions, metrics: Metrics) -> None:
    """Write confusion.csv, reliability.csv and confusion.png.

    Only classes have a confusion matrix. For other targets the tables have no lines, and the image shows predicted
    against true numbers, or only the headline metric.
    """
    if isinstance(metrics, ClassificationMetrics):
        write_confusion(reports / "confusion.csv", predictions)
        write_reliability(reports / "reliability.csv", metrics.reliability)
        files.write_bytes(reports / "confusion.png", draw_confusion(metrics))
        return
    _write_csv(reports / "confusion.csv", ("actual", "predicted"), ())
    write_reliability(reports / "reliability.csv", ())
    files.write_bytes(reports / "confusion.png", draw_scatter(predictions, metrics))


def write_confusion(path: Path, predictions: Predictions) -> None:
    """Write actual,predicted as class names, one line for each test image, for DVC's `confusion` templates."""
    names = predictions.target.names
    pairs = zip(predictions.targets, predictions.answers.predicted, strict=True)
    _write_csv(path, ("actual", "predicted"), ((names[actual], names[answer]) for actual, answer in pairs))


def write_reliability(path: Path, bins: Sequence[Bin]) -> None:
    """Write confidence,accuracy,count,low,high, one line for each bin that is not empty."""
    lines = ((part.confidence, part.accuracy, part.count, part.low, part.high) for part in bins if part.count)
    _write_csv(path, ("confidence", "accuracy", "count", "low", "high"), lines)


def _write_csv(path: Path, header: Sequence[str], lines: Iterable[Sequence[object]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(lines)
    files.write_text(path, text.getvalue())


def draw_scatter(predictions: Predictions, metrics: Metrics) -> bytes:
    """Return predicted against true values of the first number as a PNG image; of other targets only a title."""
    answers = predictions.answers
    title = f"{metric_text(metrics.headline, metrics.confidence)} on {metrics.rows:,} test rows"
    if not isinstance(answers, NumberAnswers):
        return _png(title, lambda axes: axes.set_axis_off(), height=1)

    def draw(axes: "Axes") -> None:
        truth, predicted = answers.truth[:, 0], answers.predicted[:, 0]
        axes.plot(truth, predicted, ".", markersize=2, color="#116b5c")
        axes.axline((truth[0], truth[0]), slope=1, color="grey", linewidth=1)
        axes.set(xlabel="true", ylabel="predicted", aspect="equal", adjustable="datalim")

    return _png(title, draw)


def draw_confusion(metrics: ClassificationMetrics) -> bytes:
    """Return the confusion matrix as a PNG image: one row for each true class, one column for each predicted class.

    Cells are shaded by their share of the row, green if right and red if wrong. Numbers and names are shown only for
    few classes.
    """
    counts = np.asarray(metrics.confusion)
    shares = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
    base = np.where(np.eye(len(counts), dtype=bool)[..., None], _RIGHT, _WRONG)
    strength = np.where(counts > 0, 0.12 + 0.88 * shares, 0)[..., None]
    pixels = np.rint(base * strength + 255 * (1 - strength)).astype(np.uint8)

    def draw(axes: "Axes") -> None:
        axes.imshow(pixels, interpolation="nearest")
        axes.set(xlabel="answer", ylabel="truth", xticks=[], yticks=[])
        if len(counts) > _NUMBERED:
            return
        names = [name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…" for name in metrics.classes]
        axes.set_xticks(range(len(names)), names, rotation=90)
        axes.set_yticks(range(len(names)), names)
        for actual, answer in np.argwhere(counts).tolist():
            colour = "white" if shares[actual, answer] > 0.45 else "black"
            axes.text(answer, actual, f"{counts[actual, answer]}", color=colour, ha="center", va="center")

    return _png(f"{metrics.accuracy.value:.1%} of {metrics.rows:,} test rows right", draw)


def _png(title: str, draw: "Callable[[Axes], object]", *, height: float = 9.6) -> bytes:
    """Return a drawing as a PNG image. The same drawing gives the same bytes, because the font is matplotlib's."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph .* missing from font")  # a box is drawn, such as for Chinese
        matplotlib.rcdefaults()  # not the settings of the user's matplotlibrc
        matplotlib.rcParams.update({"text.parse_math": False, "font.family": "DejaVu Sans", "font.size": 14})
        figure = Figure(figsize=(9, height), dpi=100, layout="constrained")
        axes = figure.add_subplot()
        axes.tick_params(length=0)
        axes.spines[:].set_color("lightgrey")
        axes.set_title(title, loc="left")
        draw(axes)
        content = io.BytesIO()
        figure.savefig(content, format="png", metadata={"Software": None}, pil_kwargs={"optimize": True})
    return content.getvalue()
