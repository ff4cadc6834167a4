"""Robustness: accuracy on the same test images under every kind and strength of corruption."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ratchet.evaluation.corruptions import KINDS, STRENGTHS, corrupt
from ratchet.evaluation.intervals import Interval, share_interval

__all__ = ["NotMeasured", "Robustness", "automatic_rows", "evenly_spaced", "measure_robustness"]

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class NotMeasured:
    """Reason why something was not measured, as a clause without a full stop."""

    reason: str


@dataclass(frozen=True)
class Robustness:
    """Accuracy on some test images, unchanged and corrupted."""

    rows: int
    clean: Interval  # on the same images, unchanged
    corrupted: Mapping[str, tuple[Interval, ...]]  # by kind; one for each strength, the mildest first

    def mean(self, kind: str) -> float:
        """Mean accuracy under one kind of corruption, over its strengths."""
        return float(np.mean([share.value for share in self.corrupted[kind]]))

    @property
    def overall(self) -> float:
        """Mean accuracy under corruption, over kinds and strengths."""
        return float(np.mean([self.mean(kind) for kind in self.corrupted]))

    def numbers(self) -> dict[str, float]:
        """Return the metrics `robustness`, the mean over all, and `robustness_KIND`."""
        return {"robustness": self.overall, **{f"robustness_{kind}": self.mean(kind) for kind in self.corrupted}}


def automatic_rows(height: int, width: int) -> int:
    """Return the number of images for `evaluation.robustness_rows: auto`: 500 up to 64x64 pixels, at least 50.

    Each image costs 25 predictions. Without a limit, large photographs would take longer to corrupt than to evaluate.
    """
    return max(50, min(500, 500 * 64 * 64 // (height * width)))


def evenly_spaced(rows: int, wanted: int) -> NDArray[np.int64]:
    """Return `wanted` of `rows` row numbers, or all if there are fewer, evenly spaced and in order."""
    count = min(rows, wanted)
    return np.arange(count, dtype=np.int64) * rows // max(1, count)


def measure_robustness(
    predict: Callable[[Images], Labels],
    images: Images,
    labels: Labels,
    *,
    clean: Labels,
    confidence: float,
    report: Callable[[int], None] = lambda done: None,
) -> Robustness:
    """Measure the accuracy on the same images under every kind and strength of corruption.

    Args:
        predict: images like `images` -> predicted classes, int64 (rows,).
        images: uint8 (rows, height, width, channels), with 1 or 3 channels and at least one row.
        labels: int64 (rows,).
        clean: predicted classes of the unchanged images, int64 (rows,).
        confidence: level of the intervals, which are Wilson's.
        report: called with the number of corrupted images that were predicted so far.
    """

    def share(predicted: Labels) -> Interval:
        return share_interval(int((predicted == labels).sum()), len(labels), confidence=confidence)

    corrupted: dict[str, tuple[Interval, ...]] = {}
    for done, kind in enumerate(KINDS, 1):
        corrupted[kind] = tuple(share(predict(corrupt(images, kind, strength))) for strength in STRENGTHS)
        report(done * len(STRENGTHS) * len(labels))
    return Robustness(len(labels), share(clean), corrupted)
