"""Everything a training consists of between two steps, and how it becomes a snapshot and comes back."""

import copy
from dataclasses import dataclass, field
from typing import Any

import torch

from ratchet.training.checkpoint import Snapshot
from ratchet.training.models import Classifier
from ratchet.training.optim import load_optimizer_state, optimizer_state

__all__ = ["Sums", "TrainingState"]


@dataclass
class Sums:
    """Running figures of an epoch; they stay on the device, so that nobody waits for them."""

    loss: torch.Tensor  # summed over samples, float32 scalar
    correct: torch.Tensor  # int64 scalar
    norm: torch.Tensor  # summed over steps, float32 scalar

    @classmethod
    def zero(cls, device: torch.device) -> "Sums":
        """Nothing summed yet, on `device`."""
        return cls(
            torch.zeros((), device=device),
            torch.zeros((), dtype=torch.int64, device=device),
            torch.zeros((), device=device),
        )


@dataclass
class TrainingState:
    """Where a training stands: the weights and all that decides what comes next."""

    # What learns
    model: Classifier
    optimizer: torch.optim.Optimizer

    # Position: `step` optimizer steps are done, the next is number `batch` of epoch `epoch` (from 0)
    step: int = 0
    epoch: int = 0
    batch: int = 0

    # Figures
    sums: Sums = field(init=False)
    history: list[dict[str, float]] = field(default_factory=list)

    # The best so far (epoch 0: none yet)
    best_value: float | None = None
    best_epoch: int = 0
    best_weights: dict[str, torch.Tensor] = field(default_factory=dict)

    # The last value that counted as better, and how many epochs ago
    patience_value: float | None = None
    stale_epochs: int = 0

    # Said once
    overfit_said: bool = False
    finished: bool = False

    def __post_init__(self) -> None:
        self.sums = Sums.zero(self.device)

    @property
    def device(self) -> torch.device:
        """Where the parameters lie."""
        return next(self.model.parameters()).device

    def keep_best(self, value: float) -> None:
        """Copy the weights as the best so far."""
        self.best_value, self.best_epoch = value, self.epoch + 1
        self.best_weights = _copied(self.model.state_dict())

    def snapshot(self, identity: dict[str, str], *, score: tuple[float, ...] | None) -> Snapshot:
        """A copy of all of it, on the CPU."""
        tensors = {
            **_named("model", self.model.state_dict()),
            **_named("optimizer", optimizer_state(self.model, self.optimizer)),
            **_named("best", self.best_weights),
            **_named("sums", vars(self.sums)),
        }
        state: dict[str, Any] = {
            "identity": identity,
            "epoch": self.epoch,
            "batch": self.batch,
            "history": copy.deepcopy(self.history),
            "best_value": self.best_value,
            "best_epoch": self.best_epoch,
            "patience_value": self.patience_value,
            "stale_epochs": self.stale_epochs,
            "overfit_said": self.overfit_said,
            "finished": self.finished,
        }
        return Snapshot(step=self.step, tensors=_copied(tensors), state=state, score=score)

    def restore(self, snapshot: Snapshot) -> None:
        """Become what `snapshot` was taken of. Randomness needs no state: it follows from the seed and the position."""
        groups: dict[str, dict[str, torch.Tensor]] = {}
        for key, tensor in snapshot.tensors.items():
            group, _, name = key.partition("/")
            groups.setdefault(group, {})[name] = tensor
        self.model.load_state_dict(groups["model"])  # copies into the parameters, their layout stays
        load_optimizer_state(self.model, self.optimizer, groups.get("optimizer", {}))
        self.best_weights = groups.get("best", {})
        self.sums = Sums(**{name: tensor.to(self.device) for name, tensor in groups["sums"].items()})
        self.step = snapshot.step
        for name in (
            "epoch",
            "batch",
            "history",
            "best_value",
            "best_epoch",
            "patience_value",
            "stale_epochs",
            "overfit_said",
            "finished",
        ):
            setattr(self, name, snapshot.state[name])


def _named(group: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"{group}/{name}": tensor for name, tensor in tensors.items()}


def _copied(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
