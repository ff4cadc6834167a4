"""A few samples of a source, for a trial run of the pipeline."""

from collections.abc import Sequence

import polars as pl

__all__ = ["PER_CLASS", "evenly_spaced", "subset"]


PER_CLASS = 30  # samples: enough that each split has some even with two classes
_MAX_SAMPLES = 3_000  # of all classes together; with many classes there are fewer of each
_MIN_PER_CLASS = 2


def subset(listing: pl.DataFrame, *, classes: int) -> pl.DataFrame:
    """Return some samples of each class and given split, in the order of the listing.

    If a source does not know the labels before its samples are read, as many samples are taken at even distances.
    """
    groups = listing.with_row_index("place").group_by("split", "label", maintain_order=True).agg("place")
    chosen: list[int] = []
    for label, places in groups.select("label", "place").rows():
        wanted = evenly_spaced(len(places), classes=classes if label is None else 1, of=classes)
        chosen += [places[at] for at in wanted]
    return listing[sorted(chosen)]


def evenly_spaced(count: int, *, classes: int, of: int) -> Sequence[int]:
    """Return some of range(count) at equal distances: enough samples for `classes` classes out of `of`."""
    per_class = max(_MIN_PER_CLASS, min(PER_CLASS, _MAX_SAMPLES // of))
    wanted = min(count, per_class * classes)
    return [place * count // wanted for place in range(wanted)]
