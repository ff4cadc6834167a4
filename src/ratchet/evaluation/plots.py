"""CSV files for `dvc plots`."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from ratchet import files
from ratchet.evaluation.calibration import Bin
from ratchet.evaluation.classification import ClassificationMetrics
from ratchet.evaluation.metrics import Metrics
from ratchet.evaluation.predictions import Predictions

__all__ = ["write_confusion", "write_plots", "write_reliability"]


def write_plots(reports: Path, predictions: Predictions, metrics: Metrics) -> None:
    """Write confusion.csv and reliability.csv, which have no lines if the problem has no classes."""
    if isinstance(metrics, ClassificationMetrics):
        write_confusion(reports / "confusion.csv", predictions)
        write_reliability(reports / "reliability.csv", metrics.reliability)
        return
    _write_csv(reports / "confusion.csv", ("actual", "predicted"), ())
    write_reliability(reports / "reliability.csv", ())


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
