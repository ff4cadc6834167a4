"""One optimizer step. No other code changes a weight in training."""

import functools
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from ratchet.errors import TrainingError
from ratchet.training.batches import Batch, Rows
from ratchet.training.device import moved, precise_type, ran_out_of_memory, seed_step
from ratchet.training.losses import Objective, SampleCounts
from ratchet.training.model_shards import WholeModel
from ratchet.training.optim import clip_gradients, copy_tensors, move_average, set_rate
from ratchet.training.plan import Plan
from ratchet.training.precision import Precision
from ratchet.training.ranks import PieceSum, raise_agreed
from ratchet.training.sample_timeout import Interrupted
from ratchet.training.state import TrainingState
from ratchet.training.teacher import Teacher

__all__ = ["StepMetrics", "Stepper", "compiled", "cut", "micro_batches", "needs_two_samples", "pieces_of"]

_MOST_SHAPES = 256  # of batches that are compiled
_WITH_GRAPHS = ("reduce-overhead", "max-autotune")  # modes of torch.compile that replay CUDA graphs

_ONE_VALUE = "Expected more than 1 value per channel when training"  # PyTorch's error


@dataclass(frozen=True)
class StepMetrics:
    """Metrics of one step. The tensors are scalars that stay on the device."""

    step: int
    rate: float
    loss: torch.Tensor  # sum over the samples
    correct: torch.Tensor  # right answers
    weight: float  # of the samples: the mean loss is loss / weight
    norm: torch.Tensor  # of the gradients, before clipping
    is_scaled: bool  # by a loss scale: then an overflow skips the step and is no error
    parameter_norm: torch.Tensor | None = None  # computed only for steps that are logged, like the loss scale
    loss_scale: float | None = None


def micro_batches(rows: Rows, count: int, *, smallest: int = 1) -> list[Rows]:
    """Split the rows of a piece into `count` parts of nearly equal size, or fewer so that none is below `smallest`."""
    count = max(1, min(count, len(rows) // smallest))
    return ([rows] if count == 1 else np.array_split(rows, count)) if len(rows) else []


def pieces_of(rows: Rows, count: int, *, smallest: int = 1) -> list[Rows]:
    """Split the rows of a step into `count` pieces; the last are empty if there are too few rows."""
    pieces = micro_batches(rows, count, smallest=smallest)
    return pieces + [rows[:0]] * (count - len(pieces))


def cut(rows: Rows, count: int, accumulation: int, *, smallest: int = 1, is_even: bool = False) -> list[list[Rows]]:
    """Split the rows of a step into `count` pieces of micro-batches each. `is_even`: as many in each, or none."""
    pieces = pieces_of(rows, count, smallest=smallest)
    batches = [micro_batches(piece, accumulation, smallest=smallest) for piece in pieces]
    fewest = min(len(each) for each in batches if each)
    return [micro_batches(piece, fewest) for piece in pieces] if is_even else batches


def needs_two_samples(error: BaseException) -> bool:
    """Whether a forward pass failed because a batch norm got only one value of each channel."""
    return isinstance(error, ValueError | RuntimeError) and _ONE_VALUE in str(error)


class Stepper:
    """Makes optimizer steps on a `TrainingState`."""

    def __init__(
        self,
        state: TrainingState,
        plan: Plan,
        *,
        counts: SampleCounts,
        objective: Objective,
        precision: Precision,
        network: nn.Module,
        held: WholeModel,
        teacher: Teacher | None = None,
    ) -> None:
        self.state, self.plan, self.counts = state, plan, counts
        self.objective, self.precision, self.network = objective, precision, network
        self.teacher, self.held, self.ranks = teacher, held, held.ranks
        self.device = state.device
        self._before: dict[str, torch.Tensor] = {}  # the buffers before the step
        self._stepped = 0  # parameters the optimizer had a state for before the step
        self._autocast = precision.autocast(self.device)

    def step(self, rows: Rows, feed: Iterator[Batch], *, rate: float, smallest: int = 1) -> StepMetrics:
        """Make one step: forward, loss, backward, clipping and update on `rows`.

        `feed` yields the micro-batches of this rank's pieces. Each sample has the same weight, whatever its piece and
        micro-batch: the sum of the losses is divided by the weight of the whole batch. Each micro-batch has at least
        `smallest` rows, if `rows` has that many. When memory runs out before the optimizer changes a weight, `undo`
        restores the state. With one process and one piece nothing here
        waits for the device, but for the scale of a logged step of fp16.
        """
        state, plan = self.state, self.plan
        self._keep_buffers()
        self._stepped = len(state.optimizer.state)
        weight = self.counts.weight(rows) or 1.0
        pieces = cut(rows, plan.pieces, state.accumulation, smallest=smallest, is_even=self.held.is_sharded)

        # ------------------------------------------------------------------------------------------------------------
        set_rate(state.optimizer, rate)
        if plan.pieces == 1:
            state.optimizer.zero_grad(set_to_none=True)
            total, correct = self._gradients(len(pieces[0]), feed, weight=weight)
        else:
            total, correct = self._summed_gradients([len(piece) for piece in pieces], feed, weight=weight)
        state.scaler.unscale_(state.optimizer)
        norm = clip_gradients(state.parameters, plan, self.held.norm)
        state.scaler.step(state.optimizer)
        state.scaler.update()
        # ------------------------------------------------------------------------------------------------------------

        if state.averaged is not None:
            move_average(state.averaged.network, state.model.network, decay=plan.ema_decay, step=state.step + 1)
        state.step, state.batch = state.step + 1, state.batch + 1
        metrics = StepMetrics(state.step, rate, total, correct, weight, norm, state.scaler.is_enabled())
        return metrics if state.step % plan.log_every else self._logged(metrics)

    def _gradients(
        self, count: int, feed: Iterator[Batch], *, weight: float, piece: int | None = None, is_idle: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add the gradients of a piece of `count` micro-batches. Return its summed loss and number of right answers."""
        state, objective = self.state, self.objective
        sums: tuple[torch.Tensor, torch.Tensor] | None = None
        seed_step(self.plan.seed, state.step, self.device, piece=piece)
        ends_step = piece is None or piece == self.held.pieces(self.plan.pieces)[-1]
        for number in range(count):
            factor = self.held.begin_pass(ends_piece=number == count - 1, ends_step=ends_step, is_idle=is_idle)
            inputs, targets = next(feed)
            with self._autocast:
                outputs = self.network(*inputs)
            loss = objective(outputs, targets)
            if self.teacher is not None:
                loss = self.teacher.mixed(loss, inputs, outputs, targets)
            torch.autograd.backward(state.scaler.scale(loss / weight if factor == 1.0 else loss / weight * factor))
            if self.plan.compile in _WITH_GRAPHS and (number < count - 1 or not ends_step):
                for parameter in state.parameters.values():  # the next run writes over what this one returned
                    parameter.grad = None if parameter.grad is None else parameter.grad.clone()
            facts = loss.detach(), objective.num_correct(outputs.detach(), targets)
            total, correct = facts if sums is None else (sums[0] + facts[0], sums[1] + facts[1])
            sums = total.float(), correct
        assert sums is not None, "a piece has a micro-batch"
        return sums

    def _summed_gradients(
        self, pieces: list[int], feed: Iterator[Batch], *, weight: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the gradients of all pieces, and the mean of the buffers after them. Return as `_gradients` does.

        Every rank takes part in the sum, also one whose memory ran out: then all raise that error.

        Args:
            pieces: micro-batches of each.
        """
        count, state, held = sum(batches > 0 for batches in pieces), self.state, self.held
        vectors = _Vectors(state, self._before, held)
        sums, has_fault = PieceSum(), False
        state.optimizer.zero_grad(set_to_none=True)  # also of a rank that has no samples in this step,
        held.forget_gradients()
        state.scaler.scale(torch.zeros((), device=self.device))  # whose loss scale begins here
        for piece in held.pieces(len(pieces)):
            is_idle = not pieces[piece]
            try:
                if has_fault or (is_idle and not held.together):
                    sums.add(*vectors.empty())
                    continue
                self._restore_buffers()
                if not held.is_fast:
                    state.optimizer.zero_grad(set_to_none=True)
                facts = self._gradients(pieces[piece] or pieces[0], feed, weight=weight, piece=piece, is_idle=is_idle)
                sums.add(*vectors.of_piece(*facts, is_last=piece == count - 1, is_idle=is_idle))
            except (Exception, Interrupted) as error:
                flags = ran_out_of_memory(error), isinstance(error, Interrupted), needs_two_samples(error)
                if self.ranks.count == 1 or held.together or not any(flags):
                    raise
                has_fault = True
                sums.add(*vectors.empty(*flags))
        summed, *apart = sums.total
        summed = held.add_step(summed)
        if self.ranks.count > 1:
            self.ranks.is_stopping = vectors.agree(summed)
        return vectors.put(summed, apart, count)

    def _keep_buffers(self) -> None:
        """Copy the buffers, which may be other tensors than at the step before: user code assigns them."""
        buffers = dict(self.state.model.network.named_buffers())
        if {name: each.shape for name, each in buffers.items()} != {
            name: each.shape for name, each in self._before.items()
        }:
            self._before = {name: buffer.clone() for name, buffer in buffers.items()}
        else:
            copy_tensors(zip(self._before.values(), buffers.values(), strict=True))

    def _restore_buffers(self) -> None:
        if self._before:
            copy_tensors(zip(self.state.model.network.buffers(), self._before.values(), strict=True))

    def _logged(self, metrics: StepMetrics) -> StepMetrics:
        """Return the metrics of a step with those that only logged steps have."""
        with torch.no_grad():
            parameter_norm = self.held.norm(self.state.parameters)
        scale = self.state.scaler.get_scale() if metrics.is_scaled else None
        return replace(metrics, parameter_norm=parameter_norm, loss_scale=scale)

    def undo(self) -> None:
        """Undo a step that ran out of memory: its buffers, its gradients, and the optimizer state of new parameters."""
        optimizer = self.state.optimizer
        optimizer.zero_grad(set_to_none=True)
        for parameter in list(optimizer.state)[self._stepped :]:
            del optimizer.state[parameter]
        self._restore_buffers()


class _Vectors:
    """Vectors of the pieces of a step, which are added up.

    A vector has the gradients, the changes of the buffers by the piece, which of the gradients exist, the loss, the
    number of right answers, and four flags by which the ranks agree: stop after this step, memory ran out, a read was
    interrupted, a batch norm got only one value. Of buffers with integers or truth values only the changes by the last
    piece count. The gradients of a sharded model follow the vector as tensors.

    Raises:
        TrainingError: the model has complex numbers.
    """

    def __init__(self, state: TrainingState, before: dict[str, torch.Tensor], held: WholeModel) -> None:
        self.network, self.before, self.held, self.device = state.model.network, before, held, state.device
        self.parameters = {name: each for name, each in state.parameters.items() if each.requires_grad}
        tensors = [*self.parameters.values(), *before.values()]
        if any(tensor.is_complex() for tensor in tensors):
            raise TrainingError(
                "training.pieces: a step of a model with complex numbers cannot be cut into pieces. Fix: `ratchet set "
                "training.pieces=1 training.processes=1`"
            )
        floats = (tensor.dtype for tensor in tensors if tensor.is_floating_point())
        # float32 rounds integers above 2^24.
        has_large = any(name.rpartition(".")[2] != "num_batches_tracked" for name in _integers(before))
        widest = precise_type(self.device) if has_large else torch.float32
        self.dtype = functools.reduce(torch.promote_types, floats, widest)
        self.apart = self.parameters if held.is_sharded and not held.is_fast else {}  # gradients that follow the vector
        self.added = {} if held.is_sharded or held.is_fast else self.parameters  # those in it
        numbers = [tensor.numel() for tensor in (*self.added.values(), *before.values())]
        self.sizes = [*numbers, len(self.parameters), 1, 1, 4]
        self.used: set[str] = set()  # parameters that have a gradient of some piece: of this rank, then of all

    def empty(self, *faults: bool) -> list[torch.Tensor]:
        """Return the vector of a piece without samples, or of one that could not be computed, with its three flags."""
        vector = torch.zeros(sum(self.sizes), dtype=self.dtype, device=self.device)
        vector[-4:] = self._flags(*faults)
        return [vector, *map(torch.zeros_like, self.apart.values())]

    def of_piece(
        self, total: torch.Tensor, correct: torch.Tensor, *, is_last: bool, is_idle: bool = False
    ) -> list[torch.Tensor]:
        """Return the vector of a piece, added to those that other ranks computed at the same time."""
        used = self.held.take_gradients(self.parameters)
        self.used |= set() if is_idle else used
        gradients, apart = (
            [torch.zeros_like(each) if each.grad is None else each.grad.detach() for each in parameters.values()]
            for parameters in (self.added, self.apart)
        )
        present = self._marks([name in used for name in self.parameters])
        pairs = zip(self.network.buffers(), self.before.values(), strict=True)
        changes = [_change(after, before) * (is_last or after.is_floating_point()) for after, before in pairs]
        parts = (*gradients, *changes, present, total, correct, self._flags())
        vector = torch.cat([part.detach().reshape(-1).to(self.dtype) for part in parts])
        return [self.held.add_piece(self.empty()[0] if is_idle else vector), *apart]

    def put(self, summed: torch.Tensor, apart: list[torch.Tensor], count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Put the gradients and the buffers of `count` pieces into the model; return loss and right answers."""
        *values, _, total, correct, _ = summed.split_with_sizes(self.sizes)
        for parameter, value in zip(self.added.values(), values, strict=False):
            parameter.grad = torch.empty_like(parameter).copy_(value.view(parameter.shape))
        for parameter, value in zip(self.apart.values(), apart, strict=True):
            parameter.grad = value
        for name, parameter in self.parameters.items():
            parameter.grad = parameter.grad if name in self.used else None
        changes = values[len(self.added) :]
        for buffer, before, change in zip(self.network.buffers(), self.before.values(), changes, strict=True):
            change = change.view(buffer.shape)
            if buffer.is_floating_point():
                buffer.copy_(before + (change / count).to(buffer.dtype))
            else:
                buffer.copy_(before + change.round().to(torch.int64))
        return total[0].to(torch.float32, copy=True), correct[0].to(torch.int64)  # a view would keep the whole vector

    def agree(self, summed: torch.Tensor) -> bool:
        """Return whether all ranks stop after this step, and learn which parameters one of them has used.

        Raises:
            MemoryError, Interrupted, ValueError: the same in all ranks, for the error of one of them.
        """
        *present, _, _, stop, memory, interrupted, values = summed[-sum(self.sizes[-4:]) :].tolist()  # waits once
        self.used = {name for name, pieces in zip(self.parameters, present, strict=True) if pieces}
        raise_agreed(memory, interrupted)
        if values:
            raise ValueError(_ONE_VALUE)
        return bool(stop)

    def _flags(self, *faults: bool) -> torch.Tensor:
        return self._marks([self.held.ranks.stop, *(faults or (False,) * 3)])

    def _marks(self, values: list[bool]) -> torch.Tensor:
        """Return 1 for True and 0 for False, on the device. Nothing waits for it."""
        if len(set(values)) == 1:
            return torch.full((len(values),), float(values[0]), dtype=self.dtype, device=self.device)
        return moved(np.array(values, np.bool_), self.device).to(self.dtype)


def _integers(buffers: dict[str, torch.Tensor]) -> list[str]:
    """Return the names of the buffers that are not floating-point."""
    return [name for name, buffer in buffers.items() if not buffer.is_floating_point()]


def _change(after: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """Return by how much a buffer has changed: 0 where it has not, also where it is infinite."""
    if not after.is_floating_point():
        return after.to(torch.int64) - before.to(torch.int64)
    return torch.where(after == before, torch.zeros_like(after), after - before)


def compiled(model: nn.Module, plan: Plan, device: torch.device) -> tuple[nn.Module, str]:
    """Return the model compiled as `plan.compile` says, and a message. Weights and state dict stay those of `model`.

    Each batch shape is compiled separately. So a kernel depends on the shape alone, not on the shapes before it, and a
    resumed run computes the same. It would not if shapes beyond PyTorch's limit, which is 8, were left uncompiled.
    """
    if plan.compile == "none":
        return model, ""
    if device.type == "cpu" and not any(map(shutil.which, ("g++", "clang++", "c++"))):
        return model, "training.compile: this machine has no C++ compiler, so the model is not compiled"
    torch.use_deterministic_algorithms(plan.deterministic)  # of the compiler too, which else learns of it too late
    network: nn.Module = torch.compile(  # type: ignore[call-overload]
        model, mode=plan.compile, dynamic=False, recompile_limit=_MOST_SHAPES
    )
    return network, f"compiled by torch.compile, mode {plan.compile}: the first step of each batch size takes longer"
