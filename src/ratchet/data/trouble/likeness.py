"""Pictures that look the same though their pixels differ: saved again, scaled, a little brighter.

Each picture has a fingerprint of 64 bits: which of its lowest frequencies lie above their median (a perceptual hash,
Zauner 2010). Pictures whose fingerprints share one of four parts are compared bit by bit, and those that differ in
few are compared as pictures, because flat ones have alike fingerprints by chance.
"""

from functools import lru_cache

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ratchet.data.reading.pictures import in_grey

__all__ = ["SIDE", "Likeness", "fingerprints", "pairs"]

Fingerprints = NDArray[np.uint64]

SIDE = 8  # frequencies a side of a fingerprint, and pixels a side of the small picture that goes with it
_WHOLE = 1024  # what a cosine of 1 is
_AT_ONCE = 1 << 16  # values, of eight bytes each: they stay in the processor's cache
_BITS = 8  # that alike pictures may differ in, of 64
_PARTS = 4  # of 16 bits: fingerprints that differ in three bits or fewer share one for certain
_CROWD = 2_000  # pictures that share a part: more of them are pictures of nothing, not copies of each other
_ALIKE = 0.98  # correlation of the small pictures


class Likeness:
    """Takes the fingerprints of all pictures of a set, some at a time, and tells which look the same."""

    def __init__(self) -> None:
        self._marks: list[Fingerprints] = []
        self._small: list[NDArray[np.uint8]] = []

    def add(self, marks: Fingerprints, small: NDArray[np.uint8]) -> None:
        """Some more pictures' fingerprints."""
        self._marks.append(marks)
        self._small.append(small)

    def pairs(self, index: pl.DataFrame) -> pl.DataFrame:
        """Pairs that look the same though their pixels differ: ids and splits of `one` and `other`.

        `index` has the columns id, split and pixels; its rows are the pictures in the order of adding.
        """
        ordered = index.select("id", "split", "pixels")
        found = pairs(np.concatenate(self._marks), np.concatenate(self._small))
        one, other = (ordered[found[name].to_numpy()] for name in ("one", "other"))
        told = one.rename(lambda name: f"one_{name}").hstack(other.rename(lambda name: f"other_{name}"))
        return told.filter(pl.col("one_pixels") != pl.col("other_pixels")).drop("one_pixels", "other_pixels")


def fingerprints(pixels: NDArray[np.uint8]) -> tuple[Fingerprints, NDArray[np.uint8]]:
    """Of pictures uint8 (n, side, side, channels): uint64 (n,), and their small grey selves, uint8 (n, 8, 8).

    All sums are of whole numbers that doubles hold exactly, so equal pictures have equal fingerprints everywhere.
    """
    marks, small = np.zeros(len(pixels), np.uint64), np.zeros((len(pixels), SIDE, SIDE), np.uint8)
    step = max(1, _AT_ONCE // max(1, pixels[:1].size))
    for start in range(0, len(pixels), step):
        some = slice(start, start + step)
        marks[some], small[some] = _fingerprints(pixels[some])
    return marks, small


def _fingerprints(pixels: NDArray[np.uint8]) -> tuple[Fingerprints, NDArray[np.uint8]]:
    count, side = pixels.shape[:2]
    grey = in_grey(pixels).astype(np.float64)
    both = np.concatenate([_waves(side), _boxes(side)])  # along the rows, one product for the two of them
    along = (grey.reshape(-1, side) @ both.T).reshape(count, side, 2 * SIDE)
    frequencies = (_waves(side) @ along[..., :SIDE]).reshape(count, SIDE * SIDE)
    means = _boxes(side) @ along[..., SIDE:]
    frequencies[:, 0] = 0.0  # the mean, which says how bright it is and nothing else
    middle = np.partition(frequencies, (31, 32), axis=1)[:, 31:33].sum(axis=1, keepdims=True)
    marks = np.packbits(2 * frequencies > middle, axis=1).view(">u8").ravel().astype(np.uint64)
    return marks, np.rint(means / side**2).astype(np.uint8)


def pairs(marks: Fingerprints, small: NDArray[np.uint8]) -> pl.DataFrame:
    """Which pictures look the same: columns `one` and `other`, rows with one < other, and `bits` they differ in."""
    rows = pl.DataFrame({"row": np.arange(len(marks), dtype=np.int64), "mark": marks})
    found = []
    for part in range(_PARTS):
        keyed = rows.with_columns(key=pl.Series((marks >> np.uint64(16 * part)) & np.uint64(0xFFFF)))
        keyed = keyed.filter(pl.len().over("key").is_between(2, _CROWD))
        met = keyed.join(keyed, on="key", suffix="_other").filter(pl.col("row") < pl.col("row_other"))
        bits = np.bitwise_count(met["mark"].to_numpy() ^ met["mark_other"].to_numpy())
        near = met.select(one="row", other="row_other", bits=pl.Series(bits, dtype=pl.Int64))
        found.append(near.filter(pl.col("bits") <= _BITS))
    close = pl.concat(found).unique().sort("one", "other")
    one, other = close["one"].to_numpy(), close["other"].to_numpy()
    alike = (_normal(small[one]) * _normal(small[other])).sum(axis=1)
    return close.filter(pl.Series(alike >= _ALIKE))


def _normal(small: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Small pictures as vectors of length one around zero, so that brightness and contrast count nothing."""
    flat = small.reshape(-1, SIDE * SIDE).astype(np.float32)
    flat -= flat.mean(axis=1, keepdims=True)
    normal: NDArray[np.float32] = flat / np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-6)
    return normal


@lru_cache
def _waves(side: int) -> NDArray[np.float64]:
    """The lowest cosines over `side` pixels, all of about one length, in whole numbers: float64 (8, side)."""
    waves = np.cos(np.outer(np.arange(SIDE), (np.arange(side) + 0.5) * np.pi / side))
    waves[0] /= 2**0.5  # as in the orthonormal transform
    lowest: NDArray[np.float64] = np.rint(_WHOLE * waves)
    return lowest


@lru_cache
def _boxes(side: int) -> NDArray[np.float64]:
    """What makes eight sums of `side` pixels, each counted eight times in all: float64 (8, side)."""
    low, high = np.arange(SIDE)[:, None] * side, np.arange(1, SIDE + 1)[:, None] * side
    start = np.arange(side)[None, :] * SIDE
    sums: NDArray[np.float64] = np.clip(np.minimum(high, start + SIDE) - np.maximum(low, start), 0, SIDE).astype(float)
    return sums
