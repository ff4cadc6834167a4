"""Pictures that look the same though their pixels differ: saved again, scaled, a little brighter.

Each picture has a fingerprint of 64 bits: which of its lowest frequencies lie above their median (a perceptual hash,
Zauner 2010). Pictures whose fingerprints share one of four parts are compared bit by bit, and those that differ in
few are compared as pictures, because flat ones have alike fingerprints by chance.
"""

from functools import lru_cache

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ratchet.data.split import SPLITS

__all__ = ["SIDE", "Likeness", "fingerprints", "pairs"]

Fingerprints = NDArray[np.uint64]

SIDE = 8  # frequencies a side of a fingerprint, and pixels a side of the small picture that goes with it
_LUMA = np.array([0.299, 0.587, 0.114], np.float32)  # as Pillow makes colours grey
_BITS = 8  # that alike pictures may differ in, of 64
_PARTS = 4  # of 16 bits: fingerprints that differ in three bits or fewer share one for certain
_CROWD = 2_000  # pictures that share a part: more of them are pictures of nothing, not copies of each other
_ALIKE = 0.98  # correlation of the small pictures


class Likeness:
    """Looks at all pictures of a set, some at a time, and tells which look the same."""

    def __init__(self) -> None:
        self._marks: list[Fingerprints] = []
        self._small: list[NDArray[np.uint8]] = []

    def look(self, pixels: NDArray[np.uint8]) -> None:
        """At some more pictures, uint8 (n, side, side, channels)."""
        marks, small = fingerprints(pixels)
        self._marks.append(marks)
        self._small.append(small)

    def pairs(self, index: pl.DataFrame) -> pl.DataFrame:
        """Pairs that look the same though their pixels differ: ids and splits of `one` and `other`.

        `index` has the columns id, split and pixels; split by split its rows are the pictures in the order of looking.
        """
        ordered = pl.concat([index.filter(pl.col("split") == name) for name in SPLITS]).select("id", "split", "pixels")
        found = pairs(np.concatenate(self._marks), np.concatenate(self._small))
        one, other = (ordered[found[name].to_numpy()] for name in ("one", "other"))
        told = one.rename(lambda name: f"one_{name}").hstack(other.rename(lambda name: f"other_{name}"))
        return told.filter(pl.col("one_pixels") != pl.col("other_pixels")).drop("one_pixels", "other_pixels")


def fingerprints(pixels: NDArray[np.uint8]) -> tuple[Fingerprints, NDArray[np.uint8]]:
    """Of pictures uint8 (n, side, side, channels): uint64 (n,), and their small grey selves, uint8 (n, 8, 8)."""
    grey = (pixels @ _LUMA if pixels.shape[-1] == 3 else pixels[..., 0]).astype(np.float32)
    waves, boxes = _waves(grey.shape[1]), _boxes(grey.shape[1])
    frequencies = (waves @ grey @ waves.T).reshape(len(grey), SIDE * SIDE)
    frequencies[:, 0] = 0.0  # the mean, which says how bright it is and nothing else
    bits = frequencies > np.median(frequencies, axis=1, keepdims=True)
    small = np.rint(boxes @ grey @ boxes.T).astype(np.uint8)
    return np.packbits(bits, axis=1).view(">u8").ravel().astype(np.uint64), small


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
def _waves(side: int) -> NDArray[np.float32]:
    """The lowest cosines over `side` pixels: float32 (8, side), each of length one."""
    place = (np.arange(side) + 0.5) * np.pi / side
    waves = np.cos(np.outer(np.arange(SIDE), place))
    lowest: NDArray[np.float32] = (waves / np.linalg.norm(waves, axis=1, keepdims=True)).astype(np.float32)
    return lowest


@lru_cache
def _boxes(side: int) -> NDArray[np.float32]:
    """What makes eight means of `side` pixels: float32 (8, side)."""
    edges = np.arange(SIDE + 1) * side / SIDE
    low, high = edges[:-1, None], edges[1:, None]
    start = np.arange(side)[None, :]
    covered = np.clip(np.minimum(high, start + 1) - np.maximum(low, start), 0, 1)
    means: NDArray[np.float32] = (covered / covered.sum(axis=1, keepdims=True)).astype(np.float32)
    return means
