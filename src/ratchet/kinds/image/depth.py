"""Scaling of values of more than 8 bits to 0..255, the same for ingest and for serving."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["eight_bits", "largest", "raw_values"]


def largest(depth: int) -> int:
    """Return the value that becomes 255."""
    return (1 << depth) - 1


def eight_bits(values: NDArray[Any], depth: int) -> NDArray[np.uint8]:
    """Scale integers 0..2**depth - 1 to 0..255, rounded to the nearest; larger values become 255."""
    limit = largest(depth)
    return ((np.minimum(values.astype(np.int64), limit) * 255 + limit // 2) // limit).astype(np.uint8)


def raw_values(pixels: NDArray[np.uint8], depth: int) -> NDArray[np.uint16]:
    """Return values that `eight_bits` converts to these pixels."""
    return ((pixels.astype(np.int64) * largest(depth) + 127) // 255).astype(np.uint16)
