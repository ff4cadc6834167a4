"""Read a few samples of a split, and check the code of a custom Dataset (data.factory)."""

import contextlib
import hashlib
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
from ratchet.training.doctor.passes import generator_states, same_tensor, seeded_generators
from ratchet.training.doctor.rules import Finding
from ratchet.training.plan import Plan

__all__ = ["ReadSamples", "Reading", "balanced_rows", "check_dataset", "has_classes", "read_sample", "read_samples"]

_RUNS = 8  # runs of neighbours
_LARGEST_BYTES, _LONGEST_SECONDS = 96 << 20, 4.0
_CPU = torch.device("cpu")
_READ_TWICE = 8  # samples
_OWN_BYTES = 64 << 20  # of a Dataset's array that are compared before and after reading a sample
_DEEPEST = 3  # Datasets inside a Dataset
_LAST_AXIS, _FEWEST_ROWS = 4, 5  # channels last: at most so many columns, and at least so many channels and rows


@dataclass(frozen=True)
class ReadSamples:
    """Samples of one split, without those whose image has another shape or a value that is not finite."""

    split: str
    images: torch.Tensor  # (n, channels, height, width), as they were read
    labels: NDArray[np.int64]  # (n,)
    places: NDArray[np.int64]  # (n,), position in the Dataset; neighbours have consecutive ones

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Reading:
    """Result of reading one sample of a Dataset."""

    image: torch.Tensor  # a copy
    returned: torch.Tensor  # the tensor that the Dataset returned, and may change later
    states: dict[str, bytes]  # of the global random generators afterwards


def balanced_rows(split: Split, count: int, plan: Plan) -> NDArray[np.int64]:
    """Draw up to `count` rows, about equally many of each class: int64, sorted, dependent on the plan's seed.

    Of other problems, rows are drawn at random.
    """
    generator = np.random.Generator(np.random.Philox(plan.seed))
    drawn = generator.choice(len(split), min(len(split), 1000 * count), replace=False)
    if not has_classes(split):
        return np.sort(drawn[:count])
    drawn = drawn[split.targets[drawn] != plan.ignore_index]
    labels = np.asarray(split.targets[drawn])
    turn = np.zeros(len(labels), np.int64)  # number of rows of the same class that were drawn before
    for label in np.unique(labels):
        of_class = labels == label
        turn[of_class] = np.arange(of_class.sum())
    return np.sort(drawn[np.argsort(turn, kind="stable")[:count]])


def has_classes(split: Split) -> bool:
    """Return whether the targets are one class for each sample."""
    targets = split.targets
    return targets.ndim == 1 and len(targets) == len(split) and np.issubdtype(targets.dtype, np.integer)


def read_sample(dataset: Any, place: int, seed: int) -> Reading:
    """Read a sample from a seed.

    Raises:
        TrainingError: the Dataset raises an error, or does not return an image.
    """
    seed_step(seed, 0, _CPU)
    try:
        returned = dataset[place][0]
        image = returned.detach().clone()
    except Exception as error:  # the user's code may raise anything
        raise TrainingError(
            f"data.factory: sample {place} cannot be read ({type(error).__name__}: {error}), and could be read at "
            "ingest. Fix the Dataset, or ingest again with `dvc repro` to have the sample quarantined"
        ) from error
    return Reading(image, returned, generator_states(_CPU))


def read_samples(split: Split, count: int, plan: Plan) -> ReadSamples:
    """Read up to `count` samples from all over a split, in runs of neighbours; fewer where time or memory run out."""
    rows = _rows(split, count, plan)
    begun, images, read = time.monotonic(), [], []
    for block in np.array_split(rows, max(1, len(rows) // 16)):
        if time.monotonic() - begun > _LONGEST_SECONDS:
            break
        if isinstance(split, DatasetSplit):
            dataset = split.reader.open(split.name)
            images += [read_sample(dataset, place, _seed(place)).image for place in split.places[block].tolist()]
        else:
            images += [*split.batch(block, _CPU)[0][0]]
        read.append(block)
    rows = np.concatenate(read) if read else np.zeros(0, np.int64)
    places = split.places[rows] if isinstance(split, DatasetSplit) else 2 * rows  # packing has shuffled: no neighbours
    valid = [n for n, image in enumerate(images) if image.shape == images[0].shape and bool(image.isfinite().all())]
    stacked = torch.stack([images[number] for number in valid]) if valid else torch.zeros(0, 1, 1, 1)
    return ReadSamples(split.name, stacked, np.asarray(split.targets[rows])[valid], np.asarray(places)[valid])


def _rows(split: Split, count: int, plan: Plan) -> NDArray[np.int64]:
    size = 1
    if len(split):
        image = split.batch(np.arange(1), _CPU)[0][0][0]
        size = image.numel() * image.element_size()
    count = max(1, min(count, len(split), _LARGEST_BYTES // size))
    run = -(-count // _RUNS)
    starts = np.linspace(0, max(0, len(split) - run), _RUNS).astype(np.int64)
    rows = np.unique((starts[:, None] + np.arange(run)).ravel())
    rows = rows[(rows < len(split))]
    return np.asarray(rows[split.targets[rows] != plan.ignore_index]) if has_classes(split) else rows


def _seed(place: int) -> int:
    """Return one of eight seeds: augmentation varies, and a repeated image is still sometimes read the same."""
    return (place * 2654435761 >> 7) % 8


def check_dataset(train: DatasetSplit, validation: Split, plan: Plan) -> Iterator[Finding]:
    """Read samples of both splits several times. The same rule is reported for one split only."""
    findings = list(_check_readings(train, plan))
    yield from findings
    if isinstance(validation, DatasetSplit):
        reported = {finding.rule for finding in findings}
        in_validation = _check_readings(validation, plan, held_out=True)
        yield from (finding for finding in in_validation if finding.rule not in reported)
    yield from _channels_last(train)


def _channels_last(split: DatasetSplit) -> Iterator[Finding]:
    """Look for images whose last axis is as short as channels and whose first is as long as rows."""
    image = read_sample(split.reader.open(split.name), int(split.places[0]), 0).image
    channels, rows, columns = image.shape
    if columns <= _LAST_AXIS and columns != 2 and min(channels, rows) >= _FEWEST_ROWS and channels > columns:
        finding = Finding.of("channels-last", channels=channels, rows=rows, columns=columns)
        yield finding.warning_if(columns != 3 and channels != rows)


def _check_readings(split: DatasetSplit, plan: Plan, *, held_out: bool = False) -> Iterator[Finding]:
    """Read samples with one seed, the same seed again, and another seed."""
    dataset = split.reader.open(split.name)
    unseeded, varied, reused = list[str](), list[str](), list[str]()
    seeded, altered = set[str](), set[str]()
    last: tuple[int, Reading] | None = None
    for place in split.places[balanced_rows(split, _READ_TWICE, plan)].tolist():
        first = read_sample(dataset, place, 0)
        if last is not None and not same_tensor(last[1].image, last[1].returned):
            reused.append(str(last[0]))
        before = _own_arrays(dataset, place)
        again = read_sample(dataset, place, 0)
        after = _own_arrays(dataset, place)
        altered |= {name for name, digest in after.items() if before.get(name, digest) != digest}
        other = read_sample(dataset, place, 1)
        if not same_tensor(first.image, again.image):
            unseeded.append(str(place))
        elif not same_tensor(first.image, other.image):
            varied.append(str(place))
        seeded |= {*seeded_generators(first.states, other.states)}
        last = place, other

    def samples(rule: str, places: list[str]) -> Finding:
        return Finding.of(rule, *places, count=len(places), of=_READ_TWICE, split=split.name)

    if altered:
        yield Finding.of("in-place-change", *sorted(altered), split=split.name)
    elif unseeded:
        yield samples("unseeded-dataset", unseeded)
    if reused:
        yield samples("reused-buffer", reused)
    if varied and held_out:
        yield samples("augmented-validation", varied)
    if seeded:
        yield Finding.of("seeding-in-dataset", *sorted(seeded))


def _own_arrays(dataset: Any, place: int) -> dict[str, bytes]:
    """Return a digest of each array that a Dataset holds with an entry for every sample; of large ones, of one entry.

    Shorter arrays may be working buffers.
    """
    digests: dict[str, bytes] = {}
    length = len(dataset)
    for name, array in _arrays(dataset, "", 0):
        if len(array) < length:
            continue
        compared = array if array.nbytes <= _OWN_BYTES else array[place : place + 1]
        digests[name] = hashlib.blake2b(np.ascontiguousarray(compared).tobytes(), digest_size=8).digest()
    return digests


def _arrays(value: Any, path: str, depth: int) -> Iterator[tuple[str, NDArray[Any]]]:
    if isinstance(value, torch.Tensor) and value.dim() and value.device.type == "cpu":
        with contextlib.suppress(TypeError, RuntimeError):  # bfloat16 and sparse tensors have no array: left out
            yield path, value.detach().numpy()
    elif isinstance(value, np.ndarray) and value.ndim and value.dtype != object:
        yield path, value
    elif depth < _DEEPEST and hasattr(value, "__getitem__") and hasattr(value, "__dict__"):
        for name, member in vars(value).items():
            yield from _arrays(member, f"{path}.{name}".lstrip("."), depth + 1)
    elif depth < _DEEPEST and isinstance(value, Mapping):
        for name, member in value.items():
            yield from _arrays(member, f"{path}[{name!r}]", depth + 1)
