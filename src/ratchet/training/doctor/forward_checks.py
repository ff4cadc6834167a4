"""Checks of forward(): modes, randomness, batch norm, dropout, input scale and state, on a few forward passes."""

import contextlib
import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from ratchet.training.batches import Inputs
from ratchet.training.device import seed_step
from ratchet.training.doctor.layers import batch_norms, layer_name, layer_names, tracks, weighted_layers
from ratchet.training.doctor.passes import (
    Recorder,
    generator_states,
    largest_difference,
    nearly_equal,
    same_tensor,
    seeded_generators,
)
from ratchet.training.doctor.rules import Finding
from ratchet.training.models import ImageModel, Model

__all__ = ["check_modes", "check_passes"]

_NUDGE = 1e-3  # noise added to weights before the passes
_SAME = 1e-3  # share of the largest logit by which two passes from one seed may differ
_HIGH_DROPOUT = 0.9
_PASSES = 20  # in which a layer that is skipped at random may run
_LOW_MOMENTUM, _HIGH_MOMENTUM = 1e-4, 0.9  # mnasnet has 3e-4, fastnet 0.4
_SCALES = 0.7, 1.4  # factors between the normalised images and the input of the first layer
_SHIFT = 0.5  # the same, in standard deviations of the normalised images
_STRAIGHT = 1e-4  # largest share of variance that a linear function may leave unexplained


def check_modes(model: Model, *, pretrained: bool) -> Iterator[Finding]:
    """Check that train() and eval() reach every layer, as an overridden train() may prevent.

    Frozen batch norms of pretrained weights are usual and give no finding.
    """
    model.eval()
    training = layer_names(path for path, module in model.named_modules() if module.training)
    if training:
        yield Finding.of("eval-mode-incomplete", *training)
    model.train()
    evaluating = {path: module for path, module in model.named_modules() if not module.training}
    affected = layer_names(p for p, module in evaluating.items() if p in ("", "network") or _depends_on_mode(module))
    if affected and not pretrained:
        norms = sum(isinstance(module, _BatchNorm) for module in evaluating.values())
        yield Finding.of("training-mode-incomplete", *affected, batch_norms=norms)


def check_passes(model: Model, inputs: Inputs, seed: int, *, pretrained: bool) -> Iterator[Finding]:
    """Compare three passes in training mode, two of them from one seed, and one in eval mode.

    Weights are changed a little first, so that a constant that forward() writes into them is noticed.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.add_(_NUDGE * torch.randn_like(parameter))
        start = copy.deepcopy(model.state_dict())  # a plain dict would lack the versions of modules

        def run(mode: str, offset: int) -> _Pass:
            model.load_state_dict(start, strict=False)
            return _Pass.run(model, inputs, mode, seed=seed + offset)

        with _places(model) as places:
            first = run("training", 0)
        again, other = run("training", 0), run("training", 1)
        for offset in range(1, _PASSES):  # stochastic depth skips some layers in each pass
            if not first.unmoved:
                break
            still = run("training", offset).unmoved
            first = replace(first, unmoved=[name for name in first.unmoved if name in still])
        evaluated = run("eval", 0)
    yield from _randomness(first, again, other)
    yield from _batch_norms(model, first, pretrained=pretrained)
    if shared := tuple(name for name, layers in places.items() if len(layers) > 1):
        yield Finding.of("shared-batch-norm", *shared)
    yield from _dropouts(model, first)
    if isinstance(model, ImageModel):
        prepared = model.prepared(*inputs)[0].float()
        yield from _input(prepared, {"training": first.input, "eval": evaluated.input})
    changed = next((each for each in (first, evaluated) if each.changed), None)
    if changed is not None:
        yield Finding.of("changed-in-forward", *changed.changed, mode=changed.mode)


@contextlib.contextmanager
def _places(model: Model) -> Iterator[dict[str, set[str]]]:
    """Record inside, for each batch norm, the weighted layers that ran last before it."""
    places: dict[str, set[str]] = {}
    last = [""]
    hooks = [
        layer.register_forward_hook(lambda *_, name=name: last.__setitem__(0, name))
        for name, layer in weighted_layers(model).items()
    ]
    hooks += [
        norm.register_forward_pre_hook(lambda *_, name=name: places.setdefault(name, set()).add(last[0]))
        for name, norm in batch_norms(model).items()
        if tracks(norm)
    ]
    try:
        yield places
    finally:
        for hook in hooks:
            hook.remove()


@dataclass(frozen=True)
class _Pass:
    """Observations in one forward pass."""

    mode: str
    logits: torch.Tensor
    generators: dict[str, bytes]  # states of the global generators afterwards
    input: torch.Tensor | None  # of the first layer
    dropouts: list[float]
    changed: tuple[str, ...]  # parameters, and in eval mode buffers, with other values than before
    unmoved: list[str]  # batch norms in training mode with the same running statistics as before

    @classmethod
    def run(cls, model: Model, inputs: Inputs, mode: str, *, seed: int) -> "_Pass":
        model.train(mode == "training")
        norms = {name: norm for name, norm in batch_norms(model).items() if norm.training and tracks(norm)}
        statistics = {name: _statistics(norm) for name, norm in norms.items()}
        watched = [*model.named_parameters(), *(model.named_buffers() if mode == "eval" else ())]
        before = {path: tensor.detach().clone() for path, tensor in watched}
        seed_step(seed, 0, inputs[0].device)
        with Recorder() as calls:
            logits = model(*inputs)
        generators = generator_states(inputs[0].device)
        after = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        changed = layer_names(p for p, tensor in before.items() if p in after and not same_tensor(tensor, after[p]))
        unmoved = [n for n, norm in norms.items() if norm.training and torch.equal(statistics[n], _statistics(norm))]
        return cls(mode, logits, generators, calls.first, calls.dropouts, changed, unmoved)


def _randomness(first: _Pass, again: _Pass, other: _Pass) -> Iterator[Finding]:
    """Compare the logits of passes from one seed, and the generators' states after two seeds."""
    if not nearly_equal(first.logits, again.logits, _SAME):
        yield Finding.of("unseeded-forward", difference=largest_difference(first.logits, again.logits))
    if seeded := seeded_generators(first.generators, other.generators):
        yield Finding.of("seeding-in-forward", *seeded)


def _batch_norms(model: Model, observed: _Pass, *, pretrained: bool) -> Iterator[Finding]:
    """Check that running statistics exist, change in training, and average over more than the last batch."""
    norms = batch_norms(model)
    if untracked := tuple(name for name, norm in norms.items() if not tracks(norm)):
        yield Finding.of("no-running-statistics", *untracked)
    momenta = {name: norm.momentum for name, norm in norms.items() if norm.momentum is not None}
    if fast := tuple(f"{name} ({momentum:g})" for name, momentum in momenta.items() if momentum >= _HIGH_MOMENTUM):
        yield Finding.of("high-momentum", *fast)
    slow = {name: momenta[name] for name in momenta if tracks(norms[name]) and momenta[name] < _LOW_MOMENTUM}
    still = tuple(sorted({*observed.unmoved, *slow}))
    if still and not pretrained:
        momentum = ", ".join(sorted({f"{value:g}" for value in slow.values()}))
        yield Finding.of("frozen-running-statistics", *still, momentum=momentum)


def _dropouts(model: Model, observed: _Pass) -> Iterator[Finding]:
    """Check the probabilities of dropout layers, and of dropout functions called in training mode."""
    layers = {layer_name(path): module.p for path, module in model.named_modules() if isinstance(module, _DropoutNd)}
    high = {name: p for name, p in layers.items() if p >= _HIGH_DROPOUT}
    functions = sorted({p for p in observed.dropouts if p >= _HIGH_DROPOUT} - {*high.values()})
    names = [f"{name} ({p:g})" for name, p in high.items()] + [f"a dropout function ({p:g})" for p in functions]
    if names:
        yield Finding.of("high-dropout", *names)


class _Scaling(NamedTuple):
    """A linear function of each channel."""

    scales: list[float]
    shifts: list[float]

    def worst(self) -> tuple[float, float]:
        return max(self.scales, key=lambda scale: abs(math.log(max(scale, 1e-12)))), max(self.shifts, key=abs)


def _input(expected: torch.Tensor, inputs: dict[str, torch.Tensor | None]) -> Iterator[Finding]:
    """Compare the first layer's input with the normalised images, in each mode."""
    differ = not _all_equal(expected)
    for mode, value in inputs.items():
        if value is not None and value.numel() and differ and _all_equal(value):
            yield Finding.of("constant-input", mode=mode)
            return
    scalings = {mode: _scaling(expected, value.float()) for mode, value in inputs.items() if value is not None}
    for mode, scaling in scalings.items():
        if scaling is None:
            continue
        scale, shift = scaling.worst()
        if _SCALES[0] <= scale <= _SCALES[1] and abs(shift) <= _SHIFT:
            continue
        other = scalings.get("eval" if mode == "training" else "training")
        only = "" if other is None or _alike(scaling, other) else mode
        yield Finding.of("input-scaled-again", scale=scale, shift=shift, only=only)
        return


def _all_equal(samples: torch.Tensor) -> bool:
    return bool((samples == samples[:1]).all())


def _scaling(expected: torch.Tensor, actual: torch.Tensor) -> _Scaling | None:
    """Return the linear function of each channel that maps `expected` to `actual`; None where there is none."""
    if actual.numel() != expected.numel() or len(actual) != len(expected):
        return None
    if actual.shape != expected.shape:
        if actual.dim() != 2:
            return None
        actual = actual.view_as(expected)  # flattened, in the same order
    scaling = _Scaling([], [])
    for channel in range(expected.shape[1]):
        before, after = expected[:, channel].double().flatten(), actual[:, channel].double().flatten()
        spread = before.var(correction=0)
        if spread <= 0:
            return None
        scale = float(((before - before.mean()) * (after - after.mean())).mean() / spread)
        unexplained = float((after - after.mean() - scale * (before - before.mean())).square().mean())
        if unexplained > _STRAIGHT * float(after.var(correction=0)):
            return None
        scaling.scales.append(abs(scale))
        scaling.shifts.append(float(after.mean()) - scale * float(before.mean()))
    return scaling


def _alike(first: _Scaling, second: _Scaling) -> bool:
    return np.allclose(first.scales, second.scales, rtol=0.05) and np.allclose(first.shifts, second.shifts, atol=0.05)


def _depends_on_mode(module: nn.Module) -> bool:
    """Return whether a layer differs in training; a batch norm that is frozen on purpose does not count."""
    if isinstance(module, _BatchNorm):
        own = list(module.parameters(recurse=False))
        return not own or any(parameter.requires_grad for parameter in own)
    return isinstance(module, _DropoutNd) and module.p > 0


def _statistics(norm: _BatchNorm) -> torch.Tensor:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    return torch.cat([norm.running_mean, norm.running_var])
