"""The independent units of test samples: groups, and images with their copies.

The samples of a group err together, and copies always do, so they are no independent proof: a test over units needs no
assumption about the samples of one (Donner and Klar 2000, "Design and Analysis of Cluster Randomization Trials in
Health Research"). A unit counts by the sum of its samples, never by their mean: the mean over rows is what decides.
"""

from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ratchet.evaluation.intervals import Interval, mean_of

__all__ = ["SharedBy", "UnitVotes", "Units", "p_of_both"]

SharedBy = Literal["groups", "copies"]
_ROUNDING = 1e-12  # of the sum of all sizes: a smaller sum is 0


@dataclass(frozen=True)
class UnitVotes:
    """Units that were compared, and on how many of them the candidate's or the champion's sum of scores is larger."""

    count: int
    by: SharedBy
    better: int
    worse: int


@dataclass(frozen=True)
class Units:
    """Units of samples, at least two of which share one."""

    by: SharedBy
    numbers: NDArray[np.int64]  # of each sample's unit, (samples,), from 0 without a gap

    @classmethod
    def of(cls, by: SharedBy, keys: NDArray[np.number]) -> "Units | None":
        """Return the units of samples, where equal keys are one unit; None: each sample is one."""
        different, numbers = np.unique(keys, return_inverse=True)
        return cls(by, numbers) if len(different) < len(keys) else None

    def at(self, rows: NDArray[np.int64]) -> "Units | None":
        """Return the units of some of the samples; None: each of these is one."""
        return Units.of(self.by, self.numbers[rows])

    @property
    def count(self) -> int:
        return int(self.numbers.max()) + 1

    def digest(self, rows: NDArray[np.int64], count: int) -> str:
        """Return the SHA-256 (hex) over which of `count` samples share a unit, whatever the units are called.

        `rows` are the numbers of these samples among them.
        """
        units = np.full(count, -1)
        units[rows] = np.unique(self.numbers, return_index=True)[1][self.numbers]
        return sha256(units.astype("<i8").tobytes()).hexdigest()

    def sums(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the sum of each unit's values, (units,). Values that cancel each other add up to 0 exactly."""
        sums = np.bincount(self.numbers, weights=values).astype(np.float64, copy=False)
        sums[np.abs(sums) <= _ROUNDING * np.bincount(self.numbers, weights=np.abs(values))] = 0.0
        return sums

    def votes(self, gains: NDArray[np.float64]) -> UnitVotes:
        """Return the votes of the units by the score of the candidate minus that of the champion, (samples,)."""
        sums = self.sums(gains)
        return UnitVotes(self.count, self.by, int(np.count_nonzero(sums > 0)), int(np.count_nonzero(sums < 0)))

    def sizes(self) -> NDArray[np.float64]:
        """Return the samples that an unseen unit like each of these may have, (units,).

        Groups that are not among the samples may be as large as any. That an image has copies here says nothing about
        images that are not here: each is one.
        """
        sizes = np.bincount(self.numbers)
        return np.where((sizes > 1) & (self.by == "groups"), sizes.max(), 1.0)

    def mean(self, values: NDArray[np.float64], *, confidence: float) -> Interval:
        """Return the mean of the samples' values, with the interval that its units give."""
        rows = len(values) / self.count
        interval = mean_of(self.sums(values), confidence=confidence)
        return Interval(low=interval.low / rows, value=float(values.mean()), high=interval.high / rows)


def p_of_both(groups: Units, copies: Units, values: NDArray[np.float64]) -> float:
    """Return the p-value of "the mean is at most 0" where samples depend on each other by group and by image.

    The variance is that by groups plus that by images less that by both (Cameron, Gelbach and Miller 2011, "Robust
    Inference with Multiway Clustering"), or the largest of the first two.
    """
    from scipy.stats import norm

    both = Units(groups.by, np.unique(groups.numbers * copies.count + copies.numbers, return_inverse=True)[1])
    by_group, by_image, by_both = (float((units.sums(values) ** 2).sum()) for units in (groups, copies, both))
    variance = max(by_group, by_image, by_group + by_image - by_both)
    return float(norm.sf(values.sum() / variance**0.5)) if variance else 1.0
