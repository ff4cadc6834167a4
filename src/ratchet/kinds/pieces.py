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


def piece_bounds(text: NDArray[np.uint8]) -> list[tuple[int, int]]:
    """Return start and end of each piece of a text in UTF-8, uint8 (bytes,)."""
    ends = [0]
    for end in (np.flatnonzero(text == _NEW_LINE) + 1).tolist():
        if end - ends[-1] >= PIECE:
            ends.append(end)
    if len(text) - ends[-1] >= PIECE or len(ends) == 1:
        ends.append(len(text))
    ends[-1] = len(text)  # a short rest belongs to the last piece
    return list(pairwise(ends))
