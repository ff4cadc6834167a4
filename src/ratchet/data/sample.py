"""A few samples of a source in place of all, to try the pipeline on."""

from collections import defaultdict
from collections.abc import Sequence

from ratchet.data.sources import Label, Sample, Source, SplitName

__all__ = ["PER_CLASS", "sampled", "spread"]


PER_CLASS = 30  # samples, so that of two classes, too, each split has some; ...
_MOST = 3_000  # ... or fewer where there are so many classes that all would be more than this
_FEWEST = 2


def sampled(source: Source) -> list[Sample]:
    """Some samples of each class and given split, in id order; none is read.

    Where a source does not say the labels before its samples are read, as many are taken from all over it.
    """
    groups: dict[tuple[SplitName | None, Label], list[int]] = defaultdict(list)
    samples = list(source.samples())
    for place, sample in enumerate(samples):
        groups[sample.split, sample.label].append(place)
    classes = len(source.classes)
    chosen: list[int] = []
    for (_, label), places in groups.items():
        chosen += [places[at] for at in spread(len(places), classes=classes if label is None else 1, of=classes)]
    return [samples[place] for place in sorted(chosen)]


def spread(count: int, *, classes: int, of: int) -> Sequence[int]:
    """Some of range(count), at equal distances: enough for `classes` classes `of` all."""
    each = max(_FEWEST, min(PER_CLASS, _MOST // of))
    wanted = min(count, each * classes)
    return [place * count // wanted for place in range(wanted)]
