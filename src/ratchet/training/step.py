"""One optimizer step. No other code changes a weight in training."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from ratchet.training.batches import Batch, Rows, Split
from ratchet.training.device import seed_step
from ratchet.training.losses import Objective
from ratchet.training.optim import clip_gradients, move_average, set_rate
from ratchet.training.plan import Plan
from ratchet.training.precision import Precision
from ratchet.training.state import TrainingState
from ratchet.training.teacher import Teacher

__all__ = ["StepMetrics", "Stepper", "compiled", "micro_batches", "needs_two_samples"]

_MOST_SHAPES = 256  # of batches that are compiled

_ONE_VALUE = "Expected more than 1 value per channel when training"  # PyTorch's error


@dataclass(frozen=True)
class StepMetrics:
    """Metrics of one step. The tensors are scalars that stay on the device."""

    step: int
    rate: float
    loss: torch.Tensor
    norm: torch.Tensor  # of the gradients, before clipping
    is_scaled: bool  # by a loss scale: then an overflow skips the step and is no error
    parameter_norm: torch.Tensor | None = None  # computed only for steps that are logged, like the loss scale
    loss_scale: float | None = None


def micro_batches(rows: Rows, count: int, *, smallest: int = 1) -> list[Rows]:
    """Split the rows of a step into `count` parts of nearly equal size, or fewer so that none is below `smallest`."""
    return np.array_split(rows, max(1, min(count, len(rows) // smallest)))


def needs_two_samples(error: BaseException) -> bool:
    """Whether a forward pass failed because a batch norm got only one value of each channel."""
    return isinstance(error, ValueError | RuntimeError) and _ONE_VALUE in str(error)


class Stepper:
    """Makes optimizer steps on a `TrainingState`."""

    def __init__(
        self, state: TrainingState, plan: Plan, *, train: Split, objective: Objective, precision: Precision,
        network: nn.Module, teacher: Teacher | None = None,
    ) -> None:  # fmt: skip
        self.state, self.plan, self.train = state, plan, train
        self.objective, self.precision, self.network = objective, precision, network
        self.teacher = teacher
        self.device = state.device
        self._buffers = list(state.model.network.buffers())  # those of the scaling around the network never change
        self._before = [buffer.clone() for buffer in self._buffers]
        self._stepped = 0  # parameters the optimizer had a state for before the step

    def step(self, rows: Rows, feed: Iterator[Batch], *, rate: float, smallest: int = 1) -> StepMetrics:
        """Make one step: forward, loss, backward, clipping and update on `rows`, which `feed` yields in micro-batches.

        Nothing here waits for the device. Each sample has the same weight, whatever its micro-batch: the sum of the
        losses is divided by the weight of the whole batch. Each micro-batch has at least `smallest` rows, if `rows`
        has that many. When memory runs out before the optimizer changes a weight, `undo` restores the state.
        """
        state, plan, objective = self.state, self.plan, self.objective
        if self._buffers:
            torch._foreach_copy_(self._before, self._buffers)
        self._stepped = len(state.optimizer.state)
        weight = objective.weight(self.train.host_targets(rows)) or 1.0
        total = torch.zeros((), device=self.device)
        correct = torch.zeros((), dtype=torch.int64, device=self.device)

        # ------------------------------------------------------------------------------------------------------------
        set_rate(state.optimizer, rate)
        seed_step(plan.seed, state.step, self.device)
        state.optimizer.zero_grad(set_to_none=True)
        for _ in micro_batches(rows, state.accumulation, smallest=smallest):
            inputs, targets = next(feed)
            with self.precision.autocast(self.device):
                outputs = self.network(*inputs)
            loss = objective(outputs, targets)
            if self.teacher is not None:
                loss = self.teacher.mixed(loss, inputs, outputs, targets)
            torch.autograd.backward(state.scaler.scale(loss / weight))
            total += loss.detach()
            correct += objective.num_correct(outputs.detach(), targets)
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
        return self._step_metrics(rate, total / weight, norm)

    def _step_metrics(self, rate: float, loss: torch.Tensor, norm: torch.Tensor) -> StepMetrics:
        state, scaled = self.state, self.state.scaler.is_enabled()
        if state.step % self.plan.log_every:
            return StepMetrics(state.step, rate, loss, norm, scaled)
        with torch.no_grad():
            parameter_norm = nn.utils.get_total_norm(list(state.model.parameters()))
        scale = state.scaler.get_scale() if scaled else None
        return StepMetrics(state.step, rate, loss, norm, scaled, parameter_norm, scale)

    def undo(self) -> None:
        """Undo a step that ran out of memory: its buffers, its gradients, and the optimizer state of new parameters."""
        optimizer = self.state.optimizer
        optimizer.zero_grad(set_to_none=True)
        for parameter in list(optimizer.state)[self._stepped :]:
            del optimizer.state[parameter]
        if self._buffers:
            torch._foreach_copy_(self._buffers, self._before)


def compiled(model: nn.Module, plan: Plan, device: torch.device) -> tuple[nn.Module, str]:
    """Return the model compiled as `plan.compile` says, and a message. Weights and state dict stay those of `model`.

    Each batch shape is compiled separately. So a kernel depends on the shape alone, not on the shapes before it, and a
    resumed run computes the same. It would not if shapes beyond PyTorch's limit, which is 8, were left uncompiled.
    """
    if plan.compile == "none":
        return model, ""
    if device.type == "cpu" and not any(map(shutil.which, ("g++", "clang++", "c++"))):
        return model, "training.compile: this machine has no C++ compiler, so the model is not compiled"
    network: nn.Module = torch.compile(  # type: ignore[call-overload]
        model, mode=plan.compile, dynamic=False, recompile_limit=_MOST_SHAPES
    )
    return network, f"compiled by torch.compile, mode {plan.compile}: the first step of each batch size takes longer"
