"""Read a few samples of a split for the checks."""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ratchet.errors import TrainingError
from ratchet.training.batches import Split
from ratchet.training.custom_dataset import DatasetSplit
from ratchet.training.device import seed_step
from ratchet.training.doctor.compare import generator_states
from ratchet.training.plan import Plan

__all__ = ["ReadSamples", "Reading", "balanced_rows", "read_sample", "read_samples"]

_RUNS = 8  # runs of neighbours
_LARGEST_BYTES, _LONGEST_SECONDS = 96 << 20, 4.0
_CPU = torch.device("cpu")


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
    """Draw up to `count` rows, about equally many of each class: int64, sorted, dependent on the plan's seed."""
    generator = np.random.Generator(np.random.Philox(plan.seed))
    drawn = generator.choice(len(split), min(len(split), 1000 * count), replace=False)
    drawn = drawn[split.labels[drawn] != plan.ignore_index]
    labels = np.asarray(split.labels[drawn])
    turn = np.zeros(len(labels), np.int64)  # number of rows of the same class that were drawn before
    for label in np.unique(labels):
        of_class = labels == label
        turn[of_class] = np.arange(of_class.sum())
    return np.sort(drawn[np.argsort(turn, kind="stable")[:count]])


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
            images += [*torch.from_numpy(split.gather(block)).permute(0, 3, 1, 2)]
        read.append(block)
    rows = np.concatenate(read) if read else np.zeros(0, np.int64)
    places = split.places[rows] if isinstance(split, DatasetSplit) else 2 * rows  # packing has shuffled: no neighbours
    valid = [n for n, image in enumerate(images) if image.shape == images[0].shape and bool(image.isfinite().all())]
    stacked = torch.stack([images[number] for number in valid]) if valid else torch.zeros(0, 1, 1, 1)
    return ReadSamples(split.name, stacked, np.asarray(split.labels[rows])[valid], np.asarray(places)[valid])


def _rows(split: Split, count: int, plan: Plan) -> NDArray[np.int64]:
    size = 1
    if len(split):
        image = split.batch(np.arange(1), _CPU)[0][0]
        size = image.numel() * image.element_size()
    count = max(1, min(count, len(split), _LARGEST_BYTES // size))
    run = -(-count // _RUNS)
    starts = np.linspace(0, max(0, len(split) - run), _RUNS).astype(np.int64)
    rows = np.unique((starts[:, None] + np.arange(run)).ravel())
    rows = rows[(rows < len(split))]
    return np.asarray(rows[split.labels[rows] != plan.ignore_index])


def _seed(place: int) -> int:
    """Return one of eight seeds: augmentation varies, and a repeated image is still sometimes read the same."""
    return (place * 2654435761 >> 7) % 8
