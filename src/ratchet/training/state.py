"""State of a training between two steps, and its conversion to and from a snapshot."""

import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from ratchet.training.checkpoint import Snapshot
from ratchet.training.models import Model
from ratchet.training.optim import load_optimizer_state, optimizer_state, own_rows

__all__ = ["EpochSums", "TrainingState"]

_PLAIN = (
    "epoch", "batch", "accumulation", "rollbacks", "rolled_to", "history", "best_value", "best_epoch",
    "patience_value", "stale_epochs", "overfit_noticed", "finished",
)  # fmt: skip


@dataclass
class EpochSums:
    """Running sums of an epoch. They are added up when the metrics of steps are fetched, so no step waits for them."""

    loss: float = 0.0  # over samples, rounded to float32 at each step
    correct: int = 0
    norm: float = 0.0  # over steps, rounded to float32 at each step

    def add(self, *, loss: float, correct: int, norm: float) -> None:
        """Add the sums of a step."""
        with np.errstate(over="ignore"):
            self.loss, self.norm = float(np.float32(self.loss + loss)), float(np.float32(self.norm + norm))
        self.correct += correct

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the sums as a checkpoint has them."""
        types = {"loss": torch.float32, "correct": torch.int64, "norm": torch.float32}
        return {name: torch.tensor(getattr(self, name), dtype=dtype) for name, dtype in types.items()}


@dataclass
class TrainingState:
    """The weights, and everything that decides the next step."""

    # What learns
    model: Model
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    averaged: Model | None  # moving average of the model, which is then validated and kept
    parameters: dict[str, nn.Parameter]  # those of the model, or this rank's shares of them
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)  # of the whole parameters, if they are sharded

    # Position: `step` optimizer steps are done, the next is number `batch` of epoch `epoch` (from 0)
    step: int = 0
    epoch: int = 0
    batch: int = 0

    # After errors: micro-batches in a step; returns to a checkpoint, and the step of the last return
    accumulation: int = 1
    rollbacks: int = 0
    rolled_to: int = -1

    # Metrics
    sums: EpochSums = field(default_factory=EpochSums)
    history: list[dict[str, float]] = field(default_factory=list)

    # The best so far (epoch 0: none yet)
    best_value: float | None = None
    best_epoch: int = 0
    best_weights: dict[str, torch.Tensor] = field(default_factory=dict)

    # The last value that counted as better, and how many epochs ago
    patience_value: float | None = None
    stale_epochs: int = 0

    # Reported once
    overfit_noticed: bool = False
    finished: bool = False

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def validated(self) -> Model:
        """Return the model that is validated and kept: the average, if there is one."""
        return self.model if self.averaged is None else self.averaged

    def keep_best(self, value: float) -> None:
        self.best_value, self.best_epoch = value, self.epoch + 1
        self.best_weights = _copied(_tensors(self.validated))
        if (copied := _event(self.device)) is not None:
            copied.synchronize()

    def snapshot(
        self, identity: dict[str, str], *, score: tuple[float, ...] | None, rounding: dict[str, Any]
    ) -> Snapshot:
        """Return a copy; `rounding` says what decides how sums are rounded."""
        tensors = {
            **_named("model", _tensors(self.model)),
            **_named("averaged", {} if self.averaged is None else _tensors(self.averaged)),
            **_named("optimizer", optimizer_state(self.parameters, self.optimizer)),
            **_named("sums", self.sums.tensors()),
        }
        plain: dict[str, Any] = {name: copy.deepcopy(getattr(self, name)) for name in _PLAIN}
        state = {"identity": identity, "arithmetic": rounding, "scaler": self.scaler.state_dict(), **plain}
        best = _named("best", self.best_weights)  # replaced by better ones, never changed
        shapes = {name: shape for name in tensors | best if (shape := self._whole_shape(name))}
        copies = tensors if shapes else _copied(tensors)  # shards are written before training continues
        return Snapshot(
            step=self.step, tensors=copies | best, state=state, score=score, copied=_event(self.device), shapes=shapes
        )

    def _whole_shape(self, key: str) -> tuple[int, ...] | None:
        """Return the shape of the tensor of which this rank has rows; None if it has all of it."""
        group, _, name = key.partition("/")
        name, slot = name.rpartition("/")[::2] if group == "optimizer" else (name, "")
        return None if slot == "step" else self.shapes.get(name)

    def restore(self, snapshot: Snapshot) -> None:
        """Restore the state of `snapshot`. Randomness needs no state: it follows from the seed and the position."""
        groups: dict[str, dict[str, torch.Tensor]] = {}
        for key, tensor in snapshot.tensors.items():
            group, _, name = key.partition("/")
            groups.setdefault(group, {})[name] = tensor
        self._load(self.model, groups["model"])
        if self.averaged is not None:
            self._load(self.averaged, groups["averaged"])
        load_optimizer_state(self.parameters, self.optimizer, groups.get("optimizer", {}))
        self.scaler.load_state_dict(snapshot.state["scaler"])
        self.best_weights = groups.get("best", {})
        sums: dict[str, Any] = {name: tensor.item() for name, tensor in groups["sums"].items()}
        self.sums = EpochSums(**sums)
        self.step = snapshot.step
        for name in _PLAIN:
            setattr(self, name, snapshot.state[name])

    def _load(self, model: Model, tensors: dict[str, torch.Tensor]) -> None:
        """Copy tensors into the model, whose own keep their layout."""
        if not self.shapes:
            model.load_state_dict(tensors)
        for name, tensor in _tensors(model).items() if self.shapes else ():
            tensor.copy_(tensors[name])


def _tensors(model: Model) -> dict[str, torch.Tensor]:
    """Return the model's parameters, or this rank's rows of them, and buffers."""
    return {name: own_rows(tensor) for name, tensor in model.state_dict().items()}


def _named(group: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"{group}/{name}": tensor for name, tensor in tensors.items()}


def _copied(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return contiguous copies on the CPU, ready to be written without further computation.

    A thread that makes one parallel operation gets OpenMP threads of its own, which stay. With more threads than cores
    OpenMP lets them sleep instead of spin, and every training step takes a sixth longer.
    """
    return {
        name: tensor.detach().to("cpu", copy=True, non_blocking=tensor.is_cuda, memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }


def _event(device: torch.device) -> torch.cuda.Event | None:
    """Return the event after the copies that a GPU makes while the process prepares the next steps; None elsewhere."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event
