"""Check a model on one batch for mistakes that raise no error and keep it from learning."""

import contextlib
import copy
import itertools
import math
import time
from collections.abc import Iterator

import torch
from torch.nn.modules.dropout import _DropoutNd

from ratchet.kinds import ModelSpec
from ratchet.problems import Classes, Numbers
from ratchet.training.autograd_graph import graph_leaves, graph_nodes
from ratchet.training.batches import Batch
from ratchet.training.determinism import explained
from ratchet.training.doctor.forward_checks import check_modes, check_passes
from ratchet.training.doctor.independence import check_independence
from ratchet.training.doctor.layers import (
    check_dead_units,
    check_equal_weights,
    layer_name,
    layer_names,
    mark_reached_units,
    values_counted,
)
from ratchet.training.doctor.logits import check_logits, probability_function
from ratchet.training.doctor.rules import Finding
from ratchet.training.doctor.tensors import kept_tensors, unregistered
from ratchet.training.duplicate import duplicate
from ratchet.training.losses import Objective
from ratchet.training.models import Model
from ratchet.training.optim import build_optimizer, without_compile_wrappers
from ratchet.training.plan import Plan

__all__ = ["ModelProbe"]

_TAKES_LOGITS = ("cross-entropy", "binary-cross-entropy")  # losses that apply a softmax or a sigmoid themselves
_STEPS = 3  # a last layer that starts from zeros lets no gradient through at the first
# Calibrated on fresh models: 26 of torchvision and ours, 16 CIFAR-10 images, 2, 10 and 100 classes, 2 to 8 seeds.
_HIGHEST_START = (
    20.0  # nats above ln(classes); highest of the models: 13.6 (mnasnet1_3, 2 classes), efficientnet_b0 3.8
)
_LOWEST_START = 0.5  # of ln(classes); lowest of the models: 0.90
_HIGHEST_ERROR, _LOWEST_ERROR = 100.0, 0.1  # the same for losses of numbers, as shares of that of the mean
_MORE_STEPS = 20  # in which a layer that is skipped at random may get a gradient
_OVERFIT_RATES = (1.0e-3, 1.0e-4)
_FROM_ZERO = 1.0e-2  # for a model with weights that start from 0, such as a bag of words
_OVERFIT_STEPS = 100
_LONGEST_SECONDS = 10.0  # a slower model gets no finding from the checks that take many steps
_DECAY = 1.0e-6  # share by which all weights are reduced
_LARGEST_CHANGE = 0.1  # of the largest logit, after that reduction; usual: 1e-5
# Shares of the way from one answer for all samples to no error: everything, or nothing, was learned. All models of the
# calibration reach 1 in 1 to 60 steps but squeezenet, whose last ReLU dies on small maps: 0.29 at worst.
_MEMORISED, _LEARNED = 0.85, 0.2


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
        self.plan, self.input, self.target, self.pretrained = plan, spec.input, spec.target, pretrained
        self.objective = Objective.measuring(plan, self.target, self.targets.device)
        self.takes_logits = plan.loss in _TAKES_LOGITS
        self.activations = 0
        self._logits_reported = False

    def examine(self) -> Iterator[Finding]:
        """Yield all findings. Only a model without findings is tested for over-fitting, which takes longest."""
        yield from self._frozen()
        sound = True
        try:
            for finding in itertools.chain(self._evaluation(), self._first_steps(), self._behaviour()):
                sound = False
                yield finding
            if sound:
                yield from self._overfit()
        except Exception as error:  # the user's code may raise anything
            yield self._failed(error)

    def _frozen(self) -> Iterator[Finding]:
        """Look for parameters without gradient that were not loaded from anywhere."""
        names = layer_names(sorted(self.model.fixed))
        if names and not self.pretrained and not hasattr(self.model.network, "initialise"):
            yield Finding.of("frozen-at-random", *names, count=len(names))

    def _evaluation(self) -> Iterator[Finding]:
        """Check the logits in eval mode, as in validation and serving."""
        yield from check_modes(self.model, pretrained=self.pretrained)
        modes = _modes(self.model.eval())
        logits = self.model(*self.inputs)
        yield from self._left_mode(modes, "eval")
        yield from self._check_logits(logits, "eval")
        logits, again = logits.detach(), self.model.eval()(*self.inputs).detach()
        if not torch.allclose(logits, again, rtol=1e-3, atol=1e-4 * float(logits.abs().max())):
            yield Finding.of("random-in-eval")
        else:
            yield from self._decayed(logits)
        self._reset()  # a layer left in training mode has changed its statistics

    def _first_steps(self) -> Iterator[Finding]:
        modes = _modes(self.model.train())
        optimizer = build_optimizer(self.model, self.plan, self.targets.device)
        optimized = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        adam = _adam(self.model, _OVERFIT_RATES[-1])
        with_gradient: set[str] = set()
        units: dict[str, torch.Tensor] = {}
        values: dict[str, int] = {}
        graph_sizes: list[int] = []
        for step in range(_STEPS):
            with _saved_bytes(self.model) as saved, values_counted(self.model, values):
                logits = self.model(*self.inputs)
            loss = self._loss(logits)
            if step == 0:
                self.activations = sum(saved.values()) // len(self.targets)
                yield from self._left_mode(modes, "training")
                yield from self._check_logits(logits, "training")
                yield from self._unseen(logits, optimized)
                yield from self._first_loss(float(loss.detach()), logits)
            adam.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            with_gradient |= self._with_gradient()
            mark_reached_units(self.model, units)
            adam.step()
            del logits, loss
            graph_sizes.append(sum(1 for _ in graph_nodes(tensor.grad_fn for _, tensor in kept_tensors(self.model))))
        self._reach_skipped(with_gradient)
        yield from self._without_gradient(with_gradient)
        self._reset()
        yield from check_dead_units(units, values)
        yield from check_equal_weights(self.model)
        if all(before < after for before, after in itertools.pairwise(graph_sizes)):
            yield self._kept_graph()

    def _behaviour(self) -> Iterator[Finding]:
        """Check what forward() does to samples, to the model's state and to its input."""
        self._reset()
        yield from check_passes(self.model, self.inputs, self.plan.seed, pretrained=self.pretrained)
        self._reset()
        yield from check_independence(self.model, self.inputs, self.input, self.plan.seed)

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
                logits = self.model(*self.inputs)
                best = max(best, self._learned(logits.detach()))
                if best >= _MEMORISED or time.monotonic() - begun > _LONGEST_SECONDS:
                    return
                adam.zero_grad(set_to_none=True)
                torch.autograd.backward(self._loss(logits))
                adam.step()
        if best > _LEARNED:
            return
        rates = ", ".join(f"{rate:g}" for rate in tried)
        values = {"samples": len(self.targets), "rates": rates, "learned": max(0.0, best)}
        yield Finding.of("cannot-overfit", steps=_OVERFIT_STEPS, **values)

    def _learned(self, outputs: torch.Tensor) -> float:
        """Return the share of the way from the best single answer for all samples (0) to no error (1).

        Errors are wrong classes, labels or tokens, or squared errors of numbers. 1 if there is nothing to learn.
        """
        targets = self.targets
        if isinstance(self.target, Numbers):
            outputs = outputs.float().mean(1) if outputs.dim() == 3 else outputs.float()
            error = float((self.objective.scaled(targets) - outputs).square().sum())
            constant = float((self.objective.scaled(targets) - self.objective.scaled(targets).mean(0)).square().sum())
        else:
            answers = self.objective.answers(targets.cpu().numpy())
            error = float(answers - self.objective.right(outputs, targets))
            if self.objective.is_indexed:
                counted = targets[targets != self.objective.ignored]
                constant = float(answers - counted.bincount().max())
            else:
                constant = float(torch.minimum((targets > 0.5).sum(0), (targets <= 0.5).sum(0)).sum())
        return 1.0 - error / constant if constant else 1.0

    def _failed(self, error: Exception) -> Finding:
        """Return the finding for a failed step, which may come from a graph that the model keeps."""
        if any(tensor.grad_fn is not None for _, tensor in kept_tensors(self.model)):
            return self._kept_graph()
        if (nondeterministic := explained(error, self.model, *self.inputs)) is not None:
            problem, fix = nondeterministic
            return Finding.of("nondeterministic", problem=problem, fix=fix)
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        return Finding.of("step-fails", samples=len(self.targets), error=reason)

    def _reset(self) -> None:
        self.model.load_state_dict(self.start, strict=False)  # not strict: forward() may have created layers

    def _loss(self, logits: torch.Tensor) -> torch.Tensor:
        return self.objective(logits, self.targets) / max(1, self.objective.counted(self.targets.cpu().numpy()))

    def _with_gradient(self) -> set[str]:
        return {
            name
            for name, parameter in self.model.named_parameters()
            if parameter.grad is not None and bool(parameter.grad.count_nonzero())
        }

    def _left_mode(self, before: dict[str, bool], mode: str) -> Iterator[Finding]:
        """Look for layers that the forward pass itself has put into the other mode."""
        changed = tuple(
            name for name, is_training in _modes(self.model).items() if before.get(name, is_training) != is_training
        )
        if changed:
            yield Finding.of(f"{mode}-mode-left", *changed)

    def _check_logits(self, logits: torch.Tensor, mode: str) -> Iterator[Finding]:
        """Look for a softmax or sigmoid that the loss applies again, bounded logits, and tiny or huge logits."""
        function = probability_function(logits)
        if function == "log-softmax" and self.plan.loss == "cross-entropy":
            if mode == "training":  # the mean probability of an ensemble in eval mode needs one
                yield Finding.of("redundant-log-softmax")
        elif function and self.takes_logits:
            yield Finding.of("activation-before-loss", mode=mode, function=function, loss=self.plan.loss)
        elif (not function or isinstance(self.target, Numbers)) and not self._logits_reported:
            reachable = isinstance(self.target, Numbers) and mode == "training"
            finding = check_logits(
                logits, mode, takes_logits=self.takes_logits, binary=not self.objective.is_indexed,
                numbers=self.objective.scaled(self.targets) if reachable else None,
            )  # fmt: skip
            if finding is not None:
                self._logits_reported = True  # not again in the other mode
                yield finding

    def _decayed(self, logits: torch.Tensor) -> Iterator[Finding]:
        """Look for a model that a tiny weight decay changes completely, such as one that rounds a parameter."""
        if not self.plan.weight_decay:
            return
        with torch.no_grad():
            for parameter in self.model.parameters():
                if parameter.is_floating_point() and (self.plan.decay_all or parameter.dim() > 1):
                    parameter.mul_(1.0 - _DECAY)
            change = (self.model.eval()(*self.inputs) - logits).abs().max()
        self._reset()
        if change > _LARGEST_CHANGE * logits.abs().max():
            yield Finding.of("weight-decay-sensitive", decay=_DECAY, weight_decay=self.plan.weight_decay)

    def _unseen(self, logits: torch.Tensor, optimized: set[int]) -> Iterator[Finding]:
        """Look for tensors that the logits depend on and that are not registered or not in the optimizer."""
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        leaves = {id(tensor): tensor for tensor in graph_leaves(logits.grad_fn)}
        hidden = unregistered(self.model)
        hidden |= {key: f"a tensor of shape {tuple(leaves[key].shape)}" for key in leaves if key not in names | hidden}
        if hidden:
            yield Finding.of("unregistered-parameters", *map(layer_name, hidden.values()))
        missing = layer_names(name for key, name in names.items() if key in leaves and key not in optimized)
        if missing:
            yield Finding.of("missing-from-optimizer", *missing)

    def _first_loss(self, loss: float, outputs: torch.Tensor) -> Iterator[Finding]:
        """Compare the loss with that of a model without knowledge, whose outputs are 0: ln(classes), for example."""
        if isinstance(self.target, Classes) and self.plan.loss != "cross-entropy":
            return
        chance = float(self._loss(torch.zeros_like(outputs)))
        low, high = _LOWEST_START * chance, _HIGHEST_START + chance
        if not self.takes_logits:
            low, high = _LOWEST_ERROR * chance, _HIGHEST_ERROR * chance
        elif not self.objective.is_indexed:
            low = min(low, _LOWEST_START * self._frequency_loss())
        if low < loss < high or not chance or (loss < chance and self.pretrained):
            return
        formula = f"ln({self.target.outputs if self.objective.is_indexed else 2}) = " if self.takes_logits else ""
        rule = "first-loss-low" if loss < chance else "first-loss-high"
        yield Finding.of(rule, loss=loss, formula=formula, chance=chance)

    def _frequency_loss(self) -> float:
        """Return the loss of a model that knows how frequent each label is, as biases may from the start."""
        share = self.targets.float().mean(0)
        return float((-torch.xlogy(share, share) - torch.xlogy(1 - share, 1 - share)).mean())

    def _reach_skipped(self, with_gradient: set[str]) -> None:
        """Add the parameters that get a gradient in more passes, as under stochastic depth and layer drop."""
        required = {name for name, parameter in self.model.named_parameters() if parameter.requires_grad}
        begun = time.monotonic()
        for _ in range(_MORE_STEPS):
            if required <= with_gradient or time.monotonic() - begun > _LONGEST_SECONDS:
                return
            self.model.zero_grad(set_to_none=True)
            torch.autograd.backward(self._loss(self.model(*self.inputs)))
            with_gradient |= self._with_gradient()

    def _without_gradient(self, with_gradient: set[str]) -> Iterator[Finding]:
        """Look for layers none of whose parameters ever had a gradient."""
        names = []
        for prefix, module in self.model.named_modules():
            own = [name for name, each in module.named_parameters(prefix, recurse=False) if each.requires_grad]
            if own and not with_gradient.intersection(own):
                names.append(layer_name(prefix))
        if names:
            yield Finding.of("no-gradient", *names, steps=_STEPS)

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


def _modes(model: Model) -> dict[str, bool]:
    return {layer_name(path): module.training for path, module in model.named_modules()}
