"""Near-duplicates: images that look the same but have different pixels: saved again, scaled, mirrored or turned.

Each image has eight fingerprints of 64 bits, one for each of its orientations. A fingerprint says which of the lowest
frequencies are above their median (a perceptual hash, Zauner 2010). All eight follow from the frequencies of one
orientation: a mirrored image has some of them with the other sign, a turned one has them transposed.

The first fingerprint of each image is compared bit by bit with those of all others that share one of its four parts. If
they differ in few bits, small versions of the images are compared too, because flat images have similar fingerprints by
chance. For other orientations the packed images are compared as well, at up to 24 x 24: both the images and their
details, without a blurred version, must correlate. Two clear skies can correlate, but their details do not.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ratchet.data.reading.pixels import to_grey

__all__ = ["SIDE", "NearDuplicates", "Signatures", "signatures", "similar_pairs"]

Fingerprints = NDArray[np.uint64]
Pixels = NDArray[np.uint8]
Floats = NDArray[np.float32]
Read = Callable[[NDArray[np.int64]], Pixels]

SIDE = 8  # frequencies per side of a fingerprint, and pixels per side of the small image
_WHOLE = 1024  # integer that stands for a cosine of 1
_BLOCK = 1 << 16  # values of eight bytes: they fit into the processor's cache
_TURNS = 8  # orientations
_MAX_BITS = 8  # of 64, in which fingerprints of near-duplicates may differ
_PARTS = 4  # of 16 bits: fingerprints that differ in at most three bits always share one
_VALUES = 1 << 16  # of a part
_PAIRS_BLOCK = 1 << 18  # pairs of images that are in memory at once
_CROWD = 2_000  # images that share a part: more of them are empty images, not copies of each other
_MIN_CORRELATION = 0.98  # of the small images
_MIN_SIDE = 16  # pixels: smaller images have too little detail to recognise turned copies
_FINE = 24  # most pixels per side of the comparison of details
_FINE_BLOCK = 1024  # pairs whose packed images are in memory at once
_PER_IMAGE = 4  # turned copies of an image that are compared in detail
_MIN_FINE, _MIN_DETAIL = 0.97, 0.96  # least correlation of the images and of their details
_SIGNS = np.stack(
    [
        np.outer((-1.0) ** (down * np.arange(SIDE)), (-1.0) ** (across * np.arange(SIDE)))
        for down in (0, 1)
        for across in (0, 1)
    ]
)
"""Signs of the frequencies of an image that is mirrored across, down, or both."""


class Signatures(NamedTuple):
    """Features by which images are compared: fingerprints uint64 (n, 8) by orientation, small uint8 (n, 8, 8)."""

    fingerprints: Fingerprints
    small: Pixels


class NearDuplicates:
    """Collects the signatures of all images of a set, block by block, and finds near-duplicates."""

    def __init__(self) -> None:
        self._blocks: list[Signatures] = []

    def add(self, block: Signatures) -> None:
        """Add the signatures of the next images."""
        self._blocks.append(block)

    def pairs(self, index: pl.DataFrame, read: Read) -> pl.DataFrame:
        """Return pairs of near-duplicates whose pixels differ.

        Args:
            index: columns id, split and pixels; its rows are the images in the order of adding.
            read: returns the packed images of some of these rows.

        Returns:
            `one_id`, `one_split`, `other_id`, `other_split`, and `change`: "none" if the images look the same, else
            "turned" (or mirrored).
        """
        ordered = index.select("id", "split", "pixels")
        pairs = similar_pairs(Signatures(*map(np.concatenate, zip(*self._blocks, strict=True))), read)
        left, right = (ordered[pairs[name].to_numpy()] for name in ("one", "other"))
        named = left.rename(lambda name: f"one_{name}").hstack(right.rename(lambda name: f"other_{name}"))
        named = named.with_columns(pairs["change"])
        return named.filter(pl.col("one_pixels") != pl.col("other_pixels")).drop("one_pixels", "other_pixels")


def signatures(pixels: Pixels) -> Signatures:
    """Return the signatures of images, uint8 (n, side, side, channels).

    All sums are of whole numbers, which doubles hold exactly. So equal images have equal signatures on every machine.
    """
    marks = np.zeros((len(pixels), _TURNS), np.uint64)
    small = np.zeros((len(pixels), SIDE, SIDE), np.uint8)
    grey = to_grey(pixels)
    step = max(1, _BLOCK // max(1, grey[:1].size))
    for start in range(0, len(grey), step):
        some = slice(start, start + step)
        marks[some], small[some] = _signatures(grey[some].astype(np.float64))
    return Signatures(marks, small)


def _signatures(grey: NDArray[np.float64]) -> tuple[Fingerprints, Pixels]:
    count, side = grey.shape[:2]
    both = np.concatenate([_waves(side), _boxes(side, SIDE)])  # one matrix product along the rows for both
    along = (grey.reshape(-1, side) @ both.T).reshape(count, side, 2 * SIDE)
    frequencies = _waves(side) @ along[..., :SIDE]
    means = _boxes(side, SIDE) @ along[..., SIDE:]
    frequencies[:, 0, 0] = 0.0  # the mean, which is only the brightness
    mirrored = (frequencies[:, None] * _SIGNS).reshape(count, _TURNS // 2, SIDE * SIDE)
    middle = np.partition(mirrored, (31, 32), axis=2)[..., 31:33].sum(axis=2, keepdims=True)
    bits = (2 * mirrored > middle).reshape(count, _TURNS // 2, SIDE, SIDE)
    every = np.concatenate([bits, bits.transpose(0, 1, 3, 2)], axis=1).reshape(count, _TURNS, SIDE * SIDE)
    marks = np.packbits(every, axis=2).view(">u8")[..., 0].astype(np.uint64)
    return marks, np.rint(means / side**2).astype(np.uint8)


def _turned(images: NDArray[np.float32] | Pixels, turn: int) -> Any:
    """Return square images in one of the eight orientations; 0 leaves them as they are."""
    across, down = turn & 1, turn >> 1 & 1
    mirrored = images[:, :: -1 if down else 1, :: -1 if across else 1]
    return mirrored.transpose(0, 2, 1) if turn >> 2 else mirrored


def similar_pairs(every: Signatures, read: Read) -> pl.DataFrame:
    """Return pairs of images that look the same, `one` < `other`, and the `change` between them.

    Args:
        every: signatures of all images.
        read: returns the packed images of some rows; they are read for pairs that may be mirrored or turned.
    """
    blocks = [pl.DataFrame(schema={"one": pl.Int64, "other": pl.Int64, "turn": pl.Int64, "bits": pl.Int64})]
    small = every.small
    for turn, left, right, bits in _candidates(every.fingerprints):
        same = (_normal(small[left]) * _normal(_turned(small, turn)[right])).sum(axis=1) >= _MIN_CORRELATION
        columns = {"one": left[same], "other": right[same], "turn": np.full(same.sum(), turn), "bits": bits[same]}
        blocks.append(pl.DataFrame(columns, schema=blocks[0].schema))
    near = pl.concat(blocks).unique().sort("one", "other", "turn")
    upright = near.filter(pl.col("turn") == 0).select("one", "other", change=pl.lit("none"))
    turned = near.join(upright, on=["one", "other"], how="anti").sort("bits", "one", "other", "turn")
    turned = turned.group_by("other", maintain_order=True).head(_PER_IMAGE)
    kept = [_same_details(turned[start : start + _FINE_BLOCK], read) for start in range(0, turned.height, _FINE_BLOCK)]
    return pl.concat([upright, *kept]).unique(["one", "other"]).sort("one", "other")


def _candidates(
    marks: Fingerprints,
) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]]:
    """Yield a turn, rows, higher rows whose turned fingerprints are similar, and the number of different bits.

    Pairs come in blocks, so that memory holds few of them. A pair may come several times.
    """
    for part in range(_PARTS):
        parts = ((marks >> np.uint64(16 * part)) & np.uint64(0xFFFF)).astype(np.int64)
        order = np.argsort(parts[:, 0], kind="stable")
        first = np.concatenate([[0], np.cumsum(np.bincount(parts[:, 0], minlength=_VALUES))])
        for turn in range(_TURNS):
            start, end = first[parts[:, turn]], first[parts[:, turn] + 1]
            counts = np.where(end - start <= _CROWD, end - start, 0)
            block = np.cumsum(counts) // _PAIRS_BLOCK
            for rows in np.split(np.arange(len(marks)), np.flatnonzero(np.diff(block)) + 1):
                right = np.repeat(rows, counts[rows])
                before = np.cumsum(counts[rows]) - counts[rows]
                left = order[np.arange(len(right)) + np.repeat(start[rows] - before, counts[rows])]
                lower = left < right
                left, right = left[lower], right[lower]
                bits = np.bitwise_count(marks[left, 0] ^ marks[right, turn])
                near = bits <= _MAX_BITS
                if near.any():
                    yield turn, left[near], right[near], bits[near].astype(np.int64)


def _same_details(pairs: pl.DataFrame, read: Read) -> pl.DataFrame:
    """Return the pairs whose packed images are the same but for their orientation."""
    left, right = (_fine(read(pairs[name].to_numpy())) for name in ("one", "other"))
    same = np.zeros(pairs.height, np.bool_)
    if left.shape[1]:
        for turn in range(1, _TURNS):
            mine = np.flatnonzero(pairs["turn"].to_numpy() == turn)
            upright, turned = left[mine], _turned(right[mine], turn)
            same[mine] = (_correlation(upright, turned) >= _MIN_FINE) & (
                _correlation(_detail(upright), _detail(turned)) >= _MIN_DETAIL
            )
    return pairs.filter(pl.Series(same)).select("one", "other", change=pl.lit("turned"))


def _fine(pixels: Pixels) -> Floats:
    """Convert images to grey, at most 24 x 24; 0 x 0 if they are too small to compare details."""
    grey = to_grey(pixels).astype(np.float64)
    side = grey.shape[1]
    if side < _MIN_SIDE:
        return np.zeros((len(grey), 0, 0), np.float32)
    cells = _boxes(side, min(_FINE, side))
    fine: Floats = (cells @ grey @ cells.T / side**2).astype(np.float32)
    return fine


def _detail(images: Floats) -> Floats:
    """Return square images minus their average over 5 x 5 pixels."""
    places = np.arange(images.shape[1])
    near = (np.abs(places[:, None] - places) <= 2).astype(np.float32)
    near /= near.sum(axis=1, keepdims=True)
    detail: Floats = images - near @ images @ near.T
    return detail


def _correlation(left: Floats, right: Floats) -> Floats:
    correlation: Floats = (_normal(left) * _normal(right)).sum(axis=1)
    return correlation


def _normal(images: Floats | Pixels) -> Floats:
    """Return images as vectors of mean 0 and length 1, so that brightness and contrast do not count."""
    flat = images.reshape(len(images), int(np.prod(images.shape[1:]))).astype(np.float32)
    flat -= flat.mean(axis=1, keepdims=True)
    normal: Floats = flat / np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-6)
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
