"""Pictures that look the same though their pixels differ: saved again, scaled, a little brighter.

Each picture has a fingerprint of 64 bits: which of its lowest frequencies lie above their median (a perceptual hash,
Zauner 2010). Pictures whose fingerprints share one of four parts are compared bit by bit, and those that differ in
few are compared as pictures, because flat ones have alike fingerprints by chance.

Mirrored, turned and cropped copies have other fingerprints: `transformed` looks for them.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ratchet.data.checks.transformed_duplicates import LEAST_SIDE, THUMBNAIL, statistics, transformed_pairs
from ratchet.data.reading.images import in_grey

__all__ = ["SIDE", "Looks", "NearDuplicates", "fingerprints", "look", "pairs"]

Fingerprints = NDArray[np.uint64]

SIDE = 8  # frequencies a side of a fingerprint, and pixels a side of the small picture that goes with it
_WHOLE = 1024  # what a cosine of 1 is
_AT_ONCE = 1 << 16  # values, of eight bytes each: they stay in the processor's cache
_BITS = 8  # that alike pictures may differ in, of 64
_PARTS = 4  # of 16 bits: fingerprints that differ in three bits or fewer share one for certain
_PAIRS_AT_ONCE = 1 << 16  # pairs of pictures that are held in memory and compared
_CROWD = 2_000  # pictures that share a part: more of them are pictures of nothing, not copies of each other
_ALIKE = 0.98  # correlation of the small pictures


class Looks(NamedTuple):
    """What images are compared by. Images of fewer than 16 pixels a side have no thumbnails and no statistics."""

    marks: Fingerprints
    small: NDArray[np.uint8]
    thumbnails: NDArray[np.uint8]
    statistics: NDArray[np.float32]


class NearDuplicates:
    """Takes the looks of all images of a set, some at a time, and finds those that look the same."""

    def __init__(self) -> None:
        self._looks: list[Looks] = []

    def add(self, looks: Looks) -> None:
        """Take the looks of some more images."""
        self._looks.append(looks)

    def pairs(self, index: pl.DataFrame, read: Callable[[NDArray[np.int64]], NDArray[np.uint8]]) -> pl.DataFrame:
        """Pairs that look the same though their pixels differ: ids and splits of `one` and `other`, and `change`.

        Args:
            index: columns id, split and pixels; its rows are the images in the order of adding.
            read: gives the packed images of some of these rows.

        Returns:
            `change` is "none" for images that look the same as they are, else "turned" (mirrored too) or "cropped".
        """
        ordered = index.select("id", "split", "pixels")
        looks = Looks(*map(np.concatenate, zip(*self._looks, strict=True)))
        found = [pairs(looks.marks, looks.small).select("one", "other", change=pl.lit("none"))]
        if len(looks.thumbnails) == len(looks.marks):
            first = ordered.with_row_index("row").unique("pixels", keep="first", maintain_order=True)["row"]
            rows = first.to_numpy().astype(np.int64)
            found.append(transformed_pairs(looks.statistics, looks.thumbnails, read, rows=rows))
        joined = pl.concat(found).unique(["one", "other"], keep="first", maintain_order=True).sort("one", "other")
        one, other = (ordered[joined[name].to_numpy()] for name in ("one", "other"))
        named = one.rename(lambda name: f"one_{name}").hstack(other.rename(lambda name: f"other_{name}"))
        named = named.with_columns(joined["change"])
        return named.filter(pl.col("one_pixels") != pl.col("other_pixels")).drop("one_pixels", "other_pixels")


def look(pixels: NDArray[np.uint8]) -> Looks:
    """What images, uint8 (n, side, side, channels), are compared by. Equal images have equal looks on every machine."""
    marks, small = fingerprints(pixels)
    if pixels.shape[1] < LEAST_SIDE:
        return Looks(marks, small, np.zeros((0, THUMBNAIL, THUMBNAIL), np.uint8), np.zeros((0, 9), np.float32))
    thumbnails = np.zeros((len(pixels), THUMBNAIL, THUMBNAIL), np.uint8)
    measured = np.zeros((len(pixels), 9), np.float32)
    cells = _boxes(pixels.shape[1], THUMBNAIL)
    step = max(1, _AT_ONCE // max(1, pixels[:1].size))
    for start in range(0, len(pixels), step):
        some = slice(start, start + step)
        sums = cells @ in_grey(pixels[some]).astype(np.float64) @ cells.T
        thumbnails[some] = np.rint(sums / pixels.shape[1] ** 2)
        measured[some] = statistics(pixels[some])
    return Looks(marks, small, thumbnails, measured)


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
    both = np.concatenate([_waves(side), _boxes(side, SIDE)])  # along the rows, one product for the two of them
    along = (grey.reshape(-1, side) @ both.T).reshape(count, side, 2 * SIDE)
    frequencies = (_waves(side) @ along[..., :SIDE]).reshape(count, SIDE * SIDE)
    means = _boxes(side, SIDE) @ along[..., SIDE:]
    frequencies[:, 0] = 0.0  # the mean, which says how bright it is and nothing else
    middle = np.partition(frequencies, (31, 32), axis=1)[:, 31:33].sum(axis=1, keepdims=True)
    marks = np.packbits(2 * frequencies > middle, axis=1).view(">u8").ravel().astype(np.uint64)
    return marks, np.rint(means / side**2).astype(np.uint8)


def pairs(marks: Fingerprints, small: NDArray[np.uint8]) -> pl.DataFrame:
    """Which pictures look the same: columns `one` and `other`, rows with one < other, and `bits` they differ in."""
    rows = pl.DataFrame({"row": np.arange(len(marks), dtype=np.int64), "mark": marks})
    found = [pl.DataFrame(schema={"one": pl.Int64, "other": pl.Int64, "bits": pl.Int64})]
    for part in range(_PARTS):
        keyed = rows.with_columns(key=pl.Series((marks >> np.uint64(16 * part)) & np.uint64(0xFFFF)))
        keyed = keyed.filter(pl.len().over("key").is_between(2, _CROWD)).sort("key", maintain_order=True)
        for some, others in _groups(keyed):
            met = some.join(others, on="key", suffix="_other").filter(pl.col("row") < pl.col("row_other"))
            bits = np.bitwise_count(met["mark"].to_numpy() ^ met["mark_other"].to_numpy())
            near = met.select(one="row", other="row_other", bits=pl.Series(bits, dtype=pl.Int64))
            near = near.filter(pl.col("bits") <= _BITS)
            one, other = _normal(small[near["one"].to_numpy()]), _normal(small[near["other"].to_numpy()])
            found.append(near.filter(pl.Series((one * other).sum(axis=1) >= _ALIKE, dtype=pl.Boolean)))
    return pl.concat(found).unique().sort("one", "other")


def _groups(keyed: pl.DataFrame) -> Iterator[tuple[pl.DataFrame, pl.DataFrame]]:
    """Rows, which are sorted by key, and those they are to be joined with: no more pairs at once than are held."""
    keys = keyed["key"].to_numpy()
    first, last = np.searchsorted(keys, keys, "left"), np.searchsorted(keys, keys, "right")
    part = np.cumsum(last - first) // _PAIRS_AT_ONCE
    cuts = [0, *(np.flatnonzero(np.diff(part)) + 1).tolist(), len(keys)]
    for start, end in pairwise(cuts):
        if end > start:
            yield keyed[start:end], keyed[int(first[start]) : int(last[end - 1])]


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
def _boxes(side: int, cells: int) -> NDArray[np.float64]:
    """What makes sums of `side` pixels, each counted `cells` times in all: float64 (cells, side)."""
    low, high = np.arange(cells)[:, None] * side, np.arange(1, cells + 1)[:, None] * side
    start = np.arange(side)[None, :] * cells
    sums: NDArray[np.float64] = np.clip(np.minimum(high, start + cells) - np.maximum(low, start), 0, cells).astype(
        float
    )
    return sums
