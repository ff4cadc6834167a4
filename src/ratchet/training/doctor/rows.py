"""The data: labels, rows that stand in two splits, and samples that differ from one reading to the next."""

import hashlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ratchet.training.batches import Split
from ratchet.training.dataset import DatasetSplit
from ratchet.training.device import seed_step
from ratchet.training.doctor.findings import Finding, some
from ratchet.training.plan import Plan

__all__ = ["balanced_rows", "examine_rows"]

_LOOKED_AT = 256 << 20  # bytes of pixels of each split that are compared, from all over it
_BLOCK = 4 << 20  # bytes at a time
_READ_TWICE = 8  # samples
_CPU = torch.device("cpu")


def examine_rows(train: Split, validation: Split, classes: tuple[str, ...], plan: Plan) -> Iterator[Finding]:
    """Look through labels, through keys and pixels for leaks, and read some samples twice."""
    for split in (train, validation):
        yield from _labels(split, len(classes), plan.ignore_index)
    yield from _same_keys(train, validation)
    if isinstance(train, DatasetSplit):
        yield from _readings(train, plan)
    elif not isinstance(validation, DatasetSplit):
        yield from _same_pixels(train, validation)


def balanced_rows(split: Split, count: int, plan: Plan) -> NDArray[np.int64]:
    """Up to `count` rows, of each class as many as of any other as far as there are: int64, drawn by the seed."""
    generator = np.random.Generator(np.random.Philox(plan.seed))
    drawn = generator.choice(len(split), min(len(split), 1000 * count), replace=False)
    drawn = drawn[split.labels[drawn] != plan.ignore_index]
    labels = np.asarray(split.labels[drawn])
    turn = np.zeros(len(labels), np.int64)  # how many of its class were drawn before each row
    for label in np.unique(labels):
        mine = labels == label
        turn[mine] = np.arange(mine.sum())
    return np.sort(drawn[np.argsort(turn, kind="stable")[:count]])


def _labels(split: Split, classes: int, ignored: int) -> Iterator[Finding]:
    labels = np.asarray(split.labels)
    wrong = np.unique(labels[((labels < 0) | (labels >= classes)) & (labels != ignored)])
    if len(wrong):
        rows = int(np.isin(labels, wrong).sum())
        yield Finding(
            "labels",
            f"{rows:,} labels in {split.name} are none of 0 to {classes - 1}, the {classes} classes: they are "
            f"{some([str(label) for label in wrong])}",
            "mend the labels and ingest again, or name one whose rows shall count nothing in training.ignore_index",
        )


def _same_keys(train: Split, validation: Split) -> Iterator[Finding]:
    both = int(np.isin(validation.keys, train.keys).sum())
    if both:
        yield _leak(f"{both:,} of {len(validation):,} validation samples are training samples too, by their ids")


def _same_pixels(train: Split, validation: Split) -> Iterator[Finding]:
    held_out = set(_digests(validation))
    if held_out.isdisjoint(_digests(train)):
        return
    seen = set(_digests(train))
    leaked = sum(digest in seen for digest in _digests(validation))
    yield _leak(f"{leaked:,} pictures of validation stand in train as well, pixel for pixel")


def _leak(told: str) -> Finding:
    return Finding("leak", told + ": validation figures flatter", "take them out of one of the two, and ingest again")


def _digests(split: Split) -> Iterator[bytes]:
    """A digest of each picture; of a split larger than is looked at, of blocks all over it."""
    size = int(np.prod(split.shards[0].shape[1:])) if split.shards else 1
    block = max(1, _BLOCK // size)
    starts = np.arange(0, len(split), block)
    wanted = max(1, _LOOKED_AT // (block * size))
    for start in starts if len(starts) <= wanted else starts[:: -(-len(starts) // wanted)]:
        for picture in split.gather(np.arange(start, min(start + block, len(split)))):
            yield hashlib.blake2b(picture.tobytes(), digest_size=8).digest()


def _readings(split: DatasetSplit, plan: Plan) -> Iterator[Finding]:
    """Read samples of a user's own Dataset with one seed, the same again, and another."""
    dataset = split.reader.open(split.name)
    moved, frozen = [], []
    for place in split.places[balanced_rows(split, _READ_TWICE, plan)].tolist():
        (one, left), (again, _), (_, left_by_other) = (_read(dataset, place, seed) for seed in (0, 0, 1))
        if not torch.equal(one, again):
            moved.append(str(place))
        frozen += [name for name in left if left[name] == left_by_other[name]]
    if moved:
        yield Finding(
            "randomness",
            f"data.factory: of {_READ_TWICE} samples {len(moved)} (numbers {some(moved)}) differ when read again from "
            "the same seed: they draw from a generator of their own, whose copies in all workers draw alike and which "
            "no resumed run finds as it was",
            "draw from the functions of random, numpy.random or torch themselves, without a generator made in "
            "__init__: they are seeded for each sample and epoch",
        )
    if frozen:
        yield Finding(
            "randomness",
            f"data.factory: __getitem__ seeds {some(sorted(set(frozen)))} itself: what it draws is the same in every "
            "epoch",
            "leave the seeding out: it is done for each sample and epoch",
        )


def _read(dataset: Any, place: int, seed: int) -> tuple[torch.Tensor, dict[str, object]]:
    """The image, and the global generators' states afterwards."""
    seed_step(seed, 0, _CPU)
    image = dataset[place][0]
    states = {
        "random": random.getstate(),
        "numpy.random": np.random.get_state()[1].tobytes(),  # type: ignore[index]  # the array of the five
        "torch": torch.get_rng_state().numpy().tobytes(),
    }
    return image, states
