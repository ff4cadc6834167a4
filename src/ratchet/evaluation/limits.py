"""Limits of a model: weaknesses that its metrics on the test images show, and what they do not cover.

A class or a slice counts as weak only where that is significant after a correction for the number of classes or slices.
"""

from dataclasses import dataclass

from ratchet.evaluation.classification import ClassificationMetrics, ClassMetrics
from ratchet.evaluation.intervals import Interval, share_interval
from ratchet.evaluation.slices import Slice

__all__ = ["FEW_IMAGES", "Limits", "WeakClass", "find_limits", "weak_classes"]

FEW_IMAGES = 30  # test images of a class; with fewer, an interval of its recall is wider than a quarter
_WIDE = 0.02  # half an interval of accuracy; above it the test set counts as small
_NOTABLE_ECE = 0.03  # calibration error that is worth a warning, if chance does not explain it


@dataclass(frozen=True)
class WeakClass:
    """A class whose recall is significantly below the overall accuracy."""

    name: str
    rows: int
    recall: Interval  # Wilson's, corrected for the number of classes


@dataclass(frozen=True)
class Limits:
    """Reasons not to rely on a model. Each list is empty, and each value None, where there is no such reason."""

    weak_classes: list[WeakClass]  # worst first
    weak_slices: list[Slice]  # significantly worse than the other images, worst first
    ece: Interval | None  # calibration error, if it is notable and not explained by chance
    untested: list[str]  # classes without test images
    barely_tested: list[ClassMetrics]  # classes with fewer than FEW_IMAGES test images
    accuracy: Interval | None  # if the test set is small


def find_limits(metrics: ClassificationMetrics) -> Limits:
    """Return the reasons not to rely on the model."""
    ece, accuracy = metrics.ece, metrics.accuracy
    return Limits(
        weak_classes=weak_classes(metrics),
        weak_slices=sorted((part for part in metrics.slices if part.is_worse), key=lambda part: part.gap.high),
        ece=ece if ece.value >= _NOTABLE_ECE and ece.low > 0.0 else None,
        untested=[row.name for row in metrics.per_class if not row.support],
        barely_tested=[row for row in metrics.per_class if 0 < row.support < FEW_IMAGES],
        accuracy=accuracy if (accuracy.high - accuracy.low) / 2 > _WIDE else None,
    )


def weak_classes(metrics: ClassificationMetrics) -> list[WeakClass]:
    """Return the classes whose recall is significantly below the overall accuracy, worst first."""
    tested = [(number, row) for number, row in enumerate(metrics.per_class) if row.support]
    level = 1 - (1 - metrics.confidence) / max(1, len(tested))  # Bonferroni
    measured = [
        WeakClass(
            row.name,
            row.support,
            share_interval(metrics.confusion[number][number], row.support, confidence=level),
        )
        for number, row in tested
    ]
    weak = [each for each in measured if each.recall.high < metrics.accuracy.value]
    return sorted(weak, key=lambda each: (each.recall.high, each.name))
