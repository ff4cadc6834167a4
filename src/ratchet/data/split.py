"""Which split a sample belongs to: a function of the sample alone.

The digest of each sample's decoded pixels at full size (or its group's name, where it has one) is hashed to a number u
in [0, 1), and u decides. So copies in any lossless format and group members always share a split, a renamed file and
one with other metadata stay in theirs, and adding samples moves no old one. Seed and `data.image_size` play no part.

How close to stratified that is: every class is split by the same independent draw, so a class with n different samples
gets n * fraction of them in a split on average, with a standard deviation of sqrt(n * fraction * (1 - fraction)): for
180 samples and .15, 27 +- 5; for 6,000, 900 +- 28. Exact shares per class would need to know the other samples, and
then adding one could move another.
"""

import hashlib
from collections.abc import Collection, Iterable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["SPLITS", "SplitName", "assign", "keys", "position"]

SplitName = Literal["train", "validation", "test"]
SPLITS: tuple[SplitName, ...] = ("train", "validation", "test")


def position(identity: str) -> float:
    """u in [0, 1): where `identity` (a digest of pixels or a group's name) lies, for ever and on every machine."""
    digest = hashlib.blake2b(identity.encode(), digest_size=8, person=b"ratchet-split").digest()
    return (int.from_bytes(digest, "big") >> 11) / 2**53  # 53 bits: exact in a float, and below 1


def assign(
    identities: Collection[str],
    given: Iterable[SplitName | None],
    *,
    declared: Collection[SplitName],
    validation_fraction: float,
    test_fraction: float,
    folds: int = 0,
    fold: int = 0,
) -> list[SplitName]:
    """A split for every sample.

    A given split is kept. A split that the source declares is not carved as well: a source with train and test folders
    has its validation samples, and nothing else, carved from train.

    Args:
        identities: what is hashed, one per sample.
        given: the source's split, or None; one per sample.
        declared: the splits that the source itself assigns.
        validation_fraction: share of the samples not otherwise given that goes to validation, [0, 1).
        test_fraction: the same for test; together below 1.
        folds: in place of `validation_fraction`, into how many parts what is not test is cut, and ...
        fold: ... which of them, from 0, is validation.
    """
    test = 0.0 if "test" in declared else test_fraction
    validation = 0.0 if "validation" in declared else validation_fraction
    u = np.fromiter(map(position, identities), dtype=np.float64, count=len(identities))
    if folds and "validation" not in declared:
        held_out = np.floor((u - test) / (1 - test) * folds) == fold
    else:
        held_out = u < test + validation
    drawn = np.where(u < test, 2, np.where(held_out, 1, 0))
    return [
        SPLITS[place] if split in (None, "train") else split for place, split in zip(drawn.tolist(), given, strict=True)
    ]


def keys(ids: Iterable[str]) -> NDArray[np.uint64]:
    """uint64 (n,): a stable number for each sample id, from which augmentation draws."""
    digests = b"".join(hashlib.blake2b(name.encode(), digest_size=8, person=b"ratchet-key").digest() for name in ids)
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)
