"""Events that `fit` yields."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

__all__ = ["Checkpointed", "Epoch", "Event", "Finished", "Notice", "Points", "Started", "Stopped", "Trouble"]


@dataclass(frozen=True)
class Started:
    """Training begins or continues. `step` of `total_steps` are done."""

    device: str  # as PyTorch names it, of the first process
    processes: int
    device_name: str  # its name and memory
    precision: str
    parameters: int
    step: int
    total_steps: int
    steps_per_epoch: int
    resumed_from: Path | None
    history: list[dict[str, float]] = field(default_factory=list)  # of the epochs before, as in Finished


@dataclass(frozen=True)
class Points:
    """Logged metrics of one optimizer step. After a resume a step has the same `values`; its `rates` may differ."""

    step: int
    epoch: int
    values: dict[str, float]
    rates: dict[str, float] = field(default_factory=dict)
    attempt: int = 0  # rollbacks before this step; a step that is made again is reported again


@dataclass(frozen=True)
class Epoch:
    """Metrics of one epoch (counted from 1), including validation. `best`: it is the best epoch so far."""

    epoch: int
    step: int
    values: dict[str, float]
    rates: dict[str, float]
    best: bool
    attempt: int = 0


@dataclass(frozen=True)
class Checkpointed:
    """A checkpoint of `step` was queued for the writer."""

    step: int


@dataclass(frozen=True)
class Notice:
    """A message for the user."""

    text: str


@dataclass(frozen=True)
class Trouble:
    """An error at `step` from which training recovered; `kind` is "out of memory" or "not finite"."""

    step: int
    kind: str
    text: str


@dataclass(frozen=True)
class Stopped:
    """Training stopped after `step`, as asked. The same command continues there, or at step `saved_step`.

    `saved_step` is None if the checkpoint of `step` is on disk. Otherwise it is that of the newest one on disk, or 0.
    """

    step: int
    saved_step: int | None = None


@dataclass(frozen=True)
class Finished:
    """The end: the best weights (CPU tensors by name) and the metrics of every epoch.

    Those of a sharded model are read from its checkpoint one by one.
    """

    step: int
    best_epoch: int
    best_value: float
    weights: Mapping[str, torch.Tensor]
    history: list[dict[str, float]]


Event = Started | Points | Epoch | Checkpointed | Notice | Trouble | Stopped | Finished
