"""Classes with a low recall. One counts as weak only if that is significant, corrected for the number of classes."""

from dataclasses import dataclass

from ratchet.evaluation.classification import ClassificationMetrics
from ratchet.evaluation.intervals import Interval, share_interval

__all__ = ["FEW_SAMPLES", "WeakClass", "weak_classes"]

FEW_SAMPLES = 30  # test samples of a class; with fewer, an interval of its recall is wider than a quarter


@dataclass(frozen=True)
class WeakClass:
    """A class whose recall is significantly below the overall accuracy."""

    name: str
    rows: int
    recall: Interval  # Wilson's, corrected for the number of classes


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
