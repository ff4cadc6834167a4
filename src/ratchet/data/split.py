"""Assignment of samples to splits: by a hash of each sample, in equal shares per class.

The digest of each sample's pixels at full size, or of a JPEG's coded pixels (or the name of its group, if it has one),
is hashed to a number u in [0, 1). So copies in any lossless format and samples of one group share a split. Renaming a
file, changing its metadata, the order of the samples, the seed and `data.image_size` move no sample to another split.

Without classes u decides alone, so adding samples moves no other. With classes, the samples of a class are ordered by u
and spread evenly over [0, 1), and these positions decide. So a split gets its share of each class, rounded up or down.
No rule has exact shares and never moves a sample. The order never changes, so adding a sample can move only the samples
next to the two borders of its own class: at most one at each border.
"""

import hashlib
from collections.abc import Collection, Iterable
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ratchet.errors import DataError
from ratchet.settings.model import DataSettings

__all__ = ["SPLITS", "SplitName", "assign", "drawn", "even_positions", "for_folds", "keys", "of_groups", "position"]

SplitName = Literal["train", "validation", "test"]
SPLITS: tuple[SplitName, ...] = ("train", "validation", "test")


def position(identity: str) -> float:
    """Return u in [0, 1) for `identity`, a digest of pixels or the name of a group. It must never change."""
    return float(_positions([identity])[0])


def _positions(identities: Iterable[str]) -> NDArray[np.float64]:
    digests = np.frombuffer(_digests(identities, b"ratchet-split"), ">u8").astype(np.uint64)
    return (digests >> np.uint64(11)) / 2.0**53  # 53 bits: exact in a float, and below 1


def assign(
    identities: Collection[str],
    given: Iterable[SplitName | None],
    settings: DataSettings,
    *,
    declared: Collection[SplitName],
    classes: pl.Series | None = None,
) -> list[SplitName]:
    """Return a split for every sample.

    A given split is kept. A split that the source declares is not drawn: of a source with train and test folders only
    the validation samples are drawn, from train.

    Args:
        identities: texts that are hashed, one per sample.
        given: the source's split or None, one per sample.
        settings: shares of the samples without a given split. With folds, one of them is validation.
        declared: the splits that the source assigns.
        classes: name of each sample's class; None: the targets are no classes.
    """
    given = list(given)
    u = _positions(identities)
    if classes is not None:
        free = [split in (None, "train") for split in given]
        u[free] = even_positions(u[free], classes.filter(pl.Series(free, dtype=pl.Boolean)))
    places = drawn(u, settings, declared=declared).tolist()
    return [SPLITS[place] if split in (None, "train") else split for place, split in zip(places, given, strict=True)]


def even_positions(u: NDArray[np.float64], classes: pl.Series) -> NDArray[np.float64]:
    """Return positions in [0, 1) that are spread evenly inside each class, in the order of `u`.

    Samples with equal `u`, which are copies or one group, keep one position. A group counts in its most frequent class.
    """
    names = classes.unique().cast(pl.String).sort()
    codes = classes.cast(pl.Enum(names)).to_physical().to_numpy()
    order = np.argsort(u)
    values = u[order]
    starts = np.flatnonzero(np.append(True, values[1:] != values[:-1])) if len(u) else order  # of equal values
    sizes = np.diff(starts, append=len(u))
    code = codes[order[starts]].astype(np.int64)
    copied = order[np.repeat(sizes > 1, sizes)] if len(starts) < len(u) else order[:0]
    unit = np.searchsorted(values[starts], u[copied])
    pairs, counts = np.unique(unit * len(names) + codes[copied], return_counts=True)
    ranked = pairs[np.lexsort((-pairs, counts))]  # the most frequent class of a unit is last; of equals the first
    code[ranked // max(1, len(names))] = ranked % max(1, len(names))
    by_class = np.argsort(code.astype(codes.dtype), kind="stable")  # then by u; small types are sorted faster
    total = np.bincount(code, weights=sizes, minlength=len(names))
    size, code = sizes[by_class], code[by_class]
    before = np.cumsum(size) - size - (np.cumsum(total) - total)[code]
    # The start differs by class. Else all classes would be rounded the same way, and small ones would have no test.
    start = np.array([position(f"class {name}") for name in names])[code]
    even, result = np.empty(len(starts)), np.empty(len(u))
    even[by_class] = np.minimum((before + start * size) / total[code], 1 - 2**-53)
    result[order] = np.repeat(even, sizes)
    return result


def for_folds(
    given: pl.Series, settings: DataSettings, *, declared: Collection[SplitName]
) -> tuple[pl.Series, Collection[SplitName]]:
    """Return given splits and declared ones for `assign`: of data whose test is given, folds divide all other samples.

    Without a given test split the given validation samples stay, so that folds move no test sample.
    """
    if not settings.folds or "test" not in declared:
        return given, declared
    return given.replace("validation", "train"), [name for name in declared if name != "validation"]


def of_groups(given: pl.Series, groups: pl.Series, settings: DataSettings) -> pl.Series:
    """Return the given splits; a sample without one gets that of its group.

    Raises:
        DataError: a group has several splits.
    """
    rows = pl.DataFrame({"group": groups, "split": given})
    named = rows.drop_nulls().group_by("group").agg(pl.col("split").unique().sort()).sort("group")
    several = named.filter(pl.col("split").list.len() > 1)
    if several.height:
        (group, places), usual = several.row(0), type(settings).model_fields["group_column"].default
        column = settings.group_column
        no_groups = "list the column in data.drop" if column == usual else f"`ratchet set data.group_column={usual}`"
        raise DataError(
            f"data.group_column: group {group!r} of column {column!r} is in the splits {' and '.join(places)}. Fix: "
            "put its samples into one split, or give different groups different names; if these are no groups, "
            f"{no_groups}"
        )
    known = named.with_columns(own=pl.col("split").list.first()).select("group", "own")
    joined = rows.join(known, on="group", how="left", maintain_order="left")
    return joined.select(pl.coalesce("split", "own")).to_series().alias(given.name)


def drawn(u: NDArray[np.float64], settings: DataSettings, *, declared: Collection[str]) -> NDArray[np.int64]:
    """Return the place in SPLITS for samples at `u` in [0, 1); the other arguments are those of `assign`."""
    test = 0.0 if "test" in declared else settings.test_fraction
    validation = 0.0 if "validation" in declared else settings.validation_fraction
    if settings.folds and "validation" not in declared:
        held_out = np.floor((u - test) / (1 - test) * settings.folds) == settings.fold
    else:
        held_out = u < test + validation
    return np.where(u < test, 2, np.where(held_out, 1, 0))


def keys(ids: Iterable[str]) -> NDArray[np.uint64]:
    """Return a stable number for each sample id, uint64 (n,). Augmentation derives its random numbers from it."""
    return np.frombuffer(_digests(ids, b"ratchet-key"), dtype="<u8").astype(np.uint64)


def _digests(texts: Iterable[str], person: bytes) -> bytes:
    """Return the digests of texts, eight bytes each. A copy of an object is made faster than a new one."""
    empty, digests = hashlib.blake2b(digest_size=8, person=person), bytearray()
    for text in texts:
        digest = empty.copy()
        digest.update(text.encode())
        digests += digest.digest()
    return bytes(digests)
