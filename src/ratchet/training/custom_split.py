"""A split of a user's own kind of data: packed arrays, or samples that are read when they are used."""

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ratchet.errors import TrainingError
from ratchet.kinds import ArraysInput
from ratchet.training.augment import sample_bits
from ratchet.training.batches import Batch, Inputs, Rows, ShardedArray, Split
from ratchet.training.custom_class import CustomClass, Layout, digest_of, layout_of, shown_layout, stacked
from ratchet.training.custom_samples import CustomSamples, Faulty, Piece, Sample
from ratchet.training.plan import Plan
from ratchet.training.sample_reader import SampleReader

__all__ = ["ArraysSplit", "UnpackedSplit"]

CHOSEN_BY = {"kind": ("arrays",)}

_CHANGED = "changed"  # rule of a sample that differs from that of ingest
_COMPARED = 62  # training samples that are compared with ingest before the first step


@dataclass(frozen=True)
class ArraysSplit(Split):
    """A split of named arrays. The model takes them in the order of their names, (n, *shape) each."""

    input_spec: ArraysInput = field(kw_only=True)

    @classmethod
    def read(cls, packed: Path, name: str, manifest: Mapping[str, Any], input_spec: ArraysInput) -> "ArraysSplit":
        """Read split `name` of the set in folder `packed`. See `Split.open`."""
        if manifest["splits"][name].get("own") is not None:
            return UnpackedSplit.read_places(packed, name, manifest, input_spec)
        return cls.open(packed, name, manifest, names=input_spec.names, input_spec=input_spec)

    @cached_property
    def _augment(self) -> Callable[..., Any] | None:
        return CustomClass.of(self.input_spec).augment

    @property
    def prepares_on_host(self) -> bool:
        return self._augment is not None

    def prepared(
        self, inputs: Inputs, drawn: Sequence[torch.Tensor], rows: Rows, plan: Plan | None, epoch: int
    ) -> Inputs:
        if plan is None or self._augment is None:
            return inputs
        seeds = sample_bits(np.asarray(self.keys[rows]), seed=plan.seed, epoch=epoch)
        batch = self._augment(dict(zip(self.input_spec.names, inputs, strict=True)), seeds)
        augmented: tuple[Any, ...] = (
            tuple(batch.get(name) for name in self.input_spec.names) if isinstance(batch, Mapping) else ()
        )
        expected = [(values.shape, values.dtype) for values in inputs]
        if [(getattr(values, "shape", None), getattr(values, "dtype", None)) for values in augmented] != expected:
            raise TrainingError(
                f"data.kind: {self.input_spec.reader}.augment does not return the arrays that it was given: tensors "
                f"{', '.join(self.input_spec.names)} of the same shapes and types. Fix: correct it"
            )
        return augmented


@dataclass(frozen=True)
class UnpackedSplit(ArraysSplit):
    """A split whose samples were checked at ingest but not packed. Worker processes read them (`read_with`).

    The stored arrays are the place of each sample in the user's object, and the SHA-256 of its arrays at ingest.
    Samples read with the random states of ingest are compared with it. Training reads with others, so before the
    first batch it compares samples from all over the split.
    """

    reader: SampleReader["Inputs | Faulty"] = field(kw_only=True)

    @classmethod
    def read_places(
        cls, packed: Path, name: str, manifest: Mapping[str, Any], input_spec: ArraysInput
    ) -> "UnpackedSplit":
        """Open split `name` with the class of ingest: a model may have been trained with another one.

        Raises:
            OSError, ValueError, KeyError: a file is missing or damaged.
            TrainingError: the user's code changed since ingest.
        """
        unpacked, stored = manifest["splits"][name]["own"], manifest["input"]
        root = os.path.normpath(packed.resolve() / unpacked["root"])
        input_spec = replace(input_spec, reader=stored["reader"], code=stored["code"], root=root)
        custom = CustomClass.of(input_spec)
        custom.check_digest(stored["code_digest"])
        samples = CustomSamples(custom, unpacked["path"], count=unpacked["samples"])
        places, contents, targets, keys = (
            np.load(packed / name / f"{part}.npy") for part in ("places", "contents", "targets", "keys")
        )
        reader = SampleReader(samples, _Stack(input_spec.layout))
        stored_arrays = ShardedArray([places]), ShardedArray([contents])
        return cls(name, stored_arrays, targets, keys, input_spec=input_spec, reader=reader)

    def read_with(self, *, workers: int, sample_timeout: float) -> None:
        self.reader.workers, self.reader.samples.timeout = workers, sample_timeout

    def gather(self, rows: Rows) -> tuple[NDArray[Any], ...]:
        return tuple(values.numpy() for values in self._checked(self.reader.read_here(self._piece(rows, None, 0))))

    def batch(self, rows: Rows, device: torch.device, *, plan: Plan | None = None, epoch: int = 0) -> Batch:
        return self._finished(self.reader.read_here(self._piece(rows, plan, epoch)), rows, device, plan, epoch)

    def feed(
        self, pieces: Sequence[Rows], device: torch.device, *, plan: Plan | None = None, epoch: int = 0
    ) -> Generator[Batch]:
        """Yield a batch for each piece of rows, in order, prefetched by the workers. They stay for the next call.

        Raises:
            TrainingError: a sample cannot be used or changed since ingest, took too long, or a worker died.
            Interrupted: the run was asked to stop while a sample was read; see `interrupt_on`.
        """
        if plan is not None:
            _ = self._compared
        read = self.reader.read(self._piece(rows, plan, epoch) for rows in pieces)
        for rows, inputs in zip(pieces, read, strict=True):
            yield self._finished(inputs, rows, device, plan, epoch)

    def interrupt_on(self, stop: Callable[[], bool]) -> None:
        """Raise `Interrupted` when `stop` returns True while a sample is read."""
        self.reader.samples.stop = stop

    def close(self) -> None:
        self.reader.close()

    @cached_property
    def _compared(self) -> int:
        """Compare the first sample, the last and some between them with ingest. Return their number."""
        rows = np.unique(np.linspace(0, len(self) - 1, _COMPARED).astype(np.int64))
        for inputs in self.reader.read(self._piece(rows[place : place + 1], None, 0) for place in range(len(rows))):
            self._checked(inputs)
        return len(rows)

    def _piece(self, rows: Rows, plan: Plan | None, epoch: int) -> Piece:
        places, contents = (array.gather(rows) for array in self.arrays)
        return Piece(places, contents=contents) if plan is None else Piece(places, plan.seed, epoch)

    def _finished(
        self, inputs: "Inputs | Faulty", rows: Rows, device: torch.device, plan: Plan | None, epoch: int
    ) -> Batch:
        moved = tuple(values.to(device, non_blocking=True) for values in self._checked(inputs))
        targets = torch.from_numpy(self.host_targets(rows)).to(device, non_blocking=True)
        return self.prepared(moved, (), rows, plan, epoch), targets

    def _checked(self, inputs: "Inputs | Faulty") -> Inputs:
        if isinstance(inputs, Faulty) and inputs.rule == _CHANGED:
            raise TrainingError(
                f"data.kind: sample {inputs.id} of {self.input_spec.reader} {inputs.problem}. So its data changed, or "
                "this machine computes other values. Fix: restore the data, or ingest them again: `dvc repro --force "
                "ingest`"
            )
        if isinstance(inputs, Faulty):
            raise TrainingError(
                f"data.kind: sample {inputs.id} of {self.input_spec.reader} cannot be used ({inputs.rule}: "
                f"{inputs.problem}), but could be used at ingest. Fix: repair it, or run `ratchet train`, which "
                "ingests the data again"
            )
        return inputs


@dataclass(frozen=True)
class _Stack:
    """Stacks samples into a tensor (n, *shape) for each array."""

    layout: Layout

    def __call__(self, samples: list[Sample | Faulty]) -> "Inputs | Faulty":
        rows = []
        for sample in samples:
            if isinstance(sample, Faulty):
                return sample
            layout = layout_of(sample.arrays)
            if layout != self.layout:
                problem = f"{shown_layout(layout)}, where all others have {shown_layout(self.layout)}"
                return Faulty(sample.id, "other-shape", problem)
            if sample.expected not in (None, digest_of(sample.arrays)):
                return Faulty(sample.id, _CHANGED, "has other arrays than the sample that ingest found in its place")
            rows.append(sample.arrays)
        return tuple(torch.from_numpy(values) for values in stacked(rows, self.layout))
