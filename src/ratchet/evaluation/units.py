"""The independent units of test rows: the groups of a group column, otherwise the different contents.

Copies of a row, and rows of one group, err together, so they are no independent proof. A unit has one vote: its mean.
Tests and intervals of these means hold however the rows of a unit depend on each other (the cluster-level analysis of
Donner and Klar 2000, "Design and Analysis of Cluster Randomization Trials in Health Research", chapters 6 and 7).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Units", "unit_means", "votes"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Units:
    """Units of rows, at least two of which share one.

    Attributes:
        numbers: of each row's unit, (rows,), from 0.
        by: what they are: groups, or different contents.
    """

    numbers: Integers
    by: str

    def at(self, rows: Integers) -> "Units":
        """Return the units of some of the rows."""
        return Units(self.numbers[rows], self.by)

    def __len__(self) -> int:
        return len(np.unique(self.numbers))

    @property
    def effective(self) -> int:
        """Number of units of equal size that say as much about a mean over the rows (Kish 1965, "Survey Sampling")."""
        sizes = np.unique(self.numbers, return_counts=True)[1].astype(np.float64)
        return int(sizes.sum() ** 2 / (sizes**2).sum())


def unit_means(values: NDArray[np.number] | NDArray[np.bool_], units: Units | None) -> Floats:
    """Return the mean of each unit's rows, (units,); the values themselves where each row is a unit."""
    if units is None:
        return values.astype(np.float64)
    _, places, sizes = np.unique(units.numbers, return_inverse=True, return_counts=True)
    means: Floats = np.bincount(places, weights=values) / sizes
    return means


def votes(classes: Integers, right: Floats, width: int, units: Units | None) -> tuple[Integers, Floats, bool]:
    """Return for each class the units that have it, how many are right, and whether a unit has several classes.

    A unit whose rows are partly right counts in part. Such a mean varies less than one of its rows drawn at random, so
    intervals for whole votes are wide enough.
    """
    own, shares = classes, right
    if units is not None:
        pairs = units.numbers * width + classes
        own, shares = np.unique(pairs) % width, unit_means(right, Units(pairs, units.by))
    counts: Integers = np.bincount(own, minlength=width).astype(np.int64)
    hits: Floats = np.bincount(own, weights=shares, minlength=width).astype(np.float64)
    return counts, hits, units is not None and len(own) > len(units)
