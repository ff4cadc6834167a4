"""Bins of a feature, and counts of the rows of a window in them. Counts of two parts of a window can be added."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ratchet.kinds.protocol import UNKNOWN
from ratchet.typed_json import STRICT

__all__ = ["REFERENCE", "REQUESTS", "FeatureBins", "Reference", "WindowSketch", "layout_of", "refusal"]

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
        different = sum(np.nextafter(edge, np.inf) not in self.edges for edge in self.edges)
        texts = ([f"{edge:.{digits}g}" for edge in self.edges] for digits in range(4, 17))
        ends = next((each for each in texts if len({*each}) >= different), [f"{edge!r}" for edge in self.edges])
        middle = [high if low == high else f"{low} to {high}" for low, high in pairwise(ends)]
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


def layout_of(name: str, values: NDArray[Any], *, has_ends: bool = True) -> FeatureBins:
    """Return the bins for the values of a reference: numbers (NaN: missing), or an object array (None: missing).

    Numbers get bins between their quantiles, one below and one above all. Frequent values get bins of their own.
    `has_ends`: with the smallest and the largest number.
    """
    if values.dtype == object:
        frequency = Counter(value for value in values.tolist() if value is not None and value != UNKNOWN)
        common = sorted(frequency, key=lambda value: (-frequency[value], value))[:_BINS]
        return FeatureBins(name, categories=tuple(common))
    numbers = np.asarray(values, np.float64)
    numbers = numbers[np.isfinite(numbers)]
    if not len(numbers):
        return FeatureBins(name)
    shares = np.linspace(0, 1, _BINS + 1)
    quantiles = np.quantile(numbers, shares if has_ends else shares[1:-1], method="inverted_cdf")
    edges, repeats = np.unique(quantiles, return_counts=True)
    own = edges[(repeats > 1) | (edges == edges[0])]  # the bin below such a value ends just before it
    return FeatureBins(name, tuple(np.unique(np.concatenate([edges, np.nextafter(own, -np.inf)])).tolist()))


def refusal(status: int) -> str:
    """Return the name of requests that were refused with an HTTP status."""
    return f"refused ({status})"


REQUESTS = FeatureBins("requests", categories=("answered", *map(refusal, (400, 401, 403, 404, 413, 415, 422))))
"""Requests of a window by their result. Overload, faults of the server and clients that left are not watched."""


REFERENCE = "reference.json"
"""File of a version with its `Reference`."""


@dataclass(frozen=True)
class Reference:
    """Bins and counts with which a version is watched.

    Attributes:
        layouts: bins of each feature.
        counts: test rows in each bin, by feature; empty: the version has no test rows, and its first windows are used.
    """

    layouts: list[FeatureBins]
    counts: dict[str, list[int]] = field(default_factory=dict)

    __pydantic_config__ = STRICT

    def fitting(self, features: Mapping[str, NDArray[Any]]) -> list[FeatureBins]:
        """Return the bins for the features that are there and of the same type."""
        types = {name: values.dtype != object for name, values in features.items()}
        return [each for each in self.layouts if types.get(each.name) == each.is_number]


@dataclass(frozen=True)
class WindowSketch:
    """Counts of the requests to one version in one window.

    Attributes:
        version: NAME/VERSION.
        start: of the window, seconds since 1970.
        rows: that are counted: those that the model itself answered, without repeated requests.
        counts: rows in each bin, by feature.
        requests: by result, with those that were logged, repeated, or answered in another way.
        bins: digest of the bins; empty: no row is counted.
    """

    version: str
    start: int
    rows: int = 0
    counts: dict[str, list[int]] = field(default_factory=dict)
    requests: dict[str, int] = field(default_factory=dict)
    bins: str = ""

    __pydantic_config__ = STRICT

    def __add__(self, other: "WindowSketch") -> "WindowSketch":
        """Return both together. Counts in other bins cannot be added: only the number of their rows is."""
        requests = Counter(self.requests) + Counter(other.requests)
        counts, rows = dict(self.counts), self.rows + other.rows
        if self.bins and other.bins and self.bins != other.bins:
            requests += Counter({"rows in other bins": other.rows})
            rows = self.rows
        else:
            for name, added in other.counts.items():
                counts[name] = [a + b for a, b in zip(counts[name], added, strict=True)] if name in counts else added
        return WindowSketch(self.version, self.start, rows, counts, dict(requests), self.bins or other.bins)

    def counts_of(self, layout: FeatureBins) -> list[int]:
        """Return the counts of a feature; zeros if the window has none."""
        if layout == REQUESTS:
            return [0, 0, 0, *(self.requests.get(name, 0) for name in layout.categories or ())]
        counts = self.counts.get(layout.name, [])
        return counts if len(counts) == layout.bins else [0] * layout.bins
