"""Near-duplicates: images that look the same but have different pixels: saved again, scaled, brighter.

The fingerprint of an image is a perceptual hash (Zauner 2010) of 64 bits: which of the lowest frequencies are above
their median. Images that share one of its four parts and differ in few bits are compared as 8 x 8 pixels, because flat
images have similar fingerprints by chance.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ratchet.data.reading.pixels import to_grey

__all__ = ["Signatures", "near_duplicate_pairs", "signatures", "similar_pairs"]

Rows = NDArray[np.int64]
Pixels = NDArray[np.uint8]

_SIDE = 8  # frequencies per side of a fingerprint, and pixels per side of the small image
_WHOLE = 1024  # integer that stands for a cosine of 1
_BLOCK = 1 << 16  # values of eight bytes: they fit into the processor's cache
_MAX_BITS = 8  # of 64, in which fingerprints of near-duplicates may differ
_PARTS = 4  # of 16 bits: fingerprints that differ in at most three bits always share one
_PAIRS_BLOCK = 1 << 14  # pairs of images that are in memory at once
_CROWD = 2_000  # images that share a part: more of them are empty images, not copies of each other
_MIN_CORRELATION = 0.98  # of the small images


class Signatures(NamedTuple):
    """Features by which images are compared: fingerprints uint64 (n,), small images uint8 (n, 8, 8)."""

    fingerprints: NDArray[np.uint64]
    small: Pixels


def near_duplicate_pairs(index: pl.DataFrame, blocks: list[Signatures]) -> pl.DataFrame:
    """Return pairs of near-duplicates whose pixels differ: `one_id`, `one_split`, `other_id` and `other_split`.

    `index` has columns id, split and pixels; its rows are the images of the blocks in order.
    """
    pairs, pixels = similar_pairs(Signatures(*map(np.concatenate, zip(*blocks, strict=True)))), index["pixels"]
    pairs = pairs.filter(pixels.gather(pairs["one"]) != pixels.gather(pairs["other"]))
    return pl.DataFrame(
        {f"{side}_{name}": index[name].gather(pairs[side]) for side in pairs.columns for name in ("id", "split")}
    )


def signatures(pixels: Pixels) -> Signatures:
    """Return the signatures of images, uint8 (n, side, side, channels).

    All sums are of whole numbers, which doubles hold exactly. So equal images have equal signatures on every machine.
    """
    marks, small = np.zeros(len(pixels), np.uint64), np.zeros((len(pixels), _SIDE, _SIDE), np.uint8)
    grey = to_grey(pixels)
    step = max(1, _BLOCK // max(1, grey[:1].size))
    for start in range(0, len(grey), step):
        some = slice(start, start + step)
        marks[some], small[some] = _signatures(grey[some].astype(np.float64))
    return Signatures(marks, small)


def _signatures(grey: NDArray[np.float64]) -> Signatures:
    count, side = grey.shape[:2]
    both = np.concatenate([_waves(side), _boxes(side)])  # one matrix product along the rows for both
    along = (grey.reshape(-1, side) @ both.T).reshape(count, side, 2 * _SIDE)
    frequencies = (_waves(side) @ along[..., :_SIDE]).reshape(count, _SIDE**2)
    means = _boxes(side) @ along[..., _SIDE:]
    frequencies[:, 0] = 0.0  # the mean, which is only the brightness
    middle = np.partition(frequencies, (31, 32), axis=1)[:, 31:33].sum(axis=1, keepdims=True)
    marks = np.packbits(2 * frequencies > middle, axis=1).view(">u8")[:, 0].astype(np.uint64)
    return Signatures(marks, np.rint(means / side**2).astype(np.uint8))


def similar_pairs(images: Signatures) -> pl.DataFrame:
    """Return pairs of images that look the same, `one` < `other`.

    Correlations are of whole numbers, so that they are the same on every machine.
    """
    flat = images.small.reshape(len(images.small), _SIDE**2)
    totals, squares = flat.sum(axis=1, dtype=np.int64), np.einsum("ij,ij->i", flat, flat, dtype=np.int64)
    spread = (_SIDE**2 * squares - totals**2).astype(np.float64)  # of the values, 0 of a flat image
    blocks = [pl.DataFrame(schema={"one": pl.UInt32, "other": pl.UInt32})]
    for left, right in _candidates(images.fingerprints):
        common = _SIDE**2 * _products(flat[left], flat[right]) - totals[left] * totals[right]
        same = (common > 0) & (common >= _MIN_CORRELATION * np.sqrt(spread[left] * spread[right]))
        blocks.append(pl.DataFrame({"one": left[same], "other": right[same]}, schema=blocks[0].schema))
    return pl.concat(blocks).sort("one", "other")


def _candidates(marks: NDArray[np.uint64]) -> Iterator[tuple[Rows, Rows]]:
    """Yield rows, and higher rows with similar fingerprints, in blocks. Each pair comes once."""
    parts = marks.astype("<u8").view("<u2").reshape(-1, _PARTS).T
    sizes = [np.bincount(values, minlength=1 << 16) for values in parts]
    searched = [size[values] <= _CROWD for size, values in zip(sizes, parts, strict=True)]
    for part, values in enumerate(parts):
        order = np.argsort(values, kind="stable")
        later = np.cumsum(sizes[part])[values[order]] - np.arange(1, len(marks) + 1)  # rows with the same part
        later[~searched[part][order]] = 0
        block = np.cumsum(later) // _PAIRS_BLOCK
        for places in np.split(np.arange(len(marks)), np.flatnonzero(np.diff(block)) + 1):
            counts = later[places]
            start = np.repeat(places + 1 - np.cumsum(counts) + counts, counts)
            left, right = order[np.repeat(places, counts)], order[start + np.arange(len(start))]
            near = np.bitwise_count(marks[left] ^ marks[right]) <= _MAX_BITS
            left, right = left[near], right[near]
            fresh = np.ones(len(left), bool)
            for earlier in range(part):
                fresh &= (parts[earlier][left] != parts[earlier][right]) | ~searched[earlier][left]
            yield left[fresh], right[fresh]


def _products(first: Pixels, second: Pixels) -> Rows:
    """Return the sum of the products of each two rows. Floats of 24 bits hold these sums exactly."""
    products: NDArray[np.float32] = np.einsum("ij,ij->i", first.astype(np.float32), second.astype(np.float32))
    return products.astype(np.int64)


@lru_cache
def _waves(side: int) -> NDArray[np.float64]:
    """Return the lowest cosines over `side` pixels, of about equal length, in integers: float64 (8, side)."""
    waves = np.cos(np.outer(np.arange(_SIDE), (np.arange(side) + 0.5) * np.pi / side))
    waves[0] /= 2**0.5  # as in the orthonormal transform
    lowest: NDArray[np.float64] = np.rint(_WHOLE * waves)
    return lowest


@lru_cache
def _boxes(side: int) -> NDArray[np.float64]:
    """Return the matrix that sums `side` pixels into 8 cells; each pixel counts 8 times: float64 (8, side)."""
    low, high = np.arange(_SIDE)[:, None] * side, np.arange(1, _SIDE + 1)[:, None] * side
    start = np.arange(side)[None, :] * _SIDE
    shared = np.minimum(high, start + _SIDE) - np.maximum(low, start)
    sums: NDArray[np.float64] = np.clip(shared, 0, _SIDE).astype(float)
    return sums
