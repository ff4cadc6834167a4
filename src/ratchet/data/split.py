"""Assignment of samples to splits: it depends on the sample alone.

The digest of each sample's decoded pixels at full size (or the name of its group, if it has one) is hashed to a number
u in [0, 1), and u decides. So copies in any lossless format and samples of one group share a split. Renaming a file,
changing its metadata, adding samples, the seed and `data.image_size` move no sample to another split.

Splits are not exactly stratified. Of a class with n different samples, a split gets n * fraction on average, with a
standard deviation of sqrt(n * fraction * (1 - fraction)). With a fraction of .15, 180 samples give 27 +- 5, and 6,000
give 900 +- 28. Exact shares would depend on the other samples, so adding a sample could move another.
"""

import hashlib
from collections.abc import Collection, Iterable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["SPLITS", "SplitName", "assign", "drawn", "keys", "position"]

SplitName = Literal["train", "validation", "test"]
SPLITS: tuple[SplitName, ...] = ("train", "validation", "test")


def position(identity: str) -> float:
    """Return u in [0, 1) for `identity`, a digest of pixels or the name of a group. It must never change."""
    digest = hashlib.blake2b(identity.encode(), digest_size=8, person=b"ratchet-split").digest()
    return (int.from_bytes(digest, "big") >> 11) / 2**53  # 53 bits: exact in a float, and below 1


def assign(
    identities: Collection[str], given: Iterable[SplitName | None], *, declared: Collection[SplitName],
    validation_fraction: float, test_fraction: float, folds: int = 0, fold: int = 0,
) -> list[SplitName]:  # fmt: skip
    """Return a split for every sample.

    A given split is kept. A split that the source declares is not drawn: of a source with train and test folders only
    the validation samples are drawn, from train.

    Args:
        identities: texts that are hashed, one per sample.
        given: the source's split or None, one per sample.
        declared: the splits that the source assigns.
        validation_fraction: share of the samples without a given split that goes to validation, [0, 1).
        test_fraction: the same for test; together below 1.
        folds: number of parts that the samples outside test are cut into, instead of `validation_fraction`; 0: none.
        fold: the part that is validation, from 0.
    """
    u = np.fromiter(map(position, identities), dtype=np.float64, count=len(identities))
    places = drawn(
        u, declared=declared, validation_fraction=validation_fraction, test_fraction=test_fraction, folds=folds,
        fold=fold,
    )  # fmt: skip
    return [
        SPLITS[place] if split in (None, "train") else split
        for place, split in zip(places.tolist(), given, strict=True)
    ]


def drawn(
    u: NDArray[np.float64], *, declared: Collection[str], validation_fraction: float, test_fraction: float,
    folds: int = 0, fold: int = 0,
) -> NDArray[np.int64]:  # fmt: skip
    """Return the place in SPLITS for samples at `u` in [0, 1); the other arguments are those of `assign`."""
    test = 0.0 if "test" in declared else test_fraction
    validation = 0.0 if "validation" in declared else validation_fraction
    if folds and "validation" not in declared:
        held_out = np.floor((u - test) / (1 - test) * folds) == fold
    else:
        held_out = u < test + validation
    return np.where(u < test, 2, np.where(held_out, 1, 0))


def keys(ids: Iterable[str]) -> NDArray[np.uint64]:
    """Return a stable number for each sample id, uint64 (n,). Augmentation derives its random numbers from it."""
    digests = b"".join(hashlib.blake2b(name.encode(), digest_size=8, person=b"ratchet-key").digest() for name in ids)
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)
