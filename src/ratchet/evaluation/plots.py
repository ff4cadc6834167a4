"""Plots for DVC and MLflow: CSV files for `dvc plots`, and the confusion matrix as a PNG image."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ratchet import files
from ratchet.evaluation.answers import NumberAnswers
from ratchet.evaluation.calibration import Bin
from ratchet.evaluation.metrics import ClassificationMetrics, Metrics
from ratchet.evaluation.predictions import Predictions
from ratchet.evaluation.wording import metric_text

__all__ = ["draw_confusion", "draw_scatter", "write_confusion", "write_plots", "write_reliability"]

_INK, _MUTED, _PAPER, _LINE = (32, 36, 42), (108, 112, 120), (255, 255, 255), (222, 220, 214)
_RIGHT, _WRONG = (17, 107, 92), (178, 60, 38)
_NUMBERED = 25  # classes; with more, numbers in the cells would be too small to read
_MARGIN, _LONGEST_NAME = 24, 18


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


def draw_scatter(predictions: Predictions, metrics: Metrics) -> bytes:
    """Return predicted against true values of the first number as a PNG image; of other targets only a title."""
    from PIL import Image, ImageDraw, ImageFont

    side, title_height = 900, 84
    answers = predictions.answers
    drawn = isinstance(answers, NumberAnswers)
    image = Image.new("RGB", (side + 2 * _MARGIN, (side if drawn else 0) + title_height + _MARGIN), _PAPER)
    draw = ImageDraw.Draw(image)
    title = f"{metric_text(metrics.headline, metrics.confidence)} on {metrics.rows:,} test rows"
    draw.text((_MARGIN, _MARGIN), title, fill=_INK, font=ImageFont.load_default(size=24))
    if isinstance(answers, NumberAnswers):
        truth, predicted = answers.truth[:, 0], answers.predicted[:, 0]
        low, high = min(truth.min(), predicted.min()), max(truth.max(), predicted.max())
        scale = (side - 1) / max(high - low, 1e-300)
        left, bottom = _MARGIN, title_height + side
        draw.rectangle((left, title_height, left + side, bottom), outline=_LINE)
        draw.line((left, bottom, left + side, title_height), fill=_MUTED)
        for x, y in zip((truth - low) * scale, (predicted - low) * scale, strict=True):
            draw.point((left + round(x), bottom - 1 - round(y)), fill=_RIGHT)
        draw.text((left + 8, title_height + 8), "predicted", fill=_MUTED, font=ImageFont.load_default(size=20))
        draw.text((left + side - 8, bottom - 8), "true", fill=_MUTED, font=ImageFont.load_default(size=20), anchor="rb")
    content = io.BytesIO()
    image.save(content, "PNG", optimize=True)
    return content.getvalue()


def write_confusion(path: Path, predictions: Predictions) -> None:
    """Write actual,predicted as class names, one line for each test image, for DVC's `confusion` templates."""
    names = predictions.classes
    pairs = zip(predictions.labels, predictions.predicted, strict=True)
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


def draw_confusion(metrics: ClassificationMetrics) -> bytes:
    """Return the confusion matrix as a PNG image: one row for each true class, one column for each predicted class.

    Cells are shaded by their share of the row, green if right and red if wrong. Numbers and names are shown only for
    few classes. Equal metrics give equal bytes, because the font is part of Pillow.
    """
    from PIL import Image, ImageDraw, ImageFont

    classes = len(metrics.classes)
    numbered = classes <= _NUMBERED
    cell = max(2, 900 // classes) if not numbered else max(44, min(84, 900 // classes))
    font = ImageFont.load_default(size=20)
    names = [_shortened(name) for name in metrics.classes]
    names_width = max(int(font.getlength(name)) for name in names) + 12 if numbered else 0
    left, top = _MARGIN + 30 + names_width, _MARGIN + 84 + names_width
    side = cell * classes
    title, title_font = (
        f"{metrics.accuracy.value:.1%} of {metrics.rows:,} test rows right",
        ImageFont.load_default(size=28),
    )
    width = max(left + side, _MARGIN + int(title_font.getlength(title))) + _MARGIN
    image = Image.new("RGB", (width, top + side + _MARGIN), _PAPER)
    draw = ImageDraw.Draw(image)
    draw.text((_MARGIN, _MARGIN), title, fill=_INK, font=title_font)
    draw.text((left + side / 2, _MARGIN + 58), "answer", fill=_MUTED, font=font, anchor="mm")
    _draw_turned(image, "truth", font=font, at=(_MARGIN, top + side // 2), colour=_MUTED, centred=True)
    _draw_cells(draw, metrics, corner=(left, top), cell=cell)
    if numbered:
        for number, name in enumerate(names):
            middle = cell * number + cell // 2
            draw.text((left - 10, top + middle), name, fill=_INK, font=font, anchor="rm")
            _draw_turned(image, name, font=font, at=(left + middle - 12, top - 8), colour=_INK)
    draw.rectangle((left, top, left + side, top + side), outline=_LINE)
    content = io.BytesIO()
    image.save(content, "PNG", optimize=True)
    return content.getvalue()


def _draw_cells(draw: Any, metrics: ClassificationMetrics, *, corner: tuple[int, int], cell: int) -> None:
    from PIL import ImageFont

    numbered = len(metrics.classes) <= _NUMBERED
    font = ImageFont.load_default(size=max(13, min(22, cell // 3)))
    for actual, row in enumerate(metrics.confusion):
        for answer, count in enumerate(row):
            if not count:
                continue
            x, y = corner[0] + answer * cell, corner[1] + actual * cell
            share = count / sum(row)
            shade = _mixed(_RIGHT if actual == answer else _WRONG, 0.12 + 0.88 * share)
            draw.rectangle((x, y, x + cell - 1, y + cell - 1), fill=shade)
            if numbered:
                ink = _PAPER if share > 0.45 else _INK
                draw.text((x + cell / 2, y + cell / 2), f"{count}", fill=ink, font=font, anchor="mm")


def _draw_turned(
    image: Any, text: str, *, font: Any, at: tuple[int, int], colour: tuple[int, int, int], centred: bool = False
) -> None:
    """Draw text upwards; `at` is its left edge and its lower end, or its middle where `centred`."""
    from PIL import Image, ImageDraw

    line = Image.new("RGB", (int(font.getlength(text)) + 4, 26), _PAPER)
    ImageDraw.Draw(line).text((2, 1), text, fill=colour, font=font)
    turned = line.rotate(90, expand=True)
    image.paste(turned, (at[0], at[1] - (turned.height // 2 if centred else turned.height)))


def _shortened(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"


def _mixed(colour: tuple[int, int, int], share: float) -> tuple[int, int, int]:
    """Return `colour` blended over the paper colour, with the opacity `share`."""
    red, green, blue = (round(top * share + under * (1 - share)) for top, under in zip(colour, _PAPER, strict=True))
    return red, green, blue
