"""Check a model on one batch for mistakes that raise no error and keep it from learning."""

import contextlib
import copy
import itertools
import math
import time
from collections.abc import Iterator

import torch
from torch.nn.modules.dropout import _DropoutNd

from ratchet.doctor.findings import RULES, Finding
from ratchet.doctor.forward_checks import check_independence, check_passes
from ratchet.doctor.kept_tensors import kept_tensors, unregistered
from ratchet.doctor.layers import (
    check_dead_units,
    check_weights,
    layer_name,
    layer_names,
    mark_reached_units,
    values_counted,
)
from ratchet.doctor.outputs import check_outputs
from ratchet.kinds import ModelSpec
from ratchet.training.autograd_graph import graph_leaves, graph_nodes
from ratchet.training.batches import Batch
from ratchet.training.duplicate import duplicate
from ratchet.training.losses import Objective
from ratchet.training.models import Model
from ratchet.training.optim import build_optimizer, without_compile_wrappers
from ratchet.training.own_loss import own_loss
from ratchet.training.plan import Plan

__all__ = ["ModelProbe"]

_STEPS = 3  # a last layer that starts from zeros lets no gradient through at the first
# Calibrated on fresh models: 26 of torchvision and ours, 16 CIFAR-10 images, 2, 10 and 100 classes, 2 to 8 seeds.
_LOWEST_START = 0.5  # of ln(classes); lowest of the models: 0.90; the highest is 13.6 nats above
_HIGHEST_ERROR, _LOWEST_ERROR = 100.0, 0.1  # the same for losses of numbers, as shares of that of the mean
_OVERFIT_RATES = (1.0e-3, 1.0e-4)
_FROM_ZERO = 1.0e-2  # for a model with weights that start from 0, such as a bag of words
_OVERFIT_STEPS = 100
_LONGEST_SECONDS = 10.0  # a slower model gets no finding from the checks that take many steps
# Share of the way from one answer for all samples to no error, at which all was learned. All models of the calibration
# reach 1 in 1 to 60 steps but squeezenet, whose last ReLU dies on small maps: 0.29 at worst.
_MEMORISED = 0.85


class ModelProbe:
    """A copy of a model, tried on one batch of training samples, in fp32.

    Attributes:
        activations: bytes that the backward pass of one sample needs; 0 before `examine`.

    Raises:
        TrainingError: the model cannot be copied.
    """

    def __init__(self, model: Model, batch: Batch, plan: Plan, spec: ModelSpec, *, pretrained: bool) -> None:
        self.model = duplicate(model)
        self.start = copy.deepcopy(model.state_dict())
        self.inputs, self.targets = batch
        self.plan, self.target, self.pretrained = plan, spec.target, pretrained
        self.objective = Objective.measuring(plan, self.target, self.targets.device, own=own_loss(plan, spec))
        self.numbers = None if self.target.has_accuracy else self.objective.learned(self.targets)
        self.activations = 0

    def examine(self) -> Iterator[Finding]:
        """Yield all findings. Only a model without findings is tested for over-fitting, which takes longest."""
        sound = True
        try:
            for finding in itertools.chain(self._untrained(), self._first_steps(), self._passes()):
                sound = False
                yield finding
            if sound:
                yield from self._overfit()
        except Exception as error:  # the user's code may raise anything
            if any(tensor.grad_fn is not None for _, tensor in kept_tensors(self.model)):
                yield self._kept_graph()
            else:
                reason = f"{type(error).__name__}: {error}".partition("\n")[0]
                yield Finding.of("step-fails", samples=len(self.targets), error=reason)

    def _untrained(self) -> Iterator[Finding]:
        """Check the parameters, and the outputs in eval mode, as in validation and serving."""
        names = layer_names(sorted(self.model.fixed))
        if names and not self.pretrained and not hasattr(self.model.network, "initialise"):
            yield Finding.of("frozen-at-random", *names, count=len(names))
        yield from check_weights(self.model, pretrained=self.pretrained)
        yield from self._check_outputs(self.model.eval()(*self.inputs), "eval")

    def _first_steps(self) -> Iterator[Finding]:
        self._reset()  # a layer left in training mode has changed its statistics
        optimizer = build_optimizer(self.model.train(), self.plan, self.targets.device)
        optimized = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        adam = _adam(self.model, _OVERFIT_RATES[-1])
        with_gradient: set[str] = set()
        units: dict[str, torch.Tensor] = {}
        values: dict[str, int] = {}
        graph_sizes: list[int] = []
        for step in range(_STEPS):
            with _saved_bytes(self.model) as saved, values_counted(self.model, values):
                outputs = self.model(*self.inputs)
            loss = self._loss(outputs)
            if step == 0:
                self.activations = sum(saved.values()) // len(self.targets)
                yield from self._check_outputs(outputs, "training")
                yield from self._unseen(outputs, optimized)
                yield from self._first_loss(float(loss.detach()), outputs)
            if not loss.requires_grad:  # such as an argmax
                yield Finding.of("no-gradient", *layer_names(name for name, _ in self.model.named_parameters()))
                return
            adam.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            with_gradient |= self._with_gradient()
            mark_reached_units(self.model, units)
            adam.step()
            del outputs, loss
            graph_sizes.append(sum(1 for _ in graph_nodes(tensor.grad_fn for _, tensor in kept_tensors(self.model))))
        yield from self._without_gradient(with_gradient)
        yield from check_dead_units(units, values)
        if all(before < after for before, after in itertools.pairwise(graph_sizes)):
            yield self._kept_graph()

    def _passes(self) -> Iterator[Finding]:
        """Check what forward() does to samples, to the model's state and to its input."""
        self._reset()
        yield from check_passes(self.model, self.inputs, self.plan.seed, pretrained=self.pretrained)
        self._reset()
        is_stream = self.target.dimensions == 3
        yield from check_independence(self.model, self.inputs, self.plan.seed, is_stream=is_stream)

    def _overfit(self) -> Iterator[Finding]:
        best, begun = -math.inf, time.monotonic()
        self._reset()
        zeros = any(each.dim() > 1 and not each.count_nonzero() for each in self.model.parameters())
        tried = (*_OVERFIT_RATES, _FROM_ZERO) if zeros else _OVERFIT_RATES
        for rate in tried:
            self._reset()
            self.model.train()
            for module in self.model.modules():
                if isinstance(module, _DropoutNd):
                    module.eval()
            adam = _adam(self.model, rate)
            for _ in range(_OVERFIT_STEPS):
                outputs = self.model(*self.inputs)
                best = max(best, self._learned(outputs.detach()))
                if best >= _MEMORISED or time.monotonic() - begun > _LONGEST_SECONDS:
                    return
                adam.zero_grad(set_to_none=True)
                torch.autograd.backward(self._loss(outputs))
                adam.step()
        if best <= RULES["cannot-overfit"].limit:
            rates = ", ".join(f"{rate:g}" for rate in tried)
            values = {"samples": len(self.targets), "rates": rates, "learned": max(0.0, best)}
            yield Finding.of("cannot-overfit", steps=_OVERFIT_STEPS, **values)

    def _learned(self, outputs: torch.Tensor) -> float:
        """Return the share of the way from the best single answer for all samples (0) to no error (1).

        Errors are wrong classes, labels or tokens, or squared errors of numbers. 1 if there is nothing to learn.
        """
        targets = self.targets
        if self.numbers is not None:
            outputs = outputs.float().mean(1) if outputs.dim() == 3 else outputs.float()
            error = float((self.numbers - outputs).square().sum())
            constant = float((self.numbers - self.numbers.mean(0)).square().sum())
        else:
            answers = self.objective.num_scored(targets.cpu().numpy())
            error = float(answers - self.objective.num_correct(outputs, targets))
            if self.target.is_indexed:
                constant = float(answers - targets[targets != self.objective.ignored].bincount().max())
            else:
                constant = float(torch.minimum((targets > 0.5).sum(0), (targets <= 0.5).sum(0)).sum())
        return 1.0 - error / constant if constant else 1.0

    def _reset(self) -> None:
        self.model.load_state_dict(self.start, strict=False)  # not strict: forward() may have created layers

    def _loss(self, outputs: torch.Tensor) -> torch.Tensor:
        return self.objective(outputs, self.targets) / max(1, self.objective.count(self.targets.cpu().numpy()))

    def _check_outputs(self, outputs: torch.Tensor, mode: str) -> Iterator[Finding]:
        indexed, loss = self.target.is_indexed, self.plan.loss
        yield from check_outputs(outputs, mode, loss=loss, indexed=indexed, numbers=self.numbers)

    def _unseen(self, outputs: torch.Tensor, optimized: set[int]) -> Iterator[Finding]:
        """Look for tensors that the outputs depend on and that are not registered or not in the optimizer."""
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        leaves = {id(tensor): tensor for tensor in graph_leaves(outputs.grad_fn)}
        hidden = unregistered(self.model)
        hidden |= {key: f"a tensor of shape {tuple(leaves[key].shape)}" for key in leaves if key not in names | hidden}
        if hidden:
            yield Finding.of("unregistered-parameters", *map(layer_name, hidden.values()))
        missing = layer_names(name for key, name in names.items() if key in leaves and key not in optimized)
        if missing:
            yield Finding.of("missing-from-optimizer", *missing)

    def _first_loss(self, loss: float, outputs: torch.Tensor) -> Iterator[Finding]:
        """Compare the loss with that of a model without knowledge, whose outputs are 0: ln(classes), for example."""
        if self.objective.own is not None or (self.target.classes and self.plan.loss != "cross-entropy"):
            return
        chance = float(self._loss(torch.zeros_like(outputs)))
        low, high = _LOWEST_ERROR * chance, _HIGHEST_ERROR * chance
        if self.numbers is None:  # biases may know how frequent each label is, but not which class a sample has
            low = _LOWEST_START * chance if self.target.is_indexed else 0.0
            high = RULES["first-loss"].limit + chance
        if chance and not low < loss < high and not (loss < chance and self.pretrained):
            yield Finding.of("first-loss", loss=loss, chance=chance)

    def _with_gradient(self) -> set[str]:
        gradients = {name: parameter.grad for name, parameter in self.model.named_parameters()}
        return {name for name, gradient in gradients.items() if gradient is not None and gradient.count_nonzero()}

    def _without_gradient(self, with_gradient: set[str]) -> Iterator[Finding]:
        """Look for layers none of whose weights has a gradient, in more passes under stochastic depth.

        A bias counts only where a layer has no matrix: behind zeros it has a gradient.
        """
        required = {name for name, parameter in self.model.named_parameters() if parameter.requires_grad}
        begun = time.monotonic()
        for _ in range(int(RULES["no-gradient"].limit) - _STEPS):
            if required <= with_gradient or time.monotonic() - begun > _LONGEST_SECONDS:
                break
            self.model.zero_grad(set_to_none=True)
            torch.autograd.backward(self._loss(self.model(*self.inputs)))
            with_gradient |= self._with_gradient()
        names = []
        for prefix, module in self.model.named_modules():
            parameters = dict(module.named_parameters(prefix, recurse=False))
            own = required & parameters.keys()
            if own and not with_gradient & ({name for name in own if parameters[name].dim() > 1} or own):
                names.append(layer_name(prefix))
        if names:
            yield Finding.of("no-gradient", *names)

    def _kept_graph(self) -> Finding:
        paths = {path for path, tensor in kept_tensors(self.model) if tensor.grad_fn is not None}
        return Finding.of("kept-graph", *sorted(map(layer_name, paths)))


@contextlib.contextmanager
def _saved_bytes(model: Model) -> Iterator[dict[int, int]]:
    """Record the bytes of each tensor saved for the backward pass inside, without the model's own, by address."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    saved: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield saved


def _adam(model: Model, rate: float) -> torch.optim.Optimizer:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return without_compile_wrappers(torch.optim.AdamW)(parameters, lr=rate, weight_decay=0.0, fused=True)
