"""A split whose images are read from a user's own torch Dataset, sample by sample.

Before every read Python, NumPy and PyTorch are seeded from (seed, epoch, sample key). So a sample does not depend on
the process that reads it or on its batch, and a resumed epoch reads only its remaining samples.
"""

import math
import os
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ratchet.errors import TrainingError
from ratchet.kinds import ImageInput, input_from_json
from ratchet.training.augment import sample_bits
from ratchet.training.batches import Batch, ImageSplit, Rows
from ratchet.training.custom_samples import Factory, Faulty, Piece, Sample
from ratchet.training.plan import Plan
from ratchet.training.sample_reader import SampleReader

__all__ = ["DatasetSplit"]

_INGEST = "`dvc repro` or `ratchet train` ingests the data again"
_DTYPES = {"uint8": torch.uint8, "float32": torch.float32}


@dataclass(frozen=True, kw_only=True)
class DatasetSplit(ImageSplit):
    """Split of images that were checked at ingest but not packed. `training.workers` processes read them.

    Images are uint8 or float32, as the Dataset returns them. Whole batches are augmented like those of a packed set.
    """

    reader: SampleReader["_Stacked | Faulty"]
    places: NDArray[np.int64]  # (rows,), index of each sample in the user's Dataset
    low: NDArray[np.float32]  # (channels,), values shown as black
    high: NDArray[np.float32]  # (channels,), values shown as white

    @classmethod
    def open_rows(
        cls, packed: Path, name: str, manifest: dict[str, Any], *, workers: int = 0, sample_timeout: float = 0.0
    ) -> "DatasetSplit":
        """Open split `name` of the set that `manifest` describes.

        Args:
            workers: processes that read samples; 0: this process.
            sample_timeout: seconds that one sample may take; 0: no limit.

        Raises:
            TrainingError: the user's function is missing, its code or data changed since ingest, or the files of the
                ingest cannot be read.
        """
        recorded = manifest["factory"]
        root = Path(os.path.normpath(packed.absolute() / recorded["root"]))
        factory = Factory(recorded["function"], root, recorded["code"])
        if factory.digest() != recorded["code_digest"]:
            raise TrainingError(f"data.code: {recorded['code']} changed since the data was ingested. Fix: {_INGEST}")
        try:
            targets, keys, places = (np.load(packed / name / f"{part}.npy") for part in ("targets", "keys", "places"))
        except (OSError, ValueError) as error:
            raise TrainingError(f"{packed}: split {name} cannot be read ({error}). Fix: {_INGEST}") from error
        images = input_from_json(manifest["input"])
        assert isinstance(images, ImageInput), "ingest refuses samples of other kinds"
        reader = SampleReader(factory, _Stack(images.shape, images.dtype), workers=workers, timeout=sample_timeout)
        count, expected = len(reader.open(name)), manifest["splits"][name]["own"]["samples"]
        if count != expected:
            raise TrainingError(
                f"data.factory: {factory.function}({name!r}) has {count} samples, but had {expected} when it was "
                f"ingested. Fix: {_INGEST}"
            )
        low, high = (np.array(recorded[end], np.float32) for end in ("low", "high"))
        return cls(name, (), targets, keys, reader=reader, places=places, low=low, high=high)

    def images(self, rows: Rows) -> NDArray[np.uint8]:
        """Return the images of `rows` for display: uint8 (n, height, width, 1 or 3).

        Floating-point values are scaled by the range of each channel in the training images. Of four or more channels
        the first three are shown, of two the first.
        """
        seen = slice(3 if len(self.low) >= 3 else 1)
        images = self.batch(rows, torch.device("cpu"))[0][0].permute(0, 2, 3, 1).numpy()[..., seen]
        if images.dtype == np.uint8:
            return np.ascontiguousarray(images)
        low, high = self.low[seen], self.high[seen]
        span = np.where(high > low, high - low, 1)
        return np.clip(np.rint((images - low) / span * 255), 0, 255).astype(np.uint8)

    def batch(self, rows: Rows, device: torch.device, *, plan: Plan | None = None, epoch: int = 0) -> Batch:
        """Return one batch, read by this process. See `feed`."""
        stacked = self.reader.read_here(self._piece(rows, plan, epoch))
        return self._finished(stacked, rows, device, plan, epoch)

    def feed(
        self, pieces: Sequence[Rows], device: torch.device, *, plan: Plan | None = None, epoch: int = 0
    ) -> Generator[Batch]:
        """Yield a batch for each piece of rows, in order, prefetched by the workers. They stay for the next call.

        Yields:
            Images uint8 or float32 (n, channels, height, width) and labels int64 (n,) on `device`, augmented if `plan`
            is given.

        Raises:
            TrainingError: a sample raised an error, took too long or changed since ingest, or a worker died.
            Interrupted: the run was asked to stop while a sample was read; see `interrupt_on`.
        """
        read = self.reader.read(self._piece(rows, plan, epoch) for rows in pieces)
        for rows, stacked in zip(pieces, read, strict=True):
            yield self._finished(stacked, rows, device, plan, epoch)

    def interrupt_on(self, stop: Callable[[], bool]) -> None:
        """Raise `Interrupted` when `stop` returns True while a sample is read."""
        self.reader.interrupt_on(stop)

    def close(self) -> None:
        self.reader.close()

    def _piece(self, rows: Rows, plan: Plan | None, epoch: int) -> Piece:
        seeds = sample_bits(self.keys[rows], seed=plan.seed if plan else 0, epoch=epoch)
        return Piece(self.name, self.places[rows], seeds)

    def _finished(
        self, stacked: "_Stacked | Faulty", rows: Rows, device: torch.device, plan: Plan | None, epoch: int
    ) -> Batch:
        if isinstance(stacked, Faulty):
            raise TrainingError(
                f"data.factory: sample {stacked.id} of split {self.name} cannot be used ({stacked.rule}: "
                f"{stacked.problem}), but could be used at ingest. Fix: repair it, or quarantine it: {_INGEST}"
            )
        images, labels = stacked
        wrong = np.flatnonzero(labels.numpy() != self.targets[rows])
        if wrong.size:
            row = rows[wrong[0]]
            raise TrainingError(
                f"data.factory: sample {self.places[row]} of split {self.name} has label {labels[wrong[0]].item()}, "
                f"but had {self.targets[row]} when it was ingested. Fix: {_INGEST}"
            )
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        return self.prepared((images,), rows, plan, epoch), labels


_Stacked = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class _Stack:
    """Stacks samples into images (n, height, width, channels), as in a packed set, and labels int64 (n,)."""

    shape: tuple[int, int, int]
    dtype: str

    def __call__(self, samples: list[Sample | Faulty]) -> "_Stacked | Faulty":
        images = torch.empty((len(samples), *self.shape), dtype=_DTYPES[self.dtype])
        labels = torch.empty(len(samples), dtype=torch.int64)
        for number, sample in enumerate(samples):
            if isinstance(sample, Faulty):
                return sample
            image = sample.image.permute(1, 2, 0)
            if image.shape != self.shape or image.dtype != _DTYPES[self.dtype]:
                height, width, channels = self.shape
                expected = f"{self.dtype} {channels} x {height} x {width}"
                return Faulty(sample.id, "other-shape", f"{sample.kind}, where all others are {expected}")
            images[number], labels[number] = image, sample.label
        # One sum for the whole batch: it is finite unless a value is not finite, or values are huge.
        if images.is_floating_point() and not math.isfinite(images.sum()):
            for sample, image in zip(samples, images, strict=True):
                count = int((~image.isfinite()).sum())
                if count:
                    problem = f"{count:,} of its {image.numel():,} values are infinite or not a number"
                    return Faulty(sample.id, "not-finite", problem)
        return images, labels
