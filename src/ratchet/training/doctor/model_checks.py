"""The model, tried on one batch: what raises no error and still keeps it from learning."""

import contextlib
import copy
import itertools
import math
import time
from collections.abc import Iterator

import torch
from torch.nn.modules.dropout import _DropoutNd

from ratchet.training.determinism import explained
from ratchet.training.doctor import probes
from ratchet.training.doctor.attributes import graph_leaves, graph_size, kept_tensors, unregistered
from ratchet.training.doctor.findings import Finding, some
from ratchet.training.doctor.logits import examine_logits, squashed
from ratchet.training.doctor.probes import Unit, short, weighted_layers
from ratchet.training.duplicate import duplicate
from ratchet.training.losses import Objective
from ratchet.training.models import Classifier
from ratchet.training.optim import build_optimizer
from ratchet.training.optim_fast_import import without_compile_wrappers
from ratchet.training.plan import Plan

__all__ = ["ModelProbe"]

_TAKES_LOGITS = ("cross-entropy", "binary-cross-entropy")  # losses that take a softmax or a sigmoid themselves
_WATCHED_STEPS = 3  # a head that starts from zeros lets no gradient through at the first
# Calibrated on fresh models, 26 of torchvision and our own, 16 CIFAR-10 pictures, 2, 10 and 100 classes, 2 to 8 seeds.
_HIGHEST_START = 20.0  # above ln(classes), nats; the highest found: 13.6 (mnasnet1_3, 2 classes), efficientnet_b0 3.8
_LOWEST_START = 0.5  # of ln(classes); the lowest found: .90
_MORE_STEPS = 20  # in which a layer that is skipped at random may get a gradient
_OVERFIT_RATES = (1.0e-3, 1.0e-4)
_OVERFIT_STEPS = 100
_OVERFIT_SECONDS = 10.0  # of a model so slow that they do not suffice nothing is said
_DECAY = 1.0e-6  # share by which all weights are made smaller
_MOST_CHANGED = 0.1  # of the largest logit, that a sound model changes by then; usual: 1e-5
_BY_HEART = 0.9  # of the pictures
# Part of the way from what one answer to all pictures gets right to all right, below which nothing was learned. All
# models calibrated on get to the end in 1 to 60 steps but squeezenet, whose last ReLU dies on small maps: .29 at worst.
_LEARNED = 0.2


class ModelProbe:
    """A copy of a model, tried on one batch of training rows, in fp32.

    Attributes:
        activations: bytes that the backward pass of one sample needs; 0 before `examine`.
    """

    def __init__(
        self, model: Classifier, images: torch.Tensor, labels: torch.Tensor, plan: Plan, *, pretrained: bool
    ) -> None:
        self.model = duplicate(model)
        self.start = copy.deepcopy(model.state_dict())
        self.images, self.labels, self.plan, self.pretrained = images, labels, plan, pretrained
        self.objective = Objective.measuring(plan)
        self.classes = 0
        self.limited = False
        self.activations = 0

    def examine(self) -> Iterator[Finding]:
        """Every finding; the trial by heart only of a model that has none."""
        yield from self.frozen()
        ails = False
        try:
            for finding in itertools.chain(self.asked(), self.first_steps(), self.probed()):
                ails = True
                yield finding
            if not ails:
                yield from self.overfit()
        except Exception as error:  # the user's code may raise anything
            yield self.failed(error)

    def frozen(self) -> Iterator[Finding]:
        """Parameters that want no gradient and were not brought from anywhere either."""
        names = [short(name) for name in sorted(self.model.fixed)]
        if names and not self.pretrained and not hasattr(self.model.network, "initialise"):
            yield Finding(
                "frozen at random",
                f"{len(names)} parameters want no gradient ({some(names)}), so they keep the random values they begin "
                "with",
                "bring weights with model.pretrained, let them learn (requires_grad), or make them buffers if they are "
                "meant to be constant",
            )

    def asked(self) -> Iterator[Finding]:
        """The answers in eval mode, as validation and users get them."""
        yield from probes.examine_modes(self.model, pretrained=self.pretrained)
        before = _modes(self.model.eval())
        first = self.model(self.images)
        self.classes = first.shape[1]
        yield from self._changed_mode(before, "eval")
        yield from self._ends(first, "eval")
        again = self.model.eval()(self.images)
        if not torch.allclose(first.detach(), again.detach(), rtol=1e-3, atol=1e-4 * float(first.detach().abs().max())):
            yield Finding(
                "eval mode",
                "in eval mode the same pictures got other answers when asked again",
                "write dropout as nn.Dropout, or pass training=self.training to the function",
            )
        else:
            yield from self._decayed(first.detach())
        self._begin_anew()  # a part left in training mode has moved its statistics

    def first_steps(self) -> Iterator[Finding]:
        """A few training steps, watched: modes, the loss at the start, who gets a gradient, what is kept."""
        before = _modes(self.model.train())
        optimizer = build_optimizer(self.model, self.plan, self.images.device)
        optimized = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        adam = _adam(self.model, _OVERFIT_RATES[-1])
        reached: set[str] = set()
        alive: Unit = {}
        positions: dict[str, int] = {}
        sizes: list[int] = []
        for step in range(_WATCHED_STEPS):
            with _counted(self.model) as saved, probes.positions_counted(self.model, positions):
                logits = self.model(self.images)
            loss = self._loss(logits)
            if step == 0:
                self.activations = sum(saved.values()) // len(self.labels)
                yield from self._changed_mode(before, "training")
                yield from self._ends(logits, "training")
                yield from self._unseen(logits, optimized)
                yield from self._first_loss(float(loss.detach()))
            adam.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            reached |= {name for name, one in self.model.named_parameters() if _has_gradient(one)}
            self._note_units(alive)
            adam.step()
            del logits, loss
            sizes.append(graph_size(tensor for _, tensor in kept_tensors(self.model)))
        self._reach_skipped(reached)
        yield from self._out_of_reach(reached)
        self._begin_anew()
        yield from probes.examine_units(alive, positions, self.model)
        if all(before < after for before, after in itertools.pairwise(sizes)):
            yield self._leak()

    def probed(self) -> Iterator[Finding]:
        """Probes of what the model does to samples, to its state and to its input."""
        self._begin_anew()
        yield from probes.examine_passes(self.model, self.images, self.plan.seed, pretrained=self.pretrained)
        self._begin_anew()
        yield from probes.examine_independence(self.model, self.images, self.plan.seed)

    def overfit(self) -> Iterator[Finding]:
        """Learn the batch by heart: whatever cannot do that cannot learn more."""
        best, told = 0.0, []
        begun = time.monotonic()
        for rate in _OVERFIT_RATES:
            self._begin_anew()
            self.model.train()
            for module in self.model.modules():
                if isinstance(module, _DropoutNd):
                    module.eval()
            adam = _adam(self.model, rate)
            for _ in range(_OVERFIT_STEPS):
                logits = self.model(self.images)
                best = max(best, float((logits.argmax(1) == self.labels).float().mean()))
                if best >= _BY_HEART:
                    return
                if time.monotonic() - begun > _OVERFIT_SECONDS:
                    return
                adam.zero_grad(set_to_none=True)
                torch.autograd.backward(self._loss(logits))
                adam.step()
            told.append(f"{rate:g}")
        constant = int(self.labels.cpu().bincount().max()) / len(self.labels)
        if best > constant + _LEARNED * (1.0 - constant):
            return
        yield Finding(
            "over-fit one batch",
            f"{_OVERFIT_STEPS} steps on the same {len(self.labels)} pictures, at learning rates {' and '.join(told)}, "
            f"left {1 - best:.0%} of them wrong",
            "look in the model for what keeps pictures and answers apart: a constant, a detach(), a shape that mixes "
            "samples, an activation that dies",
        )

    def failed(self, error: Exception) -> Finding:
        """A step that broke off: by a graph kept from the step before, or by itself."""
        if any(tensor.grad_fn is not None for _, tensor in kept_tensors(self.model)):
            return self._leak()
        if (nondeterministic := explained(error, self.model, self.images)) is not None:
            return Finding("deterministic", *nondeterministic)
        why = f"{type(error).__name__}: {error}".partition("\n")[0]
        return Finding(
            "one step",
            f"a training step on {len(self.labels)} pictures fails ({why})",
            "mend the model's forward()",
        )

    def _begin_anew(self) -> None:
        self.model.load_state_dict(self.start, strict=False)  # not strict: forward() may have made layers

    def _loss(self, logits: torch.Tensor) -> torch.Tensor:
        return self.objective(logits, self.labels) / len(self.labels)

    def _changed_mode(self, before: dict[str, bool], mode: str) -> Iterator[Finding]:
        """Parts that the forward pass itself put into the other mode."""
        names = [
            name for name, is_training in _modes(self.model).items() if before.get(name, is_training) != is_training
        ]
        if names:
            yield Finding(
                f"{mode} mode",
                f"a forward pass in {mode} mode leaves {some(names)} in {'eval' if mode == 'training' else 'training'} "
                "mode",
                "take .eval() and .train() out of forward(): the loop sets the mode",
            )

    def _ends(self, logits: torch.Tensor, mode: str) -> Iterator[Finding]:
        """A softmax or a sigmoid where the loss has one of its own, bounded logits, tiny logits."""
        kind = squashed(logits)
        if kind == "log-softmax" and self.plan.loss == "cross-entropy":
            if mode == "eval":
                yield Finding(
                    "log-softmax before the loss",
                    "the logits are the output of a log-softmax, and training.loss cross-entropy takes another: it "
                    "changes neither loss nor gradients",
                    "return logits, without the log-softmax, to save its time",
                    "warning",
                )
        elif kind and self.plan.loss in _TAKES_LOGITS:
            yield Finding(
                f"{kind} before the loss",
                f"in {mode} mode the model's answers are those of a {kind}, and training.loss {self.plan.loss} takes "
                "another: gradients shrink and the loss cannot come near 0",
                f"let forward() return logits, without the {kind}",
            )
        elif not kind and not self.limited:
            for finding in examine_logits(logits, mode, takes_logits=self.plan.loss in _TAKES_LOGITS):
                self.limited = True  # the same in the other mode
                yield finding

    def _decayed(self, logits: torch.Tensor) -> Iterator[Finding]:
        """A model that a tiny weight decay changes completely, such as one that rounds a parameter to whole numbers."""
        if not self.plan.weight_decay:
            return
        with torch.no_grad():
            for parameter in self.model.parameters():
                if parameter.is_floating_point() and (self.plan.decay_all or parameter.dim() > 1):
                    parameter.mul_(1.0 - _DECAY)
            changed = (self.model.eval()(self.images) - logits).abs().max()
        self._begin_anew()
        if changed > _MOST_CHANGED * logits.abs().max():
            yield Finding(
                "weight decay",
                f"weights that are {_DECAY:g} smaller give completely different logits, and training.weight_decay "
                f"{self.plan.weight_decay:g} makes weights smaller at each step",
                "set training.weight_decay: 0; for a layer of torch.nn.utils.parametrizations.orthogonal, "
                'orthogonal_map="matrix_exp" or "cayley" takes weight decay too',
            )

    def _note_units(self, alive: Unit) -> None:
        """Mark the units of each layer that a gradient has reached."""
        for name, layer in weighted_layers(self.model).items():
            gradient = layer.weight.grad
            if gradient is not None:
                mine = gradient.flatten(1).count_nonzero(1) > 0
                alive[name] = alive[name] | mine if name in alive else mine

    def _unseen(self, logits: torch.Tensor, optimized: set[int]) -> Iterator[Finding]:
        """Tensors the answer depends on and no step will change: unregistered ones, and those the optimizer lacks."""
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        hidden = unregistered(self.model)
        leaves = graph_leaves(logits)
        hidden |= {key: f"a tensor of shape {tuple(leaves[key].shape)}" for key in leaves if key not in names | hidden}
        if hidden:
            yield Finding(
                "unregistered parameters",
                f"PyTorch does not see {some([short(path) for path in hidden.values()])}: no step changes them, no "
                "checkpoint holds them, no device gets them",
                "hold layers in nn.ModuleList or nn.ModuleDict instead of a list, tuple or dict, and tensors in "
                "nn.Parameter",
            )
        missing = [short(name) for key, name in names.items() if key in leaves and key not in optimized]
        if missing:
            yield Finding(
                "missing from the optimizer",
                f"the optimizer does not have {some(missing)}: made in forward(), after the optimizer was built",
                "make every layer and parameter in __init__",
            )

    def _first_loss(self, loss: float) -> Iterator[Finding]:
        """Who knows nothing and says so has a loss of ln(classes)."""
        chance = math.log(self.classes)
        if self.plan.loss != "cross-entropy" or (_LOWEST_START * chance < loss < _HIGHEST_START + chance):
            return
        if loss < chance and self.pretrained:
            return
        yield Finding(
            "loss at the start",
            f"the loss before the first step is {loss:.3g}, where a model that knows nothing has "
            f"ln({self.classes}) = {chance:.3g}",
            "start the last layer from small weights, and scale nothing in forward(): pictures come normalised already"
            if not loss < chance
            else "look for the answer in the pictures themselves, or for weights that come from elsewhere",
        )

    def _reach_skipped(self, reached: set[str]) -> None:
        """Add the parameters that get a gradient in more passes, as under stochastic depth and layer drop."""
        wanted = {name for name, one in self.model.named_parameters() if one.requires_grad}
        begun = time.monotonic()
        for _ in range(_MORE_STEPS):
            if wanted <= reached or time.monotonic() - begun > _OVERFIT_SECONDS:
                return
            self.model.zero_grad(set_to_none=True)
            torch.autograd.backward(self._loss(self.model(self.images)))
            reached |= {name for name, one in self.model.named_parameters() if _has_gradient(one)}

    def _out_of_reach(self, reached: set[str]) -> Iterator[Finding]:
        """Layers none of whose parameters ever got a gradient."""
        names = []
        for prefix, module in self.model.named_modules():
            own = [name for name, one in module.named_parameters(prefix, recurse=False) if one.requires_grad]
            if own and not reached.intersection(own):
                names.append(short(prefix) or "the model")
        if names:
            yield Finding(
                "no gradient",
                f"in {_WATCHED_STEPS} steps no gradient reached {some(names)}",
                "call the layer in forward(), without detach(), .data, .item(), NumPy or torch.no_grad() on the way "
                "from it to the answer; or remove it",
            )

    def _leak(self) -> Finding:
        names = [short(path) for path, tensor in kept_tensors(self.model) if tensor.grad_fn is not None]
        return Finding(
            "kept graph",
            f"{some(sorted(set(names)))} keeps the computation of every step so far: memory grows until it is used up",
            "keep tensor.detach(), or .item() of a single figure",
        )


@contextlib.contextmanager
def _counted(model: Classifier) -> Iterator[dict[int, int]]:
    """The bytes of each tensor that is kept for the backward pass inside, the model's own left out."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    saved: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield saved


def _adam(model: Classifier, rate: float) -> torch.optim.Optimizer:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return without_compile_wrappers(torch.optim.AdamW)(parameters, lr=rate, weight_decay=0.0, fused=True)


def _has_gradient(parameter: torch.Tensor) -> bool:
    return parameter.grad is not None and bool(parameter.grad.count_nonzero())


def _modes(model: Classifier) -> dict[str, bool]:
    return {short(name) or "the model": module.training for name, module in model.named_modules()}
