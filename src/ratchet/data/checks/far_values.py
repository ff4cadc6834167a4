"""Values far from all others, such as 9.96921e+36 for a missing measurement, and the moments of the others.

One such value makes mean and standard deviation useless: all other values become equal in float32.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["Moments", "inner", "is_compact", "moments"]

Floats = NDArray[np.float64]

_GAP = 10.0  # times as far from the median as the value before it, and as nine tenths of the other side
_WIDE_GAP, _WIDE_SHARE = 100.0, 0.01  # of different values, and the share of the values that can be beyond it
_HUGE_GAP, _HUGE_SHARE = 1e6, 0.1
_FEW = 3  # rows that few values can have, rows of each fill value, and fill values, however many rows have them
_CODES = 8  # fill values of at most _HUGE_SHARE of the rows
_FEWEST = 20  # values of which some can be far
_SAMPLE = 10_000
_SIDES: tuple[Literal["left", "right"], ...] = ("left", "right")


@dataclass(frozen=True)
class Moments:
    """Mean and standard deviation (never 0) of the values that are not far, and their range if others are."""

    mean: float
    std: float
    range: tuple[float, float] | None = None  # smallest and largest value that is not far; None: no value is

    @property
    def limits(self) -> tuple[float, ...]:
        """Range for a network, where a far value still differs from all others; empty: no value is far."""
        if self.range is None:
            return ()
        low, high = self.range
        width = high - low if high > low else 1.0
        return low - width, high + width


def moments(values: NDArray[np.floating]) -> Moments:
    """Return the moments of finite values; at least one, in any order and shape."""
    flat = values.reshape(-1)
    if is_compact(flat):
        return _moments(flat)
    ordered = np.sort(flat.astype(np.float64))
    core = ordered[inner(ordered)]
    usual = _moments(core)
    return usual if len(core) == len(ordered) else Moments(usual.mean, usual.std, (float(core[0]), float(core[-1])))


def inner(ordered: Floats) -> slice:
    """Return where sorted finite values are not far from the others."""
    if len(ordered) < _FEWEST:
        return slice(0, len(ordered))
    middle, tenth = len(ordered) // 2, len(ordered) // 10
    median = ordered[middle]
    if _is_heavy(ordered):
        first, end = (int(np.searchsorted(ordered, median, side=side)) for side in _SIDES)
        others = np.delete(ordered, slice(first, end))
        core = inner(others)
        on_one_side = core.stop <= first or core.start >= first
        if on_one_side and _is_fill(median, others[core]):
            moved = 0 if core.stop <= first else end - first
            return slice(core.start + moved, core.stop + moved)
    below, above = median - ordered[tenth], ordered[-1 - tenth] - median
    low = _far(median - ordered[middle::-1], below if below else 0.0, above, len(ordered))
    high = _far(ordered[middle:] - median, above, below, len(ordered))
    return slice(low, len(ordered) - high)


def _is_heavy(ordered: Floats) -> bool:
    """Return whether the median of sorted values, if it is not 0, is that of a large share of them."""
    middle, share = len(ordered) // 2, len(ordered) // 5
    return bool(ordered[middle] != 0 and ordered[middle] in (ordered[middle - share], ordered[middle + share]))


def _is_fill(value: float, others: Floats) -> bool:
    """Return whether one value, of most rows, is far from the sorted others, which differ from each other."""
    if len(others) < _FEWEST:
        return False
    median = others[len(others) // 2]
    widest = max(median - others[0], others[-1] - median)
    return bool(widest > 0 and abs(value - median) >= _GAP * widest)


def _far(distances: Floats, own: float, other: float, total: int) -> int:
    """Return how many values of one side are far: `distances` from the median, increasing."""
    if distances[-1] < _GAP * other:
        return 0
    before = np.maximum(distances[:-1], other)
    gaps = np.divide(distances[1:], before, out=np.zeros_like(before), where=before > 0)
    for place in np.flatnonzero(gaps >= _GAP):
        beyond = distances[place + 1 :]
        different = int(np.count_nonzero(np.diff(beyond))) + 1
        most = _CODES if len(beyond) <= _HUGE_SHARE * total else _FEW
        is_fill = different <= most and len(beyond) >= _FEW * different
        is_few = gaps[place] >= _WIDE_GAP and len(beyond) <= max(_FEW, _WIDE_SHARE * total)
        if is_fill or is_few or (gaps[place] >= _HUGE_GAP and len(beyond) <= _HUGE_SHARE * total):
            return len(beyond)
    return 0


def is_compact(flat: NDArray[np.floating]) -> bool:
    """Return whether no value can be far, by the spread of a sample. This saves sorting many values."""
    ordered = np.sort(flat[:: len(flat) // _SAMPLE + 1].astype(np.float64))
    if _is_heavy(ordered):
        return False
    tenth, median = len(ordered) // 10, ordered[len(ordered) // 2]
    below, above = float(flat.min()) - median, float(flat.max()) - median
    low, high = median - ordered[tenth], ordered[-1 - tenth] - median
    return bool(above < _GAP / 2 * low and -below < _GAP / 2 * high)


def _moments(values: NDArray[np.floating]) -> Moments:
    std = float(values.std(dtype=np.float64)) if values.max() > values.min() else 0.0
    return Moments(float(values.mean(dtype=np.float64)), std if std > 0 else 1.0)
