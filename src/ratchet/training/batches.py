"""Batches of packed data: one read from the memory map, one copy to the device, augmented there as a whole."""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray

from ratchet.errors import TrainingError
from ratchet.training.augment import augment
from ratchet.training.plan import Plan

__all__ = ["Batch", "Rows", "Split", "ahead", "run_steps", "step_rows"]

Rows = NDArray[np.int64]
Batch = tuple[torch.Tensor, torch.Tensor]
Item = TypeVar("Item")

_RESIDENT_SHARE = 0.25  # of a GPU's free memory that a split may use to stay there


@dataclass(frozen=True)
class Split:
    """One split of a packed set, memory-mapped: images are read when they are used."""

    name: str
    shards: list[NDArray[np.uint8]]
    starts: NDArray[np.int64]  # first row of each shard, int64 (shards,)
    labels: NDArray[np.int64]  # (rows,)
    keys: NDArray[np.uint64]  # (rows,), stable hashes of the sample ids
    _resident: dict[torch.device, torch.Tensor | None] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def open(cls, packed: Path, name: str, manifest: Mapping[str, Any]) -> "Split":
        """Open split `name` of the set in folder `packed` that `manifest` describes.

        Raises:
            OSError, ValueError, KeyError: a file is missing or damaged.
            TrainingError: the files do not match each other.
        """
        listed = manifest["splits"][name]["shards"]
        shards = [np.load(packed / shard["file"], mmap_mode="r") for shard in listed]
        labels = np.load(packed / name / "labels.npy", mmap_mode="r")
        keys = np.load(packed / name / "keys.npy", mmap_mode="r")
        counts = [len(shard) for shard in shards]
        if not sum(counts) == len(labels) == len(keys):
            raise TrainingError(
                f"{packed}: split {name} has {sum(counts)} images, {len(labels)} labels and {len(keys)} keys. "
                "Fix: `dvc repro --force ingest` packs it again"
            )
        starts = np.concatenate([[0], np.cumsum(counts)])[:-1].astype(np.int64)
        return cls(name, shards, starts, labels, keys)

    def __len__(self) -> int:
        return len(self.labels)

    def gather(self, rows: Rows) -> NDArray[np.uint8]:
        """Return a copy of the images of `rows` in that order: uint8 (n, height, width, channels)."""
        if len(self.shards) == 1:
            return np.asarray(self.shards[0][rows])
        images = np.empty((len(rows), *self.shards[0].shape[1:]), np.uint8)
        owner = np.searchsorted(self.starts, rows, side="right") - 1
        for shard in np.unique(owner):
            mine = owner == shard
            images[mine] = self.shards[shard][rows[mine] - self.starts[shard]]
        return images

    def batch(self, rows: Rows, device: torch.device, *, plan: Plan | None = None, epoch: int = 0) -> Batch:
        """Return images uint8 (n, channels, height, width) and labels int64 (n,) on `device`.

        They are augmented if `plan` is given.
        """
        resident = self._on(device)
        if resident is not None:
            images = resident[torch.from_numpy(rows).to(device, non_blocking=True)]
        else:
            images = _moved(self.gather(rows), device)
        labels = _moved(np.asarray(self.labels[rows]), device)
        if plan is not None:
            images = augment(images, np.asarray(self.keys[rows]), plan, epoch=epoch)
        return images.permute(0, 3, 1, 2), labels

    def feed(
        self, pieces: Sequence[Rows], device: torch.device, *, plan: Plan | None = None, epoch: int = 0
    ) -> Generator[Batch]:
        """Yield a batch for each piece of rows, in order, as `batch` makes it.

        For a GPU a thread prefetches batches. On a CPU reading and augmentation take under a hundredth of a step, and a
        thread would slow the step by as much.
        """
        batches = (self.batch(rows, device, plan=plan, epoch=epoch) for rows in pieces)
        return batches if device.type == "cpu" else ahead(batches)

    def only(self, rows: Rows) -> "Split":
        """Return these rows as a split. Only labels and keys are copied."""
        return _SplitSubset(
            self.name, self.shards, self.starts, np.asarray(self.labels)[rows], np.asarray(self.keys)[rows], whole=self,
            rows=rows,
        )  # fmt: skip

    def interrupt_on(self, stop: Callable[[], bool]) -> None:
        """Let `stop` interrupt a read that blocks. Reads of a packed set do not block."""

    def close(self) -> None:
        """End what `feed` keeps for its next call: nothing for a packed set."""

    def in_order(self, size: int) -> Iterator[Rows]:
        """Yield the row numbers of the whole split, `size` at a time."""
        for start in range(0, len(self), size):
            yield np.arange(start, min(start + size, len(self)))

    def _on(self, device: torch.device) -> torch.Tensor | None:
        """Return all images on a GPU, uint8 (rows, height, width, channels), or None if they are too large."""
        if device.type != "cuda":
            return None
        if device not in self._resident:
            size = sum(shard.nbytes for shard in self.shards)
            fits = size < _RESIDENT_SHARE * torch.cuda.mem_get_info(device)[0]
            whole = torch.from_numpy(self.gather(np.arange(len(self)))).to(device) if fits else None
            self._resident[device] = whole
        return self._resident[device]


@dataclass(frozen=True)
class _SplitSubset(Split):
    """Some rows of a split."""

    whole: Split = field(kw_only=True)
    rows: Rows = field(kw_only=True)

    def gather(self, rows: Rows) -> NDArray[np.uint8]:
        """Return the images of `rows`, which are numbered within this subset."""
        return self.whole.gather(self.rows[rows])


def _moved(array: NDArray[np.uint8] | NDArray[np.int64], device: torch.device) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    if device.type == "cuda":
        tensor = tensor.pin_memory()  # only a copy from pinned memory does not stop the device
    return tensor.to(device, non_blocking=True)


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
