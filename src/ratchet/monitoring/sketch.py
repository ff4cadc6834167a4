"""Bins of a feature, and counts of the rows of a window in them. Counts of two parts of a window can be added."""

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ratchet.kinds.protocol import UNKNOWN
from ratchet.typed_json import STRICT

__all__ = ["FeatureBins", "WindowSketch", "layout_of"]

_BINS = 20  # quantiles of a number, and categories of a column
_NOT_NAMED = ("missing", "unknown", "other")  # bins before those of the categories


@dataclass(frozen=True)
class FeatureBins:
    """Bins of one feature. They are fixed by the rows of the reference.

    Attributes:
        edges: upper ends of the bins of a number; the last bin has no end.
        categories: with bins of their own; None: the feature is a number.
    """

    name: str
    edges: tuple[float, ...] = ()
    categories: tuple[str, ...] | None = None

    __pydantic_config__ = STRICT

    @property
    def is_number(self) -> bool:
        return self.categories is None

    @property
    def bins(self) -> int:
        """Number of bins. The first is for missing values."""
        return len(self.edges) + 2 if self.categories is None else len(self.categories) + len(_NOT_NAMED)

    @property
    def names(self) -> list[str]:
        """Names of the bins for people."""
        if self.categories is not None:
            return [*_NOT_NAMED, *self.categories]
        ends = [f"{edge:.4g}" for edge in self.edges]
        middle = [f"{low} to {high}" for low, high in pairwise(ends)]
        return ["missing", *([f"up to {ends[0]}", *middle, f"above {ends[-1]}"] if ends else ["any number"])]

    def count(self, values: NDArray[Any]) -> list[int]:
        """Return the number of values in each bin."""
        if self.categories is None:
            numbers = np.asarray(values, np.float64)
            is_missing = np.isnan(numbers)
            places = np.searchsorted(self.edges, numbers[~is_missing], side="left") + 1
            counts: list[int] = np.bincount(places, minlength=self.bins).tolist()
            return [int(is_missing.sum()), *counts[1:]]
        frequency = Counter(values.tolist())
        missing, unknown = frequency.pop(None, 0), frequency.pop(UNKNOWN, 0)
        named = [frequency.get(category, 0) for category in self.categories]
        return [missing, unknown, frequency.total() - sum(named), *named]


def layout_of(name: str, values: NDArray[Any]) -> FeatureBins:
    """Return the bins for the values of a reference: numbers (NaN: missing), or an object array (None: missing).

    Numbers get bins between their quantiles, one below and one above all. Frequent values get bins of their own.
    """
    if values.dtype == object:
        frequency = Counter(value for value in values.tolist() if value is not None and value != UNKNOWN)
        common = sorted(frequency, key=lambda value: (-frequency[value], value))[:_BINS]
        return FeatureBins(name, categories=tuple(common))
    numbers = np.asarray(values, np.float64)
    numbers = numbers[np.isfinite(numbers)]
    if not len(numbers):
        return FeatureBins(name)
    quantiles = np.quantile(numbers, np.linspace(0, 1, _BINS + 1), method="inverted_cdf")
    edges, repeats = np.unique(quantiles, return_counts=True)
    own = edges[(repeats > 1) | (edges == edges[0])]  # the bin below such a value ends just before it
    return FeatureBins(name, tuple(np.unique(np.concatenate([edges, np.nextafter(own, -np.inf)])).tolist()))


@dataclass(frozen=True)
class WindowSketch:
    """Rows of one version in one window.

    Attributes:
        start: of the window, seconds since 1970.
        rows: that were logged when the window closed.
        counts: rows in each bin, by feature; empty until the version has a reference.
        late: rows that came after the window closed; they are not in `rows` or `counts`.
    """

    start: int
    rows: int
    counts: dict[str, list[int]]
    late: int = 0

    __pydantic_config__ = STRICT

    def __add__(self, other: "WindowSketch") -> "WindowSketch":
        counts = dict(self.counts)
        for name, added in other.counts.items():
            counts[name] = [a + b for a, b in zip(counts[name], added, strict=True)] if name in counts else added
        return WindowSketch(self.start, self.rows + other.rows, counts, self.late + other.late)
