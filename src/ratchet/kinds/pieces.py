"""Pieces of a token stream: the samples on which language models are compared.

A piece is some whole lines, at least PIECE bytes of them. No token crosses the end of a line, so each token is in one
piece, whichever tokenizer a model has.
"""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

__all__ = ["PIECE", "piece_bounds"]

PIECE = 512  # bytes
_NEW_LINE = 10
_AT_ONCE = 1 << 24  # bytes


def piece_bounds(text: NDArray[np.uint8]) -> list[tuple[int, int]]:
    """Return start and end of each piece of a text in UTF-8, uint8 (bytes,)."""
    starts = range(0, max(1, len(text)), _AT_ONCE)
    lines = np.concatenate([np.flatnonzero(text[at : at + _AT_ONCE] == _NEW_LINE) + (at + 1) for at in starts])
    ends = [0]
    while (place := int(np.searchsorted(lines, ends[-1] + PIECE))) < len(lines):
        ends.append(int(lines[place]))
    if len(text) - ends[-1] >= PIECE or len(ends) == 1:
        ends.append(len(text))
    ends[-1] = len(text)  # a short rest belongs to the last piece
    return list(pairwise(ends))
