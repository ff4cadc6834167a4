"""One optimizer step, fenced: nothing else in the house moves a weight."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from ratchet.training.augment import resized
from ratchet.training.batches import Batch, Rows, Split
from ratchet.training.device import seed_step
from ratchet.training.losses import Objective
from ratchet.training.optim import clip_gradients, move_average, set_rate
from ratchet.training.plan import Plan
from ratchet.training.precision import Precision
from ratchet.training.state import TrainingState

__all__ = ["Figures", "Stepper", "compiled", "micro_batches", "needs_two_samples"]

_ONE_VALUE = "Expected more than 1 value per channel when training"  # PyTorch's error


@dataclass(frozen=True)
class Figures:
    """What one step has to tell; the tensors are scalars that stay on the device."""

    step: int
    rate: float
    loss: torch.Tensor
    norm: torch.Tensor  # of the gradients, before clipping
    is_scaled: bool  # by a loss scale, whose overflows pass a step over and are no fault
    parameter_norm: torch.Tensor | None = None  # worked out where it is logged alone, with the loss scale
    loss_scale: float | None = None


def micro_batches(rows: Rows, pieces: int, *, least: int = 1) -> list[Rows]:
    """The rows of one step in so many parts as equal as can be; fewer where one would have less than `least` rows."""
    return np.array_split(rows, max(1, min(pieces, len(rows) // least)))


def needs_two_samples(error: BaseException) -> bool:
    """Whether a forward pass was refused for a batch norm that has but one value of each channel to learn from."""
    return isinstance(error, ValueError | RuntimeError) and _ONE_VALUE in str(error)


class Stepper:
    """Makes steps in `state`."""

    def __init__(
        self, state: TrainingState, plan: Plan, *, train: Split, objective: Objective, precision: Precision,
        network: nn.Module,
    ) -> None:  # fmt: skip
        self.state, self.plan, self.train = state, plan, train
        self.objective, self.precision, self.network = objective, precision, network
        self.device = state.device
        self._buffers = list(state.model.network.buffers())  # the model's own never change
        self._before = [buffer.clone() for buffer in self._buffers]
        self._stepped = 0  # parameters the optimizer had a state for before the step

    def step(self, rows: Rows, feed: Iterator[Batch], *, rate: float, least: int = 1) -> Figures:
        """Forward, loss, backward, clip, step, on `rows`, which `feed` yields in micro-batches.

        Nothing here waits for the device. Each sample weighs the same, whatever micro-batch it is in: the sum of the
        losses is divided by the weight of the whole batch. No micro-batch has fewer than `least` rows, if `rows` are
        that many.
        When memory runs out before the optimizer moves a weight, `undo` makes the state what it was.
        """
        state, plan, objective = self.state, self.plan, self.objective
        if self._buffers:
            torch._foreach_copy_(self._before, self._buffers)
        self._stepped = len(state.optimizer.state)
        weight = objective.weight(self.train.labels[rows]) or 1.0
        total = torch.zeros((), device=self.device)
        correct = torch.zeros((), dtype=torch.int64, device=self.device)

        # ------------------------------------------------------------------------------------------------------------
        set_rate(state.optimizer, rate)
        seed_step(plan.seed, state.step, self.device)
        state.optimizer.zero_grad(set_to_none=True)
        for _ in micro_batches(rows, state.accumulation, least=least):
            images, labels = next(feed)
            images = resized(images, plan, epoch=state.epoch)
            with self.precision.autocast(self.device):
                logits = self.network(images)
            loss = objective(logits, labels)
            torch.autograd.backward(state.scaler.scale(loss / weight))
            total += loss.detach()
            correct += ((logits.detach().argmax(1) == labels) & (labels != objective.ignored)).sum()
        state.scaler.unscale_(state.optimizer)
        norm = clip_gradients(state.model, plan)
        state.scaler.step(state.optimizer)
        state.scaler.update()
        # ------------------------------------------------------------------------------------------------------------

        if state.averaged is not None:
            move_average(state.averaged.network, state.model.network, decay=plan.ema_decay, step=state.step + 1)
        state.sums.loss += total
        state.sums.correct += correct
        state.sums.norm += norm
        state.step, state.batch = state.step + 1, state.batch + 1
        scaled = state.scaler.is_enabled()
        if state.step % plan.log_every:
            return Figures(state.step, rate, total / weight, norm, scaled)
        with torch.no_grad():
            parameter_norm = nn.utils.get_total_norm(list(state.model.parameters()))
        scale = state.scaler.get_scale() if scaled else None
        return Figures(state.step, rate, total / weight, norm, scaled, parameter_norm, scale)

    def undo(self) -> None:
        """After a step that ran out of memory: what its forward passes changed, its gradients and the state that the
        optimizer had begun to make for parameters new to it are taken back.
        """
        optimizer = self.state.optimizer
        optimizer.zero_grad(set_to_none=True)
        for parameter in list(optimizer.state)[self._stepped :]:
            del optimizer.state[parameter]
        if self._buffers:
            torch._foreach_copy_(self._buffers, self._before)


def compiled(model: nn.Module, plan: Plan, device: torch.device) -> tuple[nn.Module, str]:
    """The model as `plan.compile` wants it run, and what to say of it. Weights and state dict stay the model's own.

    Each shape of batch is compiled for itself: what a kernel computes then depends on the shape alone, not on which
    shapes came before, and a resumed run computes the same.
    """
    if plan.compile == "none":
        return model, ""
    if device.type == "cpu" and not any(map(shutil.which, ("g++", "clang++", "c++"))):
        return model, "training.compile: no C++ compiler is on this machine, so the model is not compiled"
    network: nn.Module = torch.compile(model, mode=plan.compile, dynamic=False)  # type: ignore[assignment]
    return network, f"compiled by torch.compile, mode {plan.compile}: the first step of each batch size takes longer"
