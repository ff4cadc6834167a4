"""How accuracy holds when pictures are spoilt: on the same test rows under every kind and strength of corruption."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ratchet.evaluation.corruptions import KINDS, STRENGTHS, corrupt
from ratchet.evaluation.intervals import Interval, share_interval

__all__ = ["NotMeasured", "Robustness", "enough", "measure_robustness", "spread"]

Pictures = NDArray[np.uint8]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class NotMeasured:
    """What stands in place of a figure that was not measured: the reason, as a clause a sentence can end with."""

    why: str


@dataclass(frozen=True)
class Robustness:
    """Accuracy on some test rows, as they are and spoilt."""

    rows: int
    clean: Interval  # the same rows as they are
    spoilt: Mapping[str, tuple[Interval, ...]]  # by kind, one for each strength, the mildest first

    def mean(self, kind: str) -> float:
        """Accuracy under one kind, mean over its strengths."""
        return float(np.mean([one.value for one in self.spoilt[kind]]))

    @property
    def overall(self) -> float:
        """Accuracy under corruption, mean over kinds and strengths."""
        return float(np.mean([self.mean(kind) for kind in self.spoilt]))

    def numbers(self) -> dict[str, float]:
        """The single numbers, flat: `robustness`, the mean over all, and `robustness_KIND`."""
        return {"robustness": self.overall, **{f"robustness_{kind}": self.mean(kind) for kind in self.spoilt}}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Robustness":
        """What `dataclasses.asdict` made of it."""
        spoilt = {kind: tuple(map(Interval.from_json, found)) for kind, found in content["spoilt"].items()}
        return cls(content["rows"], Interval.from_json(content["clean"]), spoilt)


def enough(height: int, width: int) -> int:
    """How many rows to ask for pictures of this size: 500 up to 64x64 pixels, fewer of larger ones, 50 at least.

    Each row costs 25 answers, so that without a bound photographs would take longer to spoil than to test.
    """
    return max(50, min(500, 500 * 64 * 64 // (height * width)))


def spread(rows: int, wanted: int) -> NDArray[np.int64]:
    """The numbers of `wanted` of so many rows, or of all if they are fewer, evenly spread, in order."""
    count = min(rows, wanted)
    return np.arange(count, dtype=np.int64) * rows // max(1, count)


def measure_robustness(
    answer: Callable[[Pictures], Labels],
    pictures: Pictures,
    labels: Labels,
    *,
    clean: Labels,
    confidence: float,
    report: Callable[[int], None] = lambda done: None,
) -> Robustness:
    """Ask the model for the same pictures under every kind and strength.

    Args:
        answer: pictures like `pictures` -> the answered classes, int64 (rows,).
        pictures: uint8 (rows, height, width, channels), channels 1 or 3, at least one row.
        labels: int64 (rows,).
        clean: the answers to the pictures as they are, int64 (rows,).
        confidence: level of the intervals, which are Wilson's.
        report: is told how many spoilt pictures have been answered.
    """

    def share(answers: Labels) -> Interval:
        return share_interval(int((answers == labels).sum()), len(labels), confidence=confidence)

    spoilt: dict[str, tuple[Interval, ...]] = {}
    for done, kind in enumerate(KINDS, 1):
        spoilt[kind] = tuple(share(answer(corrupt(pictures, kind, strength))) for strength in STRENGTHS)
        report(done * len(STRENGTHS) * len(labels))
    return Robustness(len(labels), share(clean), spoilt)
