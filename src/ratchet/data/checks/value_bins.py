"""Edges of bins for numbers, where a value of many rows is alone in its bin."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["value_edges"]

Floats = NDArray[np.float64]


def value_edges(ordered: Floats, *, limit: int) -> Floats:
    """Return edges between bins of sorted numbers: bin k has the values from edge k - 1 to below edge k.

    Of at most `limit` different values each but the smallest is an edge, so a flag that is 1 in 2 % has two bins. Of
    more, a value with more than its share of the rows has a bin of its own, such as the 0 of most capital gains, and
    the others are cut at quantiles.
    """
    starts = np.flatnonzero(np.diff(ordered, prepend=np.nan))
    distinct, counts = ordered[starts], np.diff(starts, append=len(ordered))
    if len(distinct) <= limit:
        return distinct[1:]
    is_heavy = counts * limit > len(ordered)
    places = np.flatnonzero(is_heavy)
    alone = distinct[np.concatenate([places, np.minimum(places + 1, len(distinct) - 1)])]
    rest = np.repeat(distinct[~is_heavy], counts[~is_heavy])
    cuts = max(1, limit - len(places))
    shares = np.arange(1, cuts) / cuts
    return np.unique(np.concatenate([alone, rest[np.rint(shares * (len(rest) - 1)).astype(np.int64)]]))
