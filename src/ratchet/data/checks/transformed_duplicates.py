"""Near-duplicates that were mirrored, turned by 90 degrees, or slightly cropped.

There are three steps. Each costs more per pair than the step before, and is applied to fewer pairs:

1. Candidates: nine statistics of brightness and colour, which turning preserves and cropping changes little. Each image
   is compared with its nearest neighbours by these.
2. Coarse: the eight orientations of a 16 x 16 grey thumbnail, and its crops to 90 and 80 % at several places, are
   correlated with the other thumbnail.
3. Fine: the packed images are compared at 24 x 24, and the place and size of a crop are refined by local search. Both
   the correlation of the images and that of their details (without a blurred version) must be high. Different images
   can correlate, such as two clear skies, but their details do not.
"""

from collections.abc import Callable, Iterator

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ratchet.data.reading.pixels import to_grey

__all__ = ["MIN_SIDE", "THUMBNAIL", "boxes", "statistics", "transformed_pairs"]

Pixels = NDArray[np.uint8]
Floats = NDArray[np.float32]

MIN_SIDE = 16  # pixels: smaller images have too little detail to recognise turned or cropped copies
THUMBNAIL = 16  # pixels per side
_SMALL = 8  # pixels per side of the coarse comparison
_FINE = 24  # most pixels per side of the fine comparison
_LARGEST = 64  # most pixels per side that the fine comparison reads
_NEIGHBOURS = 32  # nearest neighbours that an image is compared with
_PER_IMAGE = 4  # best neighbours that reach the fine comparison
_MIN_COARSE, _MIN_FINE = 0.92, 0.97  # least correlation of the images
# Least correlation of the details; higher for crops, whose search may fit noise.
_DETAIL_TURNED, _DETAIL_CROPPED = 0.96, 0.975
_PROMISING = 0.3  # least correlation of the details for a crop to be refined
_FLAT = 4.0  # standard deviation of grey values below which an image is empty
_TURNS = 8
_STEPS = (0.03, 0.015, 0.008)  # of the search for the place and size of a crop, as a share of the side
_BLOCK = 1024  # images or pairs at once

# Typical change of each statistic by a crop to 90 %: mean and deviation of grey, means and deviations of the two colour
# differences, three quantiles of grey.
_TYPICAL = np.array([5.0, 3.2, 1.7, 1.4, 2.0, 2.0, 6.0, 8.0, 8.0])
_MAX_DISTANCE = 6.0  # between statistics, in units of the typical change
_QUANTILES = (0.1, 0.5, 0.9)


def _crops(share: float, places: int) -> list[tuple[float, float, float]]:
    starts = np.linspace(0.0, 1.0 - share, places)
    return [(share, left, top) for top in starts for left in starts]


_CROPS = np.array(_crops(0.9, 3) + _crops(0.8, 5))
"""Share of the side, left and top edge of each candidate crop: float64 (n, 3)."""


def boxes(cells: int, side: int, start: NDArray[np.float64], share: NDArray[np.float64]) -> Floats:
    """Return weights that average a part of `side` pixels into cells: float32 (n, cells, side).

    `start` and `share`, float64 (n,), are start and length of the part, as shares of the side.
    """
    edges = (start[:, None] + share[:, None] * np.arange(cells + 1) / cells) * side
    pixel = np.arange(side)
    low, high = edges[:, :-1, None], edges[:, 1:, None]
    covered = np.clip(np.minimum(high, pixel + 1) - np.maximum(low, pixel), 0.0, None)
    weights: Floats = (covered / np.maximum(covered.sum(axis=2, keepdims=True), 1e-9)).astype(np.float32)
    return weights


def statistics(pixels: Pixels) -> Floats:
    """Return nine statistics of images, uint8 (n, side, side, channels), that turning preserves: float32 (n, 9).

    Sums are of whole numbers, so equal pixels give equal statistics on every machine.
    """
    count = len(pixels)
    grey = to_grey(pixels).reshape(count, -1)
    values = [_mean(grey), _deviation(grey)]
    if pixels.shape[-1] == 3:
        differences = [pixels[..., channel].reshape(count, -1).astype(np.int16) - grey for channel in (2, 0)]
        values += [_mean(change) for change in differences] + [_deviation(change) for change in differences]
    else:
        values += [np.zeros(count)] * 4
    places = [int(share * (grey.shape[1] - 1)) for share in _QUANTILES]
    quantiles = np.partition(grey, places, axis=1)[:, places] if count else np.zeros((0, len(places)))
    scaled: Floats = (np.stack([*values, *quantiles.T], axis=1) / _TYPICAL).astype(np.float32)
    return scaled


def transformed_pairs(
    statistics: Floats, thumbnails: Pixels, read: Callable[[NDArray[np.int64]], Pixels], *, rows: NDArray[np.int64]
) -> pl.DataFrame:
    """Return pairs of images of which one is a mirrored, turned or cropped copy of the other.

    Args:
        statistics: float32 (n, 9), of each image.
        thumbnails: uint8 (n, 16, 16), grey.
        read: returns the packed images of some rows, uint8 (k, side, side, channels).
        rows: int64, the images to compare.

    Returns:
        Columns `one`, `other` (rows, one < other) and `change`: "turned" (or mirrored), "cropped" or "none".
    """
    empty = pl.DataFrame(schema={"one": pl.Int64, "other": pl.Int64, "change": pl.String})
    rows = rows[statistics[rows, 1] * _TYPICAL[1] >= _FLAT]
    if len(rows) < 2:
        return empty
    likely = pl.concat(_promising(statistics[rows], thumbnails, rows)).unique(["one", "other"])
    likely = likely.sort(["score", "one", "other"], descending=[True, False, False])
    likely = likely.group_by("one", maintain_order=True).head(_PER_IMAGE)
    pairs = [empty]
    for start in range(0, likely.height, _BLOCK):
        block = likely[start : start + _BLOCK]
        change = _fine(read, block)
        low, high = pl.min_horizontal("one", "other"), pl.max_horizontal("one", "other")
        pairs.append(block.select(one=low, other=high, change=pl.Series(change, dtype=pl.String)).drop_nulls())
    return pl.concat(pairs).unique(["one", "other"], keep="first", maintain_order=True).sort("one", "other")


def _promising(statistics: Floats, thumbnails: Pixels, rows: NDArray[np.int64]) -> Iterator[pl.DataFrame]:
    """Yield pairs whose statistics are near and whose thumbnails correlate: one, other, score and best view of `one`.

    Pairs come in blocks, so that memory holds few of them. A pair may come in both orders, and twice.
    """
    from scipy.spatial import cKDTree  # takes a moment to import

    tree, nearest = cKDTree(statistics), min(_NEIGHBOURS + 1, len(rows))
    for start in range(0, len(rows), _BLOCK):
        block = statistics[start : start + _BLOCK]
        _, near = tree.query(block, k=nearest, distance_upper_bound=_MAX_DISTANCE)
        left, right = np.repeat(np.arange(start, start + len(block)), nearest), near.ravel()
        kept = (right < len(rows)) & (left != right)  # cKDTree returns the number of rows for "no neighbour"
        left, right = rows[left[kept]], rows[right[kept]]
        swapped = np.stack([right, left], axis=1)[np.argsort(right, kind="stable")]
        for pairs in (np.stack([left, right], axis=1), swapped):
            scores, views = _coarse(thumbnails, pairs)
            good = scores >= _MIN_COARSE
            columns = {"one": pairs[good, 0], "other": pairs[good, 1], "score": scores[good], "view": views[good]}
            yield pl.DataFrame(columns)


def _coarse(thumbnails: Pixels, pairs: NDArray[np.int64]) -> tuple[Floats, NDArray[np.int64]]:
    """Return the best correlation of each pair over all views of the first image, and the number of that view."""
    scores, views = np.zeros(len(pairs), np.float32), np.zeros(len(pairs), np.int64)
    for start in range(0, len(pairs), _BLOCK):
        some = slice(start, start + _BLOCK)
        first, place = np.unique(pairs[some, 0], return_inverse=True)
        whole = _unit(_halved(thumbnails[pairs[some, 1]]).reshape(-1, _SMALL**2))[:, :, None]
        correlation = (_views(thumbnails[first])[place] @ whole)[:, :, 0]
        scores[some], views[some] = correlation.max(axis=1), correlation.argmax(axis=1)
    return scores, views


def _views(thumbnails: Pixels) -> Floats:
    """Return all orientations and crops of thumbnails as unit vectors: float32 (n, views, 64)."""
    count = len(thumbnails)
    turned = np.stack(_turned(_halved(thumbnails)), axis=1).reshape(count, _TURNS, _SMALL**2)
    across, down = (boxes(_SMALL, THUMBNAIL, _CROPS[:, edge], _CROPS[:, 0]) for edge in (1, 2))
    narrow = np.einsum("nyx,vcx->nvyc", thumbnails.astype(np.float32), across, optimize=True)
    cropped = (down @ narrow).reshape(count, len(_CROPS), _SMALL**2)
    return _unit(np.concatenate([turned, cropped], axis=1))


def _fine(read: Callable[[NDArray[np.int64]], Pixels], pairs: pl.DataFrame) -> list[str | None]:
    """Return the change between the images of each pair; None: they are different images."""
    left, right = (_large(read(pairs[name].to_numpy())) for name in ("one", "other"))
    views, side = pairs["view"].to_numpy(), left.shape[1]
    cells = min(_FINE, side)
    whole = _resampled(right, np.tile([1.0, 0.0, 0.0], (len(right), 1)), cells)
    change: list[str | None] = [None] * len(views)
    for view in range(_TURNS):
        mine = np.flatnonzero(views == view)
        if len(mine):
            upright = _resampled(left[mine], np.tile([1.0, 0.0, 0.0], (len(mine), 1)), cells)
            match = _match(_turned(upright)[view], whole[mine], detail=_DETAIL_TURNED)
            for place, good in zip(mine, match, strict=True):
                change[place] = ("turned" if view else "none") if good else None
    mine = np.flatnonzero(views >= _TURNS)
    if len(mine):
        crop = _CROPS[views[mine] - _TURNS]
        promising = _correlation(_detail(_resampled(left[mine], crop, cells)), _detail(whole[mine])) >= _PROMISING
        mine, crop = mine[promising], crop[promising]
        crop = _refined(left[mine], whole[mine], crop, cells)
        match = _match(_resampled(left[mine], crop, cells), whole[mine], detail=_DETAIL_CROPPED)
        for place, good in zip(mine, match, strict=True):
            change[place] = "cropped" if good else None
    return change


def _refined(images: Floats, whole: Floats, crop: NDArray[np.float64], cells: int) -> NDArray[np.float64]:
    """Refine `crop` by a search along size and both edges in shrinking steps, so that the details match best."""
    detail = _detail(whole)
    best = _correlation(_detail(_resampled(images, crop, cells)), detail)
    moves = np.array([[1.0, -0.5, -0.5], [-1.0, 0.5, 0.5], [0, 1, 0], [0, -1, 0], [0, 0, 1], [0, 0, -1]])
    for step in _STEPS:
        for _ in range(3):
            base = crop.copy()
            for move in moves:
                candidate = base + step * move
                inside = (candidate[:, 0] >= 0.7) & (candidate[:, 1:] >= -0.02).all(axis=1)
                inside &= (candidate[:, :1] + candidate[:, 1:] <= 1.02).all(axis=1)
                score = _correlation(_detail(_resampled(images, candidate, cells)), detail)
                better = inside & (score > best)
                crop = np.where(better[:, None], candidate, crop)
                best = np.where(better, score, best)
    return crop


def _match(left: Floats, right: Floats, *, detail: float) -> NDArray[np.bool_]:
    is_same_detail = _correlation(_detail(left), _detail(right)) >= detail
    good: NDArray[np.bool_] = (_correlation(left, right) >= _MIN_FINE) & is_same_detail
    return good


def _large(pixels: Pixels) -> Floats:
    """Convert images to grey float32 images of at most 64 pixels per side."""
    grey = to_grey(pixels).astype(np.float32)
    whole = np.tile([1.0, 0.0, 0.0], (len(grey), 1))
    return grey if grey.shape[1] <= _LARGEST else _resampled(grey, whole, _LARGEST)


def _resampled(images: Floats, crop: NDArray[np.float64], cells: int) -> Floats:
    """Return a crop of each square image, averaged into cells x cells: float32 (n, cells, cells)."""
    side = images.shape[1]
    across, down = (boxes(cells, side, crop[:, edge], crop[:, 0]) for edge in (1, 2))
    cut: Floats = np.asarray(down @ images @ across.transpose(0, 2, 1), np.float32)
    return cut


def _detail(images: Floats) -> Floats:
    """Return square images minus their average over 5 x 5 pixels."""
    places = np.arange(images.shape[1])
    near = (np.abs(places[:, None] - places) <= 2).astype(np.float32)
    near /= near.sum(axis=1, keepdims=True)
    detail: Floats = images - near @ images @ near.T
    return detail


def _correlation(left: Floats, right: Floats) -> Floats:
    """Return the correlation of each pair of images, float32 (n,), for float32 (n, side, side) each; n may be 0."""
    size = int(np.prod(left.shape[1:]))
    correlation: Floats = (_unit(left.reshape(-1, size)) * _unit(right.reshape(-1, size))).sum(axis=1)
    return correlation


def _turned(images: Floats) -> list[Floats]:
    """Return the eight orientations of square images; the first is unchanged."""
    return [
        view
        for way in (images, images.transpose(0, 2, 1))
        for flipped in (way, way[:, ::-1])
        for view in (flipped, flipped[:, :, ::-1])
    ]


def _halved(thumbnails: Pixels) -> Floats:
    half: Floats = thumbnails.reshape(-1, _SMALL, 2, _SMALL, 2).astype(np.float32).mean(axis=(2, 4))
    return half


def _unit(vectors: Floats) -> Floats:
    """Return vectors along the last axis with mean 0 and length 1."""
    centred = vectors - vectors.mean(axis=-1, keepdims=True)
    unit: Floats = centred / np.maximum(np.linalg.norm(centred, axis=-1, keepdims=True), 1e-6)
    return unit


def _mean(values: NDArray[np.uint8] | NDArray[np.int16]) -> NDArray[np.float64]:
    mean: NDArray[np.float64] = values.sum(axis=1, dtype=np.int64) / values.shape[1]
    return mean


def _deviation(values: NDArray[np.uint8] | NDArray[np.int16]) -> NDArray[np.float64]:
    wide = values.astype(np.float64)
    number, total, squares = values.shape[1], wide.sum(axis=1), np.einsum("ij,ij->i", wide, wide)
    variance: NDArray[np.float64] = number * squares - total**2
    root: NDArray[np.float64] = np.sqrt(np.maximum(variance, 0.0)) / number
    return root
