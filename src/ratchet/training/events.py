"""What `fit` reports, in the order it happens."""

from dataclasses import dataclass, field
from pathlib import Path

import torch

__all__ = ["Checkpointed", "Epoch", "Event", "Finished", "Notice", "Points", "Started", "Stopped", "Trouble"]


@dataclass(frozen=True)
class Started:
    """Training begins or continues. `step` of `total_steps` are done."""

    device: str  # as PyTorch names it
    described: str  # its name and memory
    precision: str
    parameters: int
    step: int
    total_steps: int
    steps_per_epoch: int
    resumed_from: Path | None


@dataclass(frozen=True)
class Points:
    """Logged figures of one optimizer step. After a resume a step has the same `values`; its `rates` may differ."""

    step: int
    epoch: int
    values: dict[str, float]
    rates: dict[str, float] = field(default_factory=dict)
    attempt: int = 0  # how often the run had been sent back before: a step that is made again is told again


@dataclass(frozen=True)
class Epoch:
    """Figures of one whole epoch (counted from 1), validation included; `best` says whether it is the best so far."""

    epoch: int
    step: int
    values: dict[str, float]
    rates: dict[str, float]
    best: bool
    attempt: int = 0


@dataclass(frozen=True)
class Checkpointed:
    """A checkpoint of `step` was handed to the writer."""

    step: int


@dataclass(frozen=True)
class Notice:
    """A sentence for the person who watches."""

    text: str


@dataclass(frozen=True)
class Trouble:
    """Something went wrong at `step` and training mended it; `kind` is "out of memory" or "not finite"."""

    step: int
    kind: str
    text: str


@dataclass(frozen=True)
class Stopped:
    """Asked to stop after `step`: the same command continues there, or where `kept` says.

    `kept` is None where the checkpoint of `step` is on disk. Otherwise it is the step of the newest one on disk, or 0.
    """

    step: int
    kept: int | None = None


@dataclass(frozen=True)
class Finished:
    """The end: the best weights (CPU tensors by name) and the whole course of training, one dict per epoch."""

    step: int
    best_epoch: int
    best_value: float
    weights: dict[str, torch.Tensor]
    history: list[dict[str, float]]


Event = Started | Points | Epoch | Checkpointed | Notice | Trouble | Stopped | Finished
