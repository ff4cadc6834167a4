"""Packed data as batches: one gather from the memory map, moved once, transformed whole on the device."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ratchet.errors import TrainingError
from ratchet.training.augment import augment
from ratchet.training.plan import Plan

__all__ = ["Split", "step_rows"]


@dataclass(frozen=True)
class Split:
    """One split of a packed set, memory-mapped: nothing is read before it is asked for."""

    name: str
    shards: list[NDArray[np.uint8]]
    starts: NDArray[np.int64]  # first row of each shard, int64 (shards,)
    labels: NDArray[np.int64]  # (rows,)
    keys: NDArray[np.uint64]  # (rows,), stable hashes of the samples' ids

    @classmethod
    def open(cls, packed: Path, name: str) -> "Split":
        """Map split `name` (train, validation or test) of the set in folder `packed`."""
        try:
            manifest = json.loads((packed / "manifest.json").read_text(encoding="utf-8"))
            listed = manifest["splits"][name]["shards"]
            shards = [np.load(packed / shard["file"], mmap_mode="r") for shard in listed]
            labels = np.load(packed / name / "labels.npy")
            keys = np.load(packed / name / "keys.npy")
        except (OSError, ValueError, KeyError) as error:
            raise TrainingError(
                f"{packed}: split {name} cannot be read ({error}): pack it again with `dvc repro --force ingest`"
            ) from error
        counts = [len(shard) for shard in shards]
        if not sum(counts) == len(labels) == len(keys):
            raise TrainingError(
                f"{packed}: split {name} has {sum(counts)} images, {len(labels)} labels and {len(keys)} keys: "
                "pack it again with `dvc repro --force ingest`"
            )
        starts = np.concatenate([[0], np.cumsum(counts)])[:-1].astype(np.int64)
        return cls(name, shards, starts, labels, keys)

    def __len__(self) -> int:
        return len(self.labels)

    def gather(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        """The images of `rows` in that order: uint8 (n, height, width, channels), a copy."""
        if len(self.shards) == 1:
            return self.shards[0][rows]
        images = np.empty((len(rows), *self.shards[0].shape[1:]), np.uint8)
        owner = np.searchsorted(self.starts, rows, side="right") - 1
        for shard in np.unique(owner):
            mine = owner == shard
            images[mine] = self.shards[shard][rows[mine] - self.starts[shard]]
        return images

    def batch(
        self, rows: NDArray[np.int64], device: torch.device, plan: Plan | None = None, *, epoch: int = 0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Images uint8 (n, channels, height, width) and labels int64 (n,) on `device`; augmented if a plan is given."""
        images = torch.from_numpy(self.gather(rows)).to(device, non_blocking=True)
        labels = torch.from_numpy(self.labels[rows]).to(device, non_blocking=True)
        if plan is not None:
            images = augment(
                images, self.keys[rows], seed=plan.seed, epoch=epoch, flip=plan.flip, padding=plan.crop_padding
            )
        return images.permute(0, 3, 1, 2), labels

    def in_order(self, size: int) -> Iterator[NDArray[np.int64]]:
        """Row numbers of the whole split, `size` at a time."""
        for start in range(0, len(self), size):
            yield np.arange(start, min(start + size, len(self)))


def step_rows(rows: int, batch_size: int) -> list[tuple[int, int]]:
    """The (start, stop) of each optimizer step of an epoch over `rows` samples.

    A last batch of one sample is joined to the one before it: batch norm has no variance of a single value.
    """
    starts = list(range(0, rows, batch_size))
    if len(starts) > 1 and rows - starts[-1] == 1:
        starts.pop()
    return list(zip(starts, [*starts[1:], rows], strict=True))
