"""Batches of packed data: one read from the memory map, one copy to the device, prepared there as a whole."""

import math
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray

from ratchet.errors import TrainingError
from ratchet.training.augment import Randomness, resized
from ratchet.training.device import moved
from ratchet.training.plan import Plan
from ratchet.training.transforms import Augmentation

__all__ = [
    "ArrayLike",
    "Batch",
    "ChosenRows",
    "ImageSplit",
    "Inputs",
    "Rows",
    "ShardedArray",
    "Split",
    "TableSplit",
    "ahead",
    "run_steps",
    "step_rows",
]

Rows = NDArray[np.int64]
Inputs = tuple[torch.Tensor, ...]
Batch = tuple[Inputs, torch.Tensor]
Item = TypeVar("Item")

_RESIDENT_SHARE = 0.25  # of a GPU's free memory that a split may use to stay there
_TOGETHER = 64  # batches of a resident split whose row numbers and draws are copied to the GPU at once


class ArrayLike(Protocol):
    """Rows that are read when they are used."""

    def __len__(self) -> int: ...

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""

    def gather(self, rows: Rows) -> NDArray[Any]:
        """Return a copy of these rows in that order."""


@dataclass(frozen=True)
class ShardedArray:
    """An array in memory-mapped shards."""

    shards: list[NDArray[Any]]

    def __len__(self) -> int:
        return sum(map(len, self.shards))

    @property
    def nbytes(self) -> int:
        return sum(shard.nbytes for shard in self.shards)

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """First row of each shard, int64 (shards,)."""
        return np.concatenate([[0], np.cumsum([len(shard) for shard in self.shards])])[:-1].astype(np.int64)

    def gather(self, rows: Rows) -> NDArray[Any]:
        if len(self.shards) == 1:
            return np.asarray(self.shards[0][rows])
        values = np.empty((len(rows), *self.shards[0].shape[1:]), self.shards[0].dtype)
        owner = np.searchsorted(self.starts, rows, side="right") - 1
        for shard in np.unique(owner):
            mine = owner == shard
            values[mine] = self.shards[shard][rows[mine] - self.starts[shard]]
        return values


@dataclass(frozen=True)
class ChosenRows:
    """Some rows of an array."""

    whole: ArrayLike
    rows: Rows

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        return self.whole.nbytes * len(self) // max(1, len(self.whole))

    def gather(self, rows: Rows) -> NDArray[Any]:
        return self.whole.gather(self.rows[rows])


@dataclass(frozen=True)
class Split:
    """One split of a packed set: the input's arrays, and the targets."""

    array_names: ClassVar[tuple[str, ...]] = ()  # in the manifest, in the order in which the model takes them

    name: str
    arrays: tuple[ArrayLike, ...]
    targets: NDArray[Any]  # (rows,) or (rows, targets); see `ratchet.problems`
    keys: NDArray[np.uint64]  # (rows,), stable hashes of the sample ids
    _resident: dict[torch.device, Batch | None] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def open(
        cls, packed: Path, name: str, manifest: Mapping[str, Any], names: tuple[str, ...] | None = None, **more: Any
    ) -> Self:
        """Open split `name` of the set in folder `packed` that `manifest` describes.

        Args:
            names: of the arrays, if they are not `array_names`.
            more: further fields of the class.

        Raises:
            OSError, ValueError, KeyError: a file is missing or damaged.
            TrainingError: the files do not match each other.
        """
        listed = manifest["splits"][name]["arrays"]
        stored = {
            array: ShardedArray([np.load(packed / shard["file"], mmap_mode="r") for shard in shards])
            for array, shards in listed.items()
        }
        targets = np.load(packed / name / "targets.npy", mmap_mode="r")
        keys = np.load(packed / name / "keys.npy", mmap_mode="r")
        names = cls.array_names if names is None else names
        arrays = tuple(stored[array] for array in names)
        counts = {
            **{array: len(values) for array, values in zip(names, arrays, strict=True)},
            "targets": len(targets),
            "keys": len(keys),
        }
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"{count} {title}" for title, count in counts.items())
            raise TrainingError(f"{packed}: split {name} has {listed}. Fix: `dvc repro --force ingest` packs it again")
        return cls(name, arrays, targets, keys, **more)

    def __len__(self) -> int:
        return len(self.targets)

    def prepare(self, plan: Plan) -> None:
        """Make what the augmentation of `plan` needs, so that no step makes it: a user's class may draw numbers."""

    def host_targets(self, rows: Rows) -> NDArray[Any]:
        """Return the targets of `rows`, (n,) or (n, targets)."""
        return np.asarray(self.targets[rows])

    def targets_per_row(self, ignored: int) -> int | None:
        """Return how many targets each row has. None: some are `ignored`."""
        targets = np.asarray(self.targets)
        return None if bool((targets == ignored).any()) else math.prod(targets.shape[1:])

    def gather(self, rows: Rows) -> tuple[NDArray[Any], ...]:
        """Return copies of the stored arrays of `rows` in that order."""
        return tuple(array.gather(rows) for array in self.arrays)

    def batch(self, rows: Rows, device: torch.device, *, plan: Plan | None = None, epoch: int = 0) -> Batch:
        """Return the inputs and the targets of `rows` on `device`; the inputs are augmented if `plan` is given."""
        resident = self._on(device)
        if resident is not None:
            return next(self._resident_batches(resident, [rows], device, plan, epoch))
        rows = self.rows_read(rows, plan, epoch)
        inputs = tuple(moved(array, device) for array in self.gather(rows))
        targets = moved(self.host_targets(rows), device)
        drawn = [moved(each, device) for each in self.draws(rows, plan, epoch)]
        return self.mixed(self.prepared(inputs, drawn, rows, plan, epoch), targets, drawn, plan)

    def rows_read(self, rows: Rows, plan: Plan | None, epoch: int) -> Rows:
        """Return the rows that are read for a batch of `rows`: they, and others with which they are mixed."""
        return rows

    def draws(self, rows: Rows, plan: Plan | None, epoch: int) -> list[NDArray[Any]]:
        """Return what is drawn for `rows` on the CPU: arrays with one line for each row, which `prepared` takes."""
        return []

    def prepared(
        self, inputs: Inputs, drawn: Sequence[torch.Tensor], rows: Rows, plan: Plan | None, epoch: int
    ) -> Inputs:
        """Return the stored arrays of `rows` as the model takes them, augmented if `plan` is given."""
        return inputs

    def mixed(self, inputs: Inputs, targets: torch.Tensor, drawn: Sequence[torch.Tensor], plan: Plan | None) -> Batch:
        """Return the batch of prepared inputs and targets, each mixed with another one if `plan` mixes."""
        return inputs, targets

    def _resident_batches(
        self, resident: Batch, pieces: Sequence[Rows], device: torch.device, plan: Plan | None, epoch: int
    ) -> Generator[Batch]:
        """Yield the batches of a split that is on the device, which gets the row numbers of many batches at once."""
        for first in range(0, len(pieces), _TOGETHER):
            block = [self.rows_read(rows, plan, epoch) for rows in pieces[first : first + _TOGETHER]]
            rows = np.concatenate(block)
            together = [moved(each, device) for each in (rows, *self.draws(rows, plan, epoch))]
            for piece, (index, *drawn) in zip(block, _cut(together, [len(piece) for piece in block]), strict=True):
                yield self._chosen(resident, index, drawn, piece, plan, epoch)

    def _chosen(
        self,
        resident: Batch,
        index: torch.Tensor,
        drawn: Sequence[torch.Tensor],
        rows: Rows,
        plan: Plan | None,
        epoch: int,
    ) -> Batch:
        """Return the batch of `rows`, whose numbers on the device are `index`."""
        inputs, targets = resident
        chosen = tuple(stored[index] for stored in inputs)
        return self.mixed(self.prepared(chosen, drawn, rows, plan, epoch), targets[index], drawn, plan)

    def feed(
        self, pieces: Sequence[Rows], device: torch.device, *, plan: Plan | None = None, epoch: int = 0
    ) -> Generator[Batch]:
        """Yield a batch for each piece of rows, in order, as `batch` makes it.

        For a GPU a thread prefetches batches, unless the GPU has the whole split: then a batch is a few kernels. On a
        CPU reading and augmentation take under a hundredth of a step, and a thread would slow the step by as much.
        """
        resident = None if plan is not None and self.prepares_on_host else self._on(device)
        if resident is not None:
            return self._resident_batches(resident, pieces, device, plan, epoch)
        batches = (self.batch(rows, device, plan=plan, epoch=epoch) for rows in pieces)
        return batches if device.type == "cpu" else ahead(batches)

    @property
    def prepares_on_host(self) -> bool:
        """Whether `prepared` takes the CPU long enough for a thread of its own."""
        return False

    def only(self, rows: Rows) -> Self:
        """Return these rows as a split. Only targets and keys are copied."""
        arrays = tuple(ChosenRows(array, rows) for array in self.arrays)
        targets, keys = np.asarray(self.targets)[rows], np.asarray(self.keys)[rows]
        return replace(self, arrays=arrays, targets=targets, keys=keys, _resident={})

    def read_with(self, *, workers: int, sample_timeout: float) -> None:
        """Let processes read samples that are not packed; see `ratchet.training.open_split`."""

    def interrupt_on(self, stop: Callable[[], bool]) -> None:
        """Let `stop` interrupt a read that blocks. Reads of a packed set do not block."""

    def close(self) -> None:
        """End what `feed` keeps for its next call: nothing for a packed set."""

    def in_order(self, size: int) -> Iterator[Rows]:
        """Yield the row numbers of the whole split, `size` at a time."""
        for start in range(0, len(self), size):
            yield np.arange(start, min(start + size, len(self)))

    def _on(self, device: torch.device) -> Batch | None:
        """Return all stored arrays and targets on a GPU, or None if they are too large."""
        if device.type != "cuda":
            return None
        if device not in self._resident:
            size, share = self._resident_size()
            fits = size < share * torch.cuda.mem_get_info(device)[0]
            self._resident[device] = self._whole(device) if fits else None
        return self._resident[device]

    def _resident_size(self) -> tuple[int, float]:
        """Return the bytes of the whole split on a GPU, and the share of free memory that they may take."""
        return sum(array.nbytes for array in self.arrays) + self.targets.nbytes, _RESIDENT_SHARE

    def _whole(self, device: torch.device) -> Batch:
        """Return all stored arrays and targets on the device."""
        rows = np.arange(len(self))
        inputs = tuple(torch.from_numpy(array).to(device) for array in self.gather(rows))
        return inputs, torch.from_numpy(self.host_targets(rows)).to(device)


@dataclass(frozen=True)
class ImageSplit(Split):
    """Images, stored as uint8 (rows, height, width, channels). The model takes (n, channels, height, width)."""

    array_names = ("images",)

    _augmentations: list[Augmentation] = field(default_factory=list, repr=False, compare=False)  # of the last plan

    @classmethod
    def of(
        cls, name: str, shards: list[NDArray[np.uint8]], labels: NDArray[np.int64], keys: NDArray[np.uint64]
    ) -> "ImageSplit":
        """Return the split of these images, (rows, height, width, channels) in each shard."""
        return cls(name, (ShardedArray(shards),), labels, keys)

    @cached_property
    def size(self) -> tuple[int, int]:
        """Height and width of every image."""
        height, width = self.images(np.arange(1)).shape[1:3]
        return height, width

    def images(self, rows: Rows) -> NDArray[np.uint8]:
        """Return the images of `rows` for display: uint8 (n, height, width, 1 or 3)."""
        images: NDArray[np.uint8] = self.gather(rows)[0]
        return images

    def draws(self, rows: Rows, plan: Plan | None, epoch: int) -> list[NDArray[Any]]:
        if plan is None:
            return []
        return self._augmentation(plan).draws(np.asarray(self.keys[rows]), epoch=epoch, size=self.size)

    def prepare(self, plan: Plan) -> None:
        self._augmentation(plan)

    def rows_read(self, rows: Rows, plan: Plan | None, epoch: int) -> Rows:
        if plan is None or (mixing := self._augmentation(plan).mixing) is None:
            return rows
        random = Randomness(np.asarray(self.keys[rows]), plan.seed, epoch)
        return np.concatenate([rows, mixing.partners(random, len(self))])

    def _augmentation(self, plan: Plan) -> Augmentation:
        if not self._augmentations or self._augmentations[0].plan is not plan:
            self._augmentations[:] = [Augmentation(plan)]
        return self._augmentations[0]

    def prepared(
        self, inputs: Inputs, drawn: Sequence[torch.Tensor], rows: Rows, plan: Plan | None, epoch: int
    ) -> Inputs:
        (images,) = inputs
        if plan is not None:
            images = self._augmentation(plan).apply(images, drawn)
        images = images.permute(0, 3, 1, 2)
        return (images if plan is None else resized(images, plan, epoch=epoch),)

    def mixed(self, inputs: Inputs, targets: torch.Tensor, drawn: Sequence[torch.Tensor], plan: Plan | None) -> Batch:
        mixing = None if plan is None else self._augmentation(plan).mixing
        if mixing is None:
            return inputs, targets
        images, targets = mixing.apply(inputs[0], targets, drawn[-mixing.count :])
        return (images,), targets


@dataclass(frozen=True)
class TableSplit(Split):
    """Rows of a table: numbers float32 (rows, columns) with NaN where missing, and codes int64 (rows, columns)."""

    array_names = ("numbers", "codes")


def _cut(tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield the tensors' rows in parts of these sizes."""
    return zip(*(torch.split(each, list(sizes)) for each in tensors), strict=True)


def ahead(items: Iterator[Item], *, depth: int = 2) -> Generator[Item]:
    """Yield the same items, which a thread produces up to `depth` ahead. Its errors are raised here."""
    end = object()
    pool = ThreadPoolExecutor(1, thread_name_prefix="batches")
    try:
        coming = deque(pool.submit(next, items, end) for _ in range(depth + 1))
        while (item := coming.popleft().result()) is not end:
            coming.append(pool.submit(next, items, end))
            yield cast(Item, item)
    finally:
        pool.shutdown(cancel_futures=True)


def run_steps(rows: int, plan: Plan) -> tuple[int, int]:
    """Return (optimizer steps of a whole run on `rows` samples, steps of one epoch)."""
    per_epoch = len(step_rows(rows, plan.batch_size))
    whole = per_epoch * plan.epochs
    return min(whole, plan.max_steps) if plan.max_steps else whole, per_epoch


def step_rows(rows: int, batch_size: int) -> list[tuple[int, int]]:
    """Return (start, stop) of each optimizer step of an epoch over `rows` samples.

    A last batch of one sample is added to the batch before it, because batch norm cannot use a single value.
    """
    starts = list(range(0, rows, batch_size))
    if len(starts) > 1 and rows - starts[-1] == 1:
        starts.pop()
    return list(zip(starts, [*starts[1:], rows], strict=True))
