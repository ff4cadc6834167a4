"""A packed split of named arrays, which a user's own kind of data has."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ratchet.errors import TrainingError
from ratchet.kinds import ArraysInput
from ratchet.training.augment import sample_bits
from ratchet.training.batches import Inputs, Rows, Split
from ratchet.training.own_kind import OwnKind
from ratchet.training.plan import Plan

__all__ = ["ArraysSplit"]

CHOSEN_BY = {"kind": ("arrays",)}


@dataclass(frozen=True)
class ArraysSplit(Split):
    """A split of named arrays. The model takes them in the order of their names, (n, *shape) each."""

    input_spec: ArraysInput = field(kw_only=True)

    @classmethod
    def read(cls, packed: Path, name: str, manifest: Mapping[str, Any], input_spec: ArraysInput) -> "ArraysSplit":
        """Read split `name` of the set in folder `packed`. See `Split.open`."""
        return cls.open(packed, name, manifest, names=input_spec.names, input_spec=input_spec)

    @cached_property
    def _augment(self) -> Callable[..., Any] | None:
        return OwnKind.of(self.input_spec).augment

    def prepared(self, inputs: Inputs, rows: Rows, plan: Plan | None, epoch: int) -> Inputs:
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
