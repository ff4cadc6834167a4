"""Near-duplicates: images that look the same but have different pixels, because they were saved again or scaled.

Each image has a fingerprint of 64 bits, which says which of its lowest frequencies are above their median (a perceptual
hash, Zauner 2010). Fingerprints that share one of four parts are compared bit by bit. If they differ in few bits, small
versions of the images are compared too, because flat images have similar fingerprints by chance.

Mirrored, turned and cropped copies have other fingerprints: `transformed_duplicates` searches for them.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ratchet.data.checks.transformed_duplicates import MIN_SIDE, THUMBNAIL, statistics, transformed_pairs
from ratchet.data.reading.pixels import to_grey

__all__ = ["SIDE", "NearDuplicates", "Signatures", "fingerprints", "signatures", "similar_pairs"]

Fingerprints = NDArray[np.uint64]

SIDE = 8  # frequencies per side of a fingerprint, and pixels per side of the small image
_WHOLE = 1024  # integer that stands for a cosine of 1
_BLOCK = 1 << 16  # values of eight bytes: they fit into the processor's cache
_MAX_BITS = 8  # of 64, in which fingerprints of near-duplicates may differ
_PARTS = 4  # of 16 bits: fingerprints that differ in at most three bits always share one
_PAIRS_BLOCK = 1 << 16  # pairs of images that are in memory at once
_CROWD = 2_000  # images that share a part: more of them are empty images, not copies of each other
_MIN_CORRELATION = 0.98  # of the small images


class Signatures(NamedTuple):
    """Features by which images are compared. Images below 16 x 16 pixels have no thumbnails and no statistics."""

    fingerprints: Fingerprints
    small: NDArray[np.uint8]
    thumbnails: NDArray[np.uint8]
    statistics: NDArray[np.float32]


class NearDuplicates:
    """Collects the signatures of all images of a set, block by block, and finds near-duplicates."""

    def __init__(self) -> None:
        self._blocks: list[Signatures] = []

    def add(self, block: Signatures) -> None:
        """Add the signatures of the next images."""
        self._blocks.append(block)

    def pairs(self, index: pl.DataFrame, read: Callable[[NDArray[np.int64]], NDArray[np.uint8]]) -> pl.DataFrame:
        """Return pairs of near-duplicates whose pixels differ.

        Args:
            index: columns id, split and pixels; its rows are the images in the order of adding.
            read: returns the packed images of some of these rows.

        Returns:
            `one_id`, `one_split`, `other_id`, `other_split`, and `change`: "none" if the images look the same, else
            "turned" (or mirrored) or "cropped".
        """
        ordered = index.select("id", "split", "pixels")
        every = Signatures(*map(np.concatenate, zip(*self._blocks, strict=True)))
        pairs = [similar_pairs(every.fingerprints, every.small).select("one", "other", change=pl.lit("none"))]
        if len(every.thumbnails) == len(every.fingerprints):
            first = ordered.with_row_index("row").unique("pixels", keep="first", maintain_order=True)["row"]
            rows = first.to_numpy().astype(np.int64)
            pairs.append(transformed_pairs(every.statistics, every.thumbnails, read, rows=rows))
        joined = pl.concat(pairs).unique(["one", "other"], keep="first", maintain_order=True).sort("one", "other")
        left, right = (ordered[joined[name].to_numpy()] for name in ("one", "other"))
        named = left.rename(lambda name: f"one_{name}").hstack(right.rename(lambda name: f"other_{name}"))
        named = named.with_columns(joined["change"])
        return named.filter(pl.col("one_pixels") != pl.col("other_pixels")).drop("one_pixels", "other_pixels")


def signatures(pixels: NDArray[np.uint8]) -> Signatures:
    """Return the signatures of images, uint8 (n, side, side, channels). They are equal on every machine."""
    marks, small = fingerprints(pixels)
    if pixels.shape[1] < MIN_SIDE:
        return Signatures(marks, small, np.zeros((0, THUMBNAIL, THUMBNAIL), np.uint8), np.zeros((0, 9), np.float32))
    thumbnails = np.zeros((len(pixels), THUMBNAIL, THUMBNAIL), np.uint8)
    measured = np.zeros((len(pixels), 9), np.float32)
    cells = _boxes(pixels.shape[1], THUMBNAIL)
    step = max(1, _BLOCK // max(1, pixels[:1].size))
    for start in range(0, len(pixels), step):
        some = slice(start, start + step)
        sums = cells @ to_grey(pixels[some]).astype(np.float64) @ cells.T
        thumbnails[some] = np.rint(sums / pixels.shape[1] ** 2)
        measured[some] = statistics(pixels[some])
    return Signatures(marks, small, thumbnails, measured)


def fingerprints(pixels: NDArray[np.uint8]) -> tuple[Fingerprints, NDArray[np.uint8]]:
    """Return fingerprints uint64 (n,) and small grey images uint8 (n, 8, 8) of images uint8 (n, side, side, channels).

    All sums are of whole numbers, which doubles hold exactly. So equal images have equal fingerprints on every machine.
    """
    marks, small = np.zeros(len(pixels), np.uint64), np.zeros((len(pixels), SIDE, SIDE), np.uint8)
    step = max(1, _BLOCK // max(1, pixels[:1].size))
    for start in range(0, len(pixels), step):
        some = slice(start, start + step)
        marks[some], small[some] = _fingerprints(pixels[some])
    return marks, small


def _fingerprints(pixels: NDArray[np.uint8]) -> tuple[Fingerprints, NDArray[np.uint8]]:
    count, side = pixels.shape[:2]
    grey = to_grey(pixels).astype(np.float64)
    both = np.concatenate([_waves(side), _boxes(side, SIDE)])  # one matrix product along the rows for both
    along = (grey.reshape(-1, side) @ both.T).reshape(count, side, 2 * SIDE)
    frequencies = (_waves(side) @ along[..., :SIDE]).reshape(count, SIDE * SIDE)
    means = _boxes(side, SIDE) @ along[..., SIDE:]
    frequencies[:, 0] = 0.0  # the mean, which is only the brightness
    middle = np.partition(frequencies, (31, 32), axis=1)[:, 31:33].sum(axis=1, keepdims=True)
    marks = np.packbits(2 * frequencies > middle, axis=1).view(">u8").ravel().astype(np.uint64)
    return marks, np.rint(means / side**2).astype(np.uint8)


def similar_pairs(marks: Fingerprints, small: NDArray[np.uint8]) -> pl.DataFrame:
    """Return pairs of images that look the same: rows `one` < `other`, and the number of different `bits`."""
    rows = pl.DataFrame({"row": np.arange(len(marks), dtype=np.int64), "mark": marks})
    pairs = [pl.DataFrame(schema={"one": pl.Int64, "other": pl.Int64, "bits": pl.Int64})]
    for part in range(_PARTS):
        keyed = rows.with_columns(key=pl.Series((marks >> np.uint64(16 * part)) & np.uint64(0xFFFF)))
        keyed = keyed.filter(pl.len().over("key").is_between(2, _CROWD)).sort("key", maintain_order=True)
        for some, others in _groups(keyed):
            met = some.join(others, on="key", suffix="_other").filter(pl.col("row") < pl.col("row_other"))
            bits = np.bitwise_count(met["mark"].to_numpy() ^ met["mark_other"].to_numpy())
            near = met.select(one="row", other="row_other", bits=pl.Series(bits, dtype=pl.Int64))
            near = near.filter(pl.col("bits") <= _MAX_BITS)
            left, right = _normal(small[near["one"].to_numpy()]), _normal(small[near["other"].to_numpy()])
            pairs.append(near.filter(pl.Series((left * right).sum(axis=1) >= _MIN_CORRELATION, dtype=pl.Boolean)))
    return pl.concat(pairs).unique().sort("one", "other")


def _groups(keyed: pl.DataFrame) -> Iterator[tuple[pl.DataFrame, pl.DataFrame]]:
    """Yield blocks of the rows, which are sorted by key, with the rows to join them with, to limit memory."""
    keys = keyed["key"].to_numpy()
    first, last = np.searchsorted(keys, keys, "left"), np.searchsorted(keys, keys, "right")
    block = np.cumsum(last - first) // _PAIRS_BLOCK
    cuts = [0, *(np.flatnonzero(np.diff(block)) + 1).tolist(), len(keys)]
    for start, end in pairwise(cuts):
        if end > start:
            yield keyed[start:end], keyed[int(first[start]) : int(last[end - 1])]


def _normal(small: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return small images as vectors of mean 0 and length 1, so that brightness and contrast do not count."""
    flat = small.reshape(-1, SIDE * SIDE).astype(np.float32)
    flat -= flat.mean(axis=1, keepdims=True)
    normal: NDArray[np.float32] = flat / np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-6)
    return normal


@lru_cache
def _waves(side: int) -> NDArray[np.float64]:
    """Return the lowest cosines over `side` pixels, of about equal length, in integers: float64 (8, side)."""
    waves = np.cos(np.outer(np.arange(SIDE), (np.arange(side) + 0.5) * np.pi / side))
    waves[0] /= 2**0.5  # as in the orthonormal transform
    lowest: NDArray[np.float64] = np.rint(_WHOLE * waves)
    return lowest


@lru_cache
def _boxes(side: int, cells: int) -> NDArray[np.float64]:
    """Return the matrix that sums `side` pixels into cells; each pixel counts `cells` times: float64 (cells, side)."""
    low, high = np.arange(cells)[:, None] * side, np.arange(1, cells + 1)[:, None] * side
    start = np.arange(side)[None, :] * cells
    shared = np.minimum(high, start + cells) - np.maximum(low, start)
    sums: NDArray[np.float64] = np.clip(shared, 0, cells).astype(float)
    return sums
