"""Check a model on one batch for mistakes that raise no error and keep it from learning."""

import contextlib
import copy
import itertools
import math
import time
from collections.abc import Iterator

import torch
from torch.nn.modules.dropout import _DropoutNd

from ratchet.kinds import Target
from ratchet.training.autograd_graph import graph_leaves, graph_nodes
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
_MORE_STEPS = 20  # in which a layer that is skipped at random may get a gradient
_OVERFIT_RATES = (1.0e-3, 1.0e-4)
_OVERFIT_STEPS = 100
_LONGEST_SECONDS = 10.0  # a slower model gets no finding from the checks that take many steps
_DECAY = 1.0e-6  # share by which all weights are reduced
_LARGEST_CHANGE = 0.1  # of the largest logit, after that reduction; usual: 1e-5
_MEMORISED = 0.9  # share of images
# Share of the way from the accuracy of one answer for all images to 1, below which nothing was learned. All models of
# the calibration reach 1 in 1 to 60 steps but squeezenet, whose last ReLU dies on small maps: 0.29 at worst.
_LEARNED = 0.2


class ModelProbe:
    """A copy of a model, tried on one batch of training samples, in fp32.

    Attributes:
        activations: bytes that the backward pass of one sample needs; 0 before `examine`.

    Raises:
        TrainingError: the model cannot be copied.
    """

    def __init__(
        self, model: Model, images: torch.Tensor, labels: torch.Tensor, plan: Plan, target: Target, *, pretrained: bool
    ) -> None:
        self.model = duplicate(model)
        self.start = copy.deepcopy(model.state_dict())
        self.images, self.labels, self.plan, self.pretrained = images, labels, plan, pretrained
        self.objective = Objective.measuring(plan, target, images.device)
        self.takes_logits = plan.loss in _TAKES_LOGITS
        self.classes = 0
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
        logits = self.model(self.images)
        self.classes = logits.shape[1]
        yield from self._left_mode(modes, "eval")
        yield from self._check_logits(logits, "eval")
        logits, again = logits.detach(), self.model.eval()(self.images).detach()
        if not torch.allclose(logits, again, rtol=1e-3, atol=1e-4 * float(logits.abs().max())):
            yield Finding.of("random-in-eval")
        else:
            yield from self._decayed(logits)
        self._reset()  # a layer left in training mode has changed its statistics

    def _first_steps(self) -> Iterator[Finding]:
        modes = _modes(self.model.train())
        optimizer = build_optimizer(self.model, self.plan, self.images.device)
        optimized = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        adam = _adam(self.model, _OVERFIT_RATES[-1])
        with_gradient: set[str] = set()
        units: dict[str, torch.Tensor] = {}
        values: dict[str, int] = {}
        graph_sizes: list[int] = []
        for step in range(_STEPS):
            with _saved_bytes(self.model) as saved, values_counted(self.model, values):
                logits = self.model(self.images)
            loss = self._loss(logits)
            if step == 0:
                self.activations = sum(saved.values()) // len(self.labels)
                yield from self._left_mode(modes, "training")
                yield from self._check_logits(logits, "training")
                yield from self._unseen(logits, optimized)
                yield from self._first_loss(float(loss.detach()))
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
        yield from check_passes(self.model, self.images, self.plan.seed, pretrained=self.pretrained)
        self._reset()
        yield from check_independence(self.model, self.images, self.plan.seed)

    def _overfit(self) -> Iterator[Finding]:
        best, begun = 0.0, time.monotonic()
        for rate in _OVERFIT_RATES:
            self._reset()
            self.model.train()
            for module in self.model.modules():
                if isinstance(module, _DropoutNd):
                    module.eval()
            adam = _adam(self.model, rate)
            for _ in range(_OVERFIT_STEPS):
                logits = self.model(self.images)
                best = max(best, float((logits.argmax(1) == self.labels).float().mean()))
                if best >= _MEMORISED or time.monotonic() - begun > _LONGEST_SECONDS:
                    return
                adam.zero_grad(set_to_none=True)
                torch.autograd.backward(self._loss(logits))
                adam.step()
        constant = int(self.labels.cpu().bincount().max()) / len(self.labels)
        if best > constant + _LEARNED * (1.0 - constant):
            return
        rates = " and ".join(f"{rate:g}" for rate in _OVERFIT_RATES)
        images = len(self.labels)
        yield Finding.of("cannot-overfit", steps=_OVERFIT_STEPS, images=images, rates=rates, wrong=1 - best)

    def _failed(self, error: Exception) -> Finding:
        """Return the finding for a failed step, which may come from a graph that the model keeps."""
        if any(tensor.grad_fn is not None for _, tensor in kept_tensors(self.model)):
            return self._kept_graph()
        if (nondeterministic := explained(error, self.model, self.images)) is not None:
            problem, fix = nondeterministic
            return Finding.of("nondeterministic", problem=problem, fix=fix)
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        return Finding.of("step-fails", images=len(self.labels), error=reason)

    def _reset(self) -> None:
        self.model.load_state_dict(self.start, strict=False)  # not strict: forward() may have created layers

    def _loss(self, logits: torch.Tensor) -> torch.Tensor:
        return self.objective(logits, self.labels) / len(self.labels)

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
            if mode == "eval":
                yield Finding.of("redundant-log-softmax")
        elif function and self.takes_logits:
            yield Finding.of("activation-before-loss", mode=mode, function=function, loss=self.plan.loss)
        elif not function and not self._logits_reported:
            finding = check_logits(logits, mode, takes_logits=self.takes_logits)
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
            change = (self.model.eval()(self.images) - logits).abs().max()
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

    def _first_loss(self, loss: float) -> Iterator[Finding]:
        """Compare the loss with ln(classes), the loss of a model without knowledge."""
        chance = math.log(self.classes)
        if self.plan.loss != "cross-entropy" or (_LOWEST_START * chance < loss < _HIGHEST_START + chance):
            return
        if loss < chance and self.pretrained:
            return
        rule = "first-loss-low" if loss < chance else "first-loss-high"
        yield Finding.of(rule, loss=loss, classes=self.classes, chance=chance)

    def _reach_skipped(self, with_gradient: set[str]) -> None:
        """Add the parameters that get a gradient in more passes, as under stochastic depth and layer drop."""
        required = {name for name, parameter in self.model.named_parameters() if parameter.requires_grad}
        begun = time.monotonic()
        for _ in range(_MORE_STEPS):
            if required <= with_gradient or time.monotonic() - begun > _LONGEST_SECONDS:
                return
            self.model.zero_grad(set_to_none=True)
            torch.autograd.backward(self._loss(self.model(self.images)))
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
