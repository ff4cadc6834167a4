"""A few samples of a source in place of all, to try the pipeline on."""

from collections.abc import Sequence

import polars as pl

__all__ = ["PER_CLASS", "sampled", "spread"]


PER_CLASS = 30  # samples, so that of two classes, too, each split has some; ...
_MOST = 3_000  # ... or fewer where there are so many classes that all would be more than this
_FEWEST = 2


def sampled(listing: pl.DataFrame, *, classes: int) -> pl.DataFrame:
    """Some samples of each class and given split, in the order of the listing.

    Where a source does not say the labels before its samples are read, as many are taken from all over it.
    """
    groups = listing.with_row_index("place").group_by("split", "label", maintain_order=True).agg("place")
    chosen: list[int] = []
    for label, places in groups.select("label", "place").rows():
        chosen += [places[at] for at in spread(len(places), classes=classes if label is None else 1, of=classes)]
    return listing[sorted(chosen)]


def spread(count: int, *, classes: int, of: int) -> Sequence[int]:
    """Some of range(count), at equal distances: enough for `classes` classes `of` all."""
    each = max(_FEWEST, min(PER_CLASS, _MOST // of))
    wanted = min(count, each * classes)
    return [place * count // wanted for place in range(wanted)]
