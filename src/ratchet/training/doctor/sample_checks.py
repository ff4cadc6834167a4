"""The data: labels, rows that stand in two splits, and samples that differ from one reading to the next."""

import contextlib
import hashlib
import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ratchet.errors import TrainingError
from ratchet.training.batches import Split
from ratchet.training.custom_dataset import DatasetSplit
from ratchet.training.device import seed_step
from ratchet.training.doctor.agreement import (
    Looked,
    examine_agreement,
    examine_labels_of_neighbours,
    examine_shortcuts,
    examine_values,
)
from ratchet.training.doctor.findings import Finding, some
from ratchet.training.plan import Plan

__all__ = ["balanced_rows", "examine_rows"]

_LOOKED_AT = 256 << 20  # bytes of pixels of each split that are compared, from all over it
_BLOCK = 4 << 20  # bytes at a time
_READ_TWICE = 8  # samples
_LOOKED_TRAIN, _LOOKED_HELD_OUT = 512, 256  # samples whose labels and values are tested, in
_RUNS = 8  # runs of neighbours; fewer where they take more than
_LOOKED_BYTES, _LOOKED_SECONDS = 96 << 20, 4.0
_OWN_BYTES = 64 << 20  # of a Dataset's own arrays that are compared before and after a reading
_DEEPEST = 3  # Datasets inside a Dataset
_LAST_AXIS, _FEWEST_ROWS = 4, 5  # channels last: at most so many columns, and at least so many channels and rows
_CPU = torch.device("cpu")


def examine_rows(train: Split, validation: Split, classes: tuple[str, ...], plan: Plan) -> Iterator[Finding]:
    """Look through labels, through keys and pixels for leaks, read some samples twice, and compare the splits."""
    for split in (train, validation):
        yield from _labels(split, len(classes), plan.ignore_index)
    yield from _same_keys(train, validation)
    if isinstance(train, DatasetSplit):
        yield from _readings(train, validation, plan)
        yield from _channels_last(train)
    elif not isinstance(validation, DatasetSplit):
        yield from _same_pixels(train, validation)
    looked, held_out = _looked(train, _LOOKED_TRAIN, plan), _looked(validation, _LOOKED_HELD_OUT, plan)
    repeated = list(examine_shortcuts(looked))
    yield from repeated or examine_shortcuts(held_out)
    misplaced = [] if repeated else [*examine_labels_of_neighbours(looked)] or [*examine_labels_of_neighbours(held_out)]
    yield from misplaced
    yield from examine_values(looked, held_out)
    if not repeated and not misplaced:
        yield from examine_agreement(looked, held_out)


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


def _looked(split: Split, count: int, plan: Plan) -> Looked:
    """Samples from all over a split, in runs of neighbours; of a slow Dataset those that could be read in time."""
    size = 1
    if len(split):
        first = split.batch(np.arange(1), _CPU)[0]
        size = first[0].numel() * first.element_size()
    count = max(1, min(count, len(split), _LOOKED_BYTES // size))
    run = -(-count // _RUNS)
    starts = np.linspace(0, max(0, len(split) - run), _RUNS).astype(np.int64)
    rows = np.unique((starts[:, None] + np.arange(run)).ravel())
    rows = rows[(rows < len(split))]
    rows = rows[split.labels[rows] != plan.ignore_index]
    begun, images, read = time.monotonic(), [], []
    for piece in np.array_split(rows, max(1, len(rows) // 16)):
        if time.monotonic() - begun > _LOOKED_SECONDS:
            break
        if isinstance(split, DatasetSplit):
            dataset = split.reader.open(split.name)
            images += [_read(dataset, place, _one_of_few(place)).image for place in split.places[piece].tolist()]
        else:
            images += [*torch.from_numpy(split.gather(piece)).permute(0, 3, 1, 2)]
        read.append(piece)
    kept = np.concatenate(read) if read else np.zeros(0, np.int64)
    places = split.places[kept] if isinstance(split, DatasetSplit) else 2 * kept  # packing has shuffled: no neighbours
    sound = [number for number, one in enumerate(images) if one.shape == images[0].shape and bool(one.isfinite().all())]
    stacked = torch.stack([images[number] for number in sound]) if sound else torch.zeros(0, 1, 1, 1)
    return Looked(split.name, stacked, np.asarray(split.labels[kept])[sound], np.asarray(places)[sound])


def _one_of_few(place: int) -> int:
    """One of eight seeds: augmentation varies, and an image that is repeated is still the same now and then."""
    return (place * 2654435761 >> 7) % 8


def _channels_last(split: DatasetSplit) -> Iterator[Finding]:
    """Images whose last axis is as short as channels are and whose first is as long as rows are."""
    image = _read(split.reader.open(split.name), int(split.places[0]), 0).image
    channels, rows, columns = image.shape
    if columns <= _LAST_AXIS and columns != 2 and min(channels, rows) >= _FEWEST_ROWS and channels > columns:
        yield Finding(
            "channels last",
            f"data.factory: images have shape {channels} x {rows} x {columns}, read as {channels} channels of {rows} x "
            f"{columns} pixels: they seem to be channels last",
            f"return image.permute(2, 0, 1), of shape {columns} x {channels} x {rows}",
            "error" if columns == 3 or channels == rows else "warning",
        )


def _readings(train: DatasetSplit, validation: Split, plan: Plan) -> Iterator[Finding]:
    """Read samples of a user's own Dataset with one seed, the same again, and another."""
    found = list(_read_again(train, plan))
    yield from found
    if isinstance(validation, DatasetSplit):
        yield from (
            one for one in _read_again(validation, plan, held_out=True) if _without(one) not in map(_without, found)
        )


def _without(finding: Finding) -> str:
    """A finding's check and fix, which two splits share where one cause is found in both."""
    return f"{finding.check}: {finding.way_out}"


def _read_again(split: DatasetSplit, plan: Plan, *, held_out: bool = False) -> Iterator[Finding]:
    dataset = split.reader.open(split.name)
    moved, seeded, altered, varied, reused = [], [], [], [], []
    last: tuple[int, _Reading] | None = None
    for place in split.places[balanced_rows(split, _READ_TWICE, plan)].tolist():
        first = _read(dataset, place, 0)
        if last is not None and not _equal(last[1].image, last[1].given):
            reused.append(str(last[0]))
        before = _own_arrays(dataset, place)
        again = _read(dataset, place, 0)
        altered += [name for name, digest in _own_arrays(dataset, place).items() if before.get(name, digest) != digest]
        other = _read(dataset, place, 1)
        if not _equal(first.image, again.image):
            moved.append(str(place))
        elif not _equal(first.image, other.image):
            varied.append(str(place))
        seeded += [name for name in first.states if first.states[name] == other.states[name]]
        last = place, other
    if altered:
        yield Finding(
            "in-place change",
            f"data.factory: __getitem__ changes its own data in split {split.name} ({some(sorted(set(altered)))} is "
            "not the same after a sample was read): a sample depends on how often it was read",
            "work on a copy: image = image.clone() or array.copy() before an operation that ends in _ or in =",
        )
    elif moved:
        yield Finding(
            "randomness",
            f"data.factory: of {_READ_TWICE} samples {len(moved)} (numbers {some(moved)}) differ when read again from "
            "the same seed: they draw from a generator of their own, whose copies in all workers draw alike and which "
            "no resumed run finds as it was, or they change what they read",
            "draw from the functions of random, numpy.random or torch themselves, without a generator made in "
            "__init__: they are seeded for each sample and epoch",
        )
    if reused:
        yield Finding(
            "reused buffer",
            f"data.factory: of {_READ_TWICE} samples of {split.name} {len(reused)} (numbers {some(reused)}) change "
            "when another is read: __getitem__ returns one buffer for all",
            "return a copy of the buffer: image.clone()",
        )
    if varied and held_out:
        yield Finding(
            "augmented validation",
            f"data.factory: validation is augmented: of {_READ_TWICE} samples {len(varied)} (numbers {some(varied)}) "
            "depend on the seed, and metrics measure changed images",
            "augment only where the function is called with train",
        )
    if seeded:
        yield Finding(
            "randomness",
            f"data.factory: __getitem__ seeds {some(sorted(set(seeded)))} itself: what it draws is the same in every "
            "epoch",
            "leave the seeding out: it is done for each sample and epoch",
        )


@dataclass(frozen=True)
class _Reading:
    """One sample as it was read."""

    image: torch.Tensor  # a copy
    given: torch.Tensor  # the tensor that the Dataset returned, which it may still change
    states: dict[str, object]  # the global generators' states afterwards


def _read(dataset: Any, place: int, seed: int) -> _Reading:
    """Read a sample from a seed.

    Raises:
        TrainingError: the Dataset raises an error, or does not return an image.
    """
    seed_step(seed, 0, _CPU)
    try:
        given = dataset[place][0]
        kept = given.detach().clone()
    except Exception as error:  # the user's code may raise anything
        raise TrainingError(
            f"data.factory: sample {place} cannot be read ({type(error).__name__}: {error}), and could be read at "
            "ingest. Fix the Dataset, or ingest again with `dvc repro` to have the sample quarantined"
        ) from error
    states = {
        "random": random.getstate(),
        "numpy.random": np.random.get_state()[1].tobytes(),  # type: ignore[index]  # the array of the five
        "torch": torch.get_rng_state().numpy().tobytes(),
    }
    return _Reading(kept, given, states)


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one, other)


def _own_arrays(dataset: Any, place: int) -> dict[str, bytes]:
    """A digest of each array that a Dataset holds with an entry for every sample; of large ones, of one entry.

    Shorter arrays may be buffers to work in.
    """
    digests: dict[str, bytes] = {}
    length = len(dataset)
    for name, array in _arrays(dataset, "", 0):
        if len(array) < length:
            continue
        part = array if array.nbytes <= _OWN_BYTES else array[place : place + 1]
        digests[name] = hashlib.blake2b(np.ascontiguousarray(part).tobytes(), digest_size=8).digest()
    return digests


def _arrays(value: Any, path: str, depth: int) -> Iterator[tuple[str, NDArray[Any]]]:
    if isinstance(value, torch.Tensor) and value.dim() and value.device.type == "cpu":
        with contextlib.suppress(TypeError, RuntimeError):  # no counterpart in NumPy (bfloat16, sparse): left out
            yield path, value.detach().numpy()
    elif isinstance(value, np.ndarray) and value.ndim and value.dtype != object:
        yield path, value
    elif depth < _DEEPEST and hasattr(value, "__getitem__") and hasattr(value, "__dict__"):
        for name, member in vars(value).items():
            yield from _arrays(member, f"{path}.{name}".lstrip("."), depth + 1)
    elif depth < _DEEPEST and isinstance(value, Mapping):
        for name, member in value.items():
            yield from _arrays(member, f"{path}[{name!r}]", depth + 1)
