"""Near-duplicates that were mirrored, turned by a quarter, or cropped a little.

Three steps, each cheaper per pair than the next and applied to fewer pairs:

1. Candidates: nine statistics of brightness and colour, which no turn changes and a crop changes little. Each image is
   compared with its nearest neighbors by these.
2. Coarse: the eight orientations of a 16 x 16 grey thumbnail, and its crops to 90 and 80 % at several places, against
   the other thumbnail by correlation.
3. Fine: the packed images at 24 x 24, the crop's place and size refined by local search. Both the correlation and the
   correlation of the detail (what a blur removes) must be high. Detail is what different images do not share: clear
   skies correlate, leaves do not.
"""

from collections.abc import Callable, Iterator

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ratchet.data.reading.images import in_grey

__all__ = ["LEAST_SIDE", "THUMBNAIL", "boxes", "statistics", "transformed_pairs"]

Pixels = NDArray[np.uint8]
Floats = NDArray[np.float32]

LEAST_SIDE = 16  # pixels: smaller images have too little detail to recognise them turned or cropped
THUMBNAIL = 16  # pixels a side
_SMALL = 8  # pixels a side of what is compared coarsely
_FINE = 24  # the same of the last comparison, at most
_LARGEST = 64  # pixels a side that the last comparison reads
_NEIGHBORS = 32  # that an image is compared with
_PER_IMAGE = 4  # of them, the best, that reach the last comparison
_COARSE, _ALIKE = 0.92, 0.97  # least correlation of the images, coarse and fine
_DETAIL_TURNED, _DETAIL_CROPPED = 0.96, 0.975  # least correlation of the detail; the search for a crop may fit chance
_PROMISING = 0.3  # least correlation of the detail before a crop is refined
_FLAT = 4.0  # standard deviation of grey values below which an image shows nothing
_TURNS = 8
_STEPS = (0.03, 0.015, 0.008)  # of the search for a crop's place and size, as a share of the side
_BLOCK = 1024  # images, or pairs, at a time

# What a crop to 90 % typically changes each statistic by: mean and deviation of grey, means and deviations of the two
# color differences, three quantiles of grey.
_TYPICAL = np.array([5.0, 3.2, 1.7, 1.4, 2.0, 2.0, 6.0, 8.0, 8.0])
_FARTHEST = 6.0  # distance between statistics, in units of the typical change
_QUANTILES = (0.1, 0.5, 0.9)


def _crops() -> NDArray[np.float64]:
    """Share of the side, left and top edge of each crop that is tried: float64 (n, 3)."""
    tried = []
    for share, gaps in ((0.9, 2), (0.8, 4)):
        places = np.linspace(0.0, 1.0 - share, gaps + 1)
        tried += [(share, left, top) for top in places for left in places]
    return np.array(tried)


_CROPS = _crops()


def boxes(cells: int, side: int, start: NDArray[np.float64], share: NDArray[np.float64]) -> Floats:
    """Weights that average `side` pixels into cells over a part of the side: float32 (n, cells, side).

    Args:
        cells: how many.
        side: pixels.
        start: float64 (n,), where the part begins, as a share of the side.
        share: float64 (n,), how long it is.
    """
    edges = (start[:, None] + share[:, None] * np.arange(cells + 1) / cells) * side
    pixel = np.arange(side)
    low, high = edges[:, :-1, None], edges[:, 1:, None]
    covered = np.clip(np.minimum(high, pixel + 1) - np.maximum(low, pixel), 0.0, None)
    weights: Floats = (covered / np.maximum(covered.sum(axis=2, keepdims=True), 1e-9)).astype(np.float32)
    return weights


def statistics(pixels: Pixels) -> Floats:
    """Nine statistics of images, uint8 (n, side, side, channels), that no turn changes: float32 (n, 9).

    Sums are of whole numbers, so equal pixels give equal statistics on every machine.
    """
    count = len(pixels)
    grey = in_grey(pixels).reshape(count, -1)
    values = [_mean(grey), _deviation(grey)]
    if pixels.shape[-1] == 3:
        differences = [pixels[..., channel].reshape(count, -1).astype(np.int16) - grey for channel in (2, 0)]
        values += [_mean(each) for each in differences] + [_deviation(each) for each in differences]
    else:
        values += [np.zeros(count)] * 4
    places = [int(share * (grey.shape[1] - 1)) for share in _QUANTILES]
    quantiles = np.partition(grey, places, axis=1)[:, places] if count else np.zeros((0, len(places)))
    found: Floats = (np.stack([*values, *quantiles.T], axis=1) / _TYPICAL).astype(np.float32)
    return found


def transformed_pairs(
    statistics: Floats, thumbnails: Pixels, read: Callable[[NDArray[np.int64]], Pixels], *, rows: NDArray[np.int64]
) -> pl.DataFrame:
    """Pairs of images of which one is the other mirrored, turned or cropped.

    Args:
        statistics: float32 (n, 9), of each image.
        thumbnails: uint8 (n, 16, 16), grey.
        read: gives the packed images of some rows, uint8 (k, side, side, channels).
        rows: int64, the images that are looked at.

    Returns:
        Columns `one`, `other` (rows, one < other) and `change`: "turned" (mirrored too), "cropped" or "none".
    """
    nothing = pl.DataFrame(schema={"one": pl.Int64, "other": pl.Int64, "change": pl.String})
    rows = rows[statistics[rows, 1] * _TYPICAL[1] >= _FLAT]
    if len(rows) < 2:
        return nothing
    likely = pl.concat(_promising(statistics[rows], thumbnails, rows)).unique(["one", "other"])
    likely = likely.sort(["score", "one", "other"], descending=[True, False, False])
    likely = likely.group_by("one", maintain_order=True).head(_PER_IMAGE)
    found = [nothing]
    for start in range(0, likely.height, _BLOCK):
        block = likely[start : start + _BLOCK]
        change = _fine(read, block)
        low, high = pl.min_horizontal("one", "other"), pl.max_horizontal("one", "other")
        found.append(block.select(one=low, other=high, change=pl.Series(change, dtype=pl.String)).drop_nulls())
    return pl.concat(found).unique(["one", "other"], keep="first", maintain_order=True).sort("one", "other")


def _promising(statistics: Floats, thumbnails: Pixels, rows: NDArray[np.int64]) -> Iterator[pl.DataFrame]:
    """Pairs of near statistics whose thumbnails correlate: one, other, score and the view of `one` that fits best.

    Some images at a time, so that memory holds few of the pairs; a pair may come in both orders, and twice.
    """
    from scipy.spatial import cKDTree  # takes a moment to import

    tree, nearest = cKDTree(statistics), min(_NEIGHBORS + 1, len(rows))
    for start in range(0, len(rows), _BLOCK):
        asked = statistics[start : start + _BLOCK]
        _, near = tree.query(asked, k=nearest, distance_upper_bound=_FARTHEST)
        one, other = np.repeat(np.arange(start, start + len(asked)), nearest), near.ravel()
        kept = (other < len(rows)) & (one != other)  # the number of rows stands for "no neighbor"
        one, other = rows[one[kept]], rows[other[kept]]
        for pairs in (np.stack([one, other], axis=1), np.stack([other, one], axis=1)[np.argsort(other, kind="stable")]):
            scores, views = _coarse(thumbnails, pairs)
            good = scores >= _COARSE
            found = {"one": pairs[good, 0], "other": pairs[good, 1], "score": scores[good], "view": views[good]}
            yield pl.DataFrame(found)


def _coarse(thumbnails: Pixels, pairs: NDArray[np.int64]) -> tuple[Floats, NDArray[np.int64]]:
    """The best correlation of each pair over all views of the first image, and which view that is."""
    scores, views = np.zeros(len(pairs), np.float32), np.zeros(len(pairs), np.int64)
    for start in range(0, len(pairs), _BLOCK):
        some = slice(start, start + _BLOCK)
        ones, place = np.unique(pairs[some, 0], return_inverse=True)
        whole = _unit(_halved(thumbnails[pairs[some, 1]]).reshape(-1, _SMALL**2))[:, :, None]
        found = (_views(thumbnails[ones])[place] @ whole)[:, :, 0]
        scores[some], views[some] = found.max(axis=1), found.argmax(axis=1)
    return scores, views


def _views(thumbnails: Pixels) -> Floats:
    """All orientations and crops of thumbnails, as unit vectors: float32 (n, views, 64)."""
    count = len(thumbnails)
    turned = np.stack(_turned(_halved(thumbnails)), axis=1).reshape(count, _TURNS, _SMALL**2)
    across, down = (boxes(_SMALL, THUMBNAIL, _CROPS[:, edge], _CROPS[:, 0]) for edge in (1, 2))
    narrow = np.einsum("nyx,vcx->nvyc", thumbnails.astype(np.float32), across, optimize=True)
    cropped = (down @ narrow).reshape(count, len(_CROPS), _SMALL**2)
    return _unit(np.concatenate([turned, cropped], axis=1))


def _fine(read: Callable[[NDArray[np.int64]], Pixels], pairs: pl.DataFrame) -> list[str | None]:
    """What was done to get one image of each pair from the other; None: they are different images."""
    ones, others = (_large(read(pairs[name].to_numpy())) for name in ("one", "other"))
    views, side = pairs["view"].to_numpy(), ones.shape[1]
    cells = min(_FINE, side)
    whole = _resampled(others, np.tile([1.0, 0.0, 0.0], (len(others), 1)), cells)
    change: list[str | None] = [None] * len(views)
    for view in range(_TURNS):
        mine = np.flatnonzero(views == view)
        if len(mine):
            upright = _resampled(ones[mine], np.tile([1.0, 0.0, 0.0], (len(mine), 1)), cells)
            match = _match(_turned(upright)[view], whole[mine], detail=_DETAIL_TURNED)
            for place, good in zip(mine, match, strict=True):
                change[place] = ("turned" if view else "none") if good else None
    mine = np.flatnonzero(views >= _TURNS)
    if len(mine):
        crop = _CROPS[views[mine] - _TURNS]
        promising = _correlation(_detail(_resampled(ones[mine], crop, cells)), _detail(whole[mine])) >= _PROMISING
        mine, crop = mine[promising], crop[promising]
        crop = _refined(ones[mine], whole[mine], crop, cells)
        match = _match(_resampled(ones[mine], crop, cells), whole[mine], detail=_DETAIL_CROPPED)
        for place, good in zip(mine, match, strict=True):
            change[place] = "cropped" if good else None
    return change


def _refined(ones: Floats, whole: Floats, crop: NDArray[np.float64], cells: int) -> NDArray[np.float64]:
    """The crops near `crop` whose detail matches best, by a search along size and both edges in shrinking steps."""
    detail = _detail(whole)
    best = _correlation(_detail(_resampled(ones, crop, cells)), detail)
    moves = np.array([[1.0, -0.5, -0.5], [-1.0, 0.5, 0.5], [0, 1, 0], [0, -1, 0], [0, 0, 1], [0, 0, -1]])
    for step in _STEPS:
        for _ in range(3):
            base = crop.copy()
            for move in moves:
                tried = base + step * move
                inside = (tried[:, 0] >= 0.7) & (tried[:, 1:] >= -0.02).all(axis=1)
                inside &= (tried[:, :1] + tried[:, 1:] <= 1.02).all(axis=1)
                score = _correlation(_detail(_resampled(ones, tried, cells)), detail)
                better = inside & (score > best)
                crop = np.where(better[:, None], tried, crop)
                best = np.where(better, score, best)
    return crop


def _match(ones: Floats, others: Floats, *, detail: float) -> NDArray[np.bool_]:
    good: NDArray[np.bool_] = (_correlation(ones, others) >= _ALIKE) & (
        _correlation(_detail(ones), _detail(others)) >= detail
    )
    return good


def _large(pixels: Pixels) -> Floats:
    """Grey images of at most 64 pixels a side, as float32."""
    grey = in_grey(pixels).astype(np.float32)
    whole = np.tile([1.0, 0.0, 0.0], (len(grey), 1))
    return grey if grey.shape[1] <= _LARGEST else _resampled(grey, whole, _LARGEST)


def _resampled(images: Floats, crop: NDArray[np.float64], cells: int) -> Floats:
    """A part of each square image, averaged into cells x cells: float32 (n, cells, cells)."""
    side = images.shape[1]
    across, down = (boxes(cells, side, crop[:, edge], crop[:, 0]) for edge in (1, 2))
    cut: Floats = np.asarray(down @ images @ across.transpose(0, 2, 1), np.float32)
    return cut


def _detail(images: Floats) -> Floats:
    """What remains of square images without their average over 5 x 5 pixels."""
    places = np.arange(images.shape[1])
    near = (np.abs(places[:, None] - places) <= 2).astype(np.float32)
    near /= near.sum(axis=1, keepdims=True)
    detail: Floats = images - near @ images @ near.T
    return detail


def _correlation(ones: Floats, others: Floats) -> Floats:
    """Correlate image by image, float32 (n, side, side) each; n may be 0. Returns float32 (n,)."""
    size = int(np.prod(ones.shape[1:]))
    correlation: Floats = (_unit(ones.reshape(-1, size)) * _unit(others.reshape(-1, size))).sum(axis=1)
    return correlation


def _turned(images: Floats) -> list[Floats]:
    """The eight orientations of square images; the first is as they are."""
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
    """Vectors along the last axis without their mean, and of length one."""
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
