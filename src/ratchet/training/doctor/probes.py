"""Probes of a model: what it does to samples, to its own state and to its input, measured on a few forward passes."""

import contextlib
import copy
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.modules.dropout import _DropoutNd

from ratchet.training.device import seed_step
from ratchet.training.doctor.calls import Recorder, Steady
from ratchet.training.doctor.findings import Finding, some
from ratchet.training.models import Classifier

__all__ = [
    "Unit",
    "examine_independence",
    "examine_modes",
    "examine_passes",
    "examine_units",
    "positions_counted",
    "short",
    "weighted_layers",
]

_ROWS, _ROWS_LARGE = 8, 6  # samples of the probes for dependence between samples; fewer where all have more values than
_LARGE = 1 << 20
_GRADIENT_ROWS = 4  # samples of the probe for unused input
_MIXED = 1e-4  # share of the largest logit that counts as more than rounding
_NUDGE = 1e-3  # noise added to weights before passes are watched
_DIFFERS = 1e-2  # share of the largest logit by which a sample alone may differ from the same sample in a batch
_SAME = 1e-3  # the same, between two passes from one seed
_STIR = 0.1  # noise added to weights before a probe, as a share of their standard deviation
_FROM_ZERO = 0.02  # the same, for weights that are all equal
_HIGH_DROPOUT = 0.9
_CHANCES = 20  # passes in which a layer that is skipped at random may run
_LOW_MOMENTUM, _HIGH_MOMENTUM = 1e-4, 0.9  # mnasnet has 3e-4, fastnet .4
_FEWEST_UNITS = 4  # in a layer, for a share of them to say anything
_DEAD = 0.5  # share of units; the highest of the fresh models calibrated on: see docs/preflight.md
_MANY_POSITIONS = 256  # values of a unit in a step, from which on it is not off by chance
_UNLIKELY = 1e-4
_EQUAL = 0.5  # share of units with the weights of another unit
_UNUSED = 0.5  # share of pixels
_SCALES = 0.7, 1.4  # factors between the normalised images and what the first layer gets
_SHIFT = 0.5  # the same, in standard deviations of the normalised images
_STRAIGHT = 1e-4  # share of variance that may be left when one is a linear function of the other

Unit = dict[str, torch.Tensor]  # layer name -> bool (units,): whether a gradient has reached the unit


def examine_modes(model: Classifier, *, pretrained: bool) -> Iterator[Finding]:
    """Check that train() and eval() reach every part, as an overridden train() may prevent.

    Frozen batch norms of pretrained weights are usual and no finding.
    """
    model.eval()
    stuck = [short(name) for name, module in model.named_modules() if module.training]
    if stuck:
        yield Finding(
            "eval mode",
            f"model.eval() leaves {some(stuck)} in training mode",
            "let an overridden train() or eval() call super(), and switch every part",
        )
    model.train()
    stuck = [
        short(name) or "the model"
        for name, module in model.named_modules()
        if not module.training and (name in ("", "network") or _depends_on_mode(module))
    ]
    if stuck and not pretrained:
        norms = any(isinstance(module, _BatchNorm) and not module.training for module in model.modules())
        effect = ": its batch norms keep their initial statistics" if norms else ""
        yield Finding(
            "training mode",
            f"model.train() leaves {some(stuck)} in eval mode{effect}",
            "let an overridden train() call super().train(mode) and switch every part; freezing batch norm needs "
            "pretrained weights (model.pretrained)",
        )


def examine_passes(model: Classifier, images: torch.Tensor, seed: int, *, pretrained: bool) -> Iterator[Finding]:
    """Watch three passes in training mode, two of them from one seed, and one in eval mode.

    Weights are changed a little first, so that a constant that forward() writes into them shows.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.add_(_NUDGE * torch.randn_like(parameter))
        start = copy.deepcopy(model.state_dict())  # with the versions of modules, which a plain dict has not
        passes = []
        for drawn in (0, 0, 1):
            model.load_state_dict(start, strict=False)
            passes.append(_Pass.of(model, images, "training", seed=seed + drawn))
        for drawn in range(1, _CHANCES):  # stochastic depth leaves out some layers in each pass
            if not passes[0].unmoved:
                break
            model.load_state_dict(start, strict=False)
            still = _Pass.of(model, images, "training", seed=seed + drawn).unmoved
            passes[0] = replace(passes[0], unmoved=[name for name in passes[0].unmoved if name in still])
        model.load_state_dict(start, strict=False)
        evaluated = _Pass.of(model, images, "eval", seed=seed)
    yield from _randomness(*passes)
    yield from _batch_norms(model, passes[0], pretrained=pretrained)
    yield from _dropouts(model, passes[0])
    yield from _input(model.normalised(images).float(), passes[0].first, evaluated.first)
    for each in (passes[0], evaluated):
        if each.changed:
            yield Finding(
                "changed in forward",
                f"a forward pass in {each.mode} mode changes {some(each.changed)}, without an optimizer step",
                "do not assign to weights or buffers in forward(): set initial weights in __init__, and update "
                "buffers in training mode only",
            )
            break


@dataclass(frozen=True)
class _Pass:
    """What was seen in one forward pass."""

    mode: str
    logits: torch.Tensor
    generators: dict[str, bytes]  # states of the global generators afterwards
    first: torch.Tensor | None  # input of the first layer
    dropouts: list[float]
    changed: list[str]  # parameters, and in eval mode buffers, that are not as before
    unmoved: list[str]  # batch norms in training mode whose running statistics are as before

    @classmethod
    def of(cls, model: Classifier, images: torch.Tensor, mode: str, *, seed: int) -> "_Pass":
        """Make the pass from a seed."""
        model.train(mode == "training")
        norms = {name: one for name, one in _batch_norm_layers(model).items() if one.training and _tracks(one)}
        statistics = {name: _statistics(one) for name, one in norms.items()}
        watched = [*model.named_parameters(), *(model.named_buffers() if mode == "eval" else ())]
        before = {name: one.detach().clone() for name, one in watched}  # in training mode buffers may move
        seed_step(seed, 0, images.device)
        with Recorder() as calls:
            logits = model(images)
        generators = _generators(images.device)
        after = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        changed = [short(name) for name, one in before.items() if name in after and not _same(one, after[name])]
        unmoved = [
            name for name, one in norms.items() if one.training and torch.equal(statistics[name], _statistics(one))
        ]
        return cls(mode, logits, generators, calls.first, calls.dropouts, changed, unmoved)


def _randomness(first: _Pass, again: _Pass, other: _Pass) -> Iterator[Finding]:
    """Compare passes from one seed, and what two seeds leave of the generators' states."""
    if not _close(first.logits, again.logits, _SAME):
        yield Finding(
            "randomness",
            "in training mode two passes over the same images, from the same weights and seed, give different logits "
            f"(largest difference {_difference(first.logits, again.logits):.3g}): the model draws from a generator of "
            "its own, or counts its calls outside its buffers, and a resumed run does not find that state again",
            "draw from torch without generator=, and keep counters in buffers (register_buffer)",
        )
    seeded = [name for name, state in first.generators.items() if state == other.generators[name]]
    if seeded:
        yield Finding(
            "randomness",
            f"forward() seeds {some(seeded)} itself: it draws the same numbers in every step",
            "leave the seeding out: it is done for each step",
        )


def _batch_norms(model: Classifier, watched: _Pass, *, pretrained: bool) -> Iterator[Finding]:
    """Check that running statistics exist, move in training, and average over more than the last batch."""
    norms = _batch_norm_layers(model)
    untracked = [name for name, one in norms.items() if not _tracks(one)]
    if untracked:
        yield Finding(
            "batch norm",
            f"{some(untracked)} has no running statistics (track_running_stats=False): in eval mode the logits of a "
            "sample depend on the other samples of its batch",
            "leave track_running_stats at its default, True; or use group or layer norm",
        )
    fast = [f"{name} ({one.momentum:g})" for name, one in norms.items() if (one.momentum or 0.0) >= _HIGH_MOMENTUM]
    if fast:
        yield Finding(
            "batch norm",
            f"the momentum of {some(fast)} leaves running statistics that are those of the last batch",
            "PyTorch's momentum is the weight of the new batch: where TensorFlow has 0.99, set 0.01",
            "warning",
        )
    tracking = {name: one for name, one in norms.items() if _tracks(one)}
    slow = [name for name, one in tracking.items() if one.momentum is not None and one.momentum < _LOW_MOMENTUM]
    still = sorted({*watched.unmoved, *slow})
    if still and not pretrained:
        rates = sorted({f"{one.momentum:g}" for name in slow if (one := norms[name]).momentum is not None})
        known = f" (momentum {', '.join(rates)})" if slow else ""
        yield Finding(
            "batch norm",
            f"the running statistics of {some(still)} do not move in training{known}: eval mode normalises with the "
            "initial mean 0 and variance 1",
            "set momentum to 0.1, and call the layer in forward()",
        )


def _dropouts(model: Classifier, watched: _Pass) -> Iterator[Finding]:
    """Check the probabilities of dropout layers, and of dropout functions that run in training mode."""
    high = {
        short(name): one.p
        for name, one in model.named_modules()
        if isinstance(one, _DropoutNd) and one.p >= _HIGH_DROPOUT
    }
    functions = sorted({p for p in watched.dropouts if p >= _HIGH_DROPOUT} - {*high.values()})
    named = [f"{name} ({p:g})" for name, p in high.items()] + [f"a dropout function ({p:g})" for p in functions]
    if named:
        yield Finding(
            "dropout",
            f"{some(named)} drops nine values of ten or more: hardly any signal gets through in training",
            "the argument is the share that is dropped, not the share that is kept: take 0.1 to 0.5",
        )


def _input(wanted: torch.Tensor, training: torch.Tensor | None, evaluated: torch.Tensor | None) -> Iterator[Finding]:
    """Compare the first layer's input with the normalised images, in both modes."""
    found = {
        mode: _affine(wanted, first.float())
        for mode, first in (("training", training), ("eval", evaluated))
        if first is not None
    }
    for mode, scaling in found.items():
        if scaling is None:
            continue
        scales, shifts = scaling
        worst = max(range(len(scales)), key=lambda channel: abs(math.log(max(scales[channel], 1e-12))))
        shifted = max(range(len(shifts)), key=lambda channel: abs(shifts[channel]))
        if _SCALES[0] <= scales[worst] <= _SCALES[1] and abs(shifts[shifted]) <= _SHIFT:
            continue
        other = found.get("eval" if mode == "training" else "training")
        only = f" in {mode} mode, not in {'eval' if mode == 'training' else 'training'} mode"
        yield Finding(
            "input scale",
            f"the first layer gets the normalised images times {scales[worst]:.3g} plus {shifts[shifted]:+.3g}"
            f"{only if other is not None and not _alike(scaling, other) else ''}: forward() scales its input again",
            "remove the normalisation, the division by 255 or the factor from forward(): images arrive with mean 0 and "
            "standard deviation 1, in training, validation and use",
        )
        return


def examine_independence(model: Classifier, images: torch.Tensor, seed: int) -> Iterator[Finding]:
    """Check that the logits of a sample depend on that sample alone, and on all of its channels and pixels.

    In training mode batch norms use their running statistics for it; dropouts are off.
    """
    _stir(model)
    images = images[: _ROWS if images.numel() <= _LARGE else _ROWS_LARGE].float()
    model.eval()
    untracked = any(not _tracks(one) for one in _batch_norm_layers(model).values())  # named by another check
    with torch.no_grad():
        with Steady() if untracked else contextlib.nullcontext():
            whole, mixing = _mixing(model, images, seed)
        if mixing:
            yield _dependent("eval", mixing)
        elif not untracked:
            yield from _alone(model, images, whole)
        if not mixing:
            model.train()
            with Steady():
                mixing = _mixing(model, images, seed)[1]
            if mixing:
                yield _dependent("training", mixing)
    model.eval()
    yield from _unused(model, images[:_GRADIENT_ROWS])


def examine_units(alive: Unit, positions: dict[str, int], model: Classifier) -> Iterator[Finding]:
    """Check for units that no gradient has reached, and for units with equal weights.

    A unit that was seen at few positions, as behind a global pooling, may be off for all of them by chance: there the
    count must be more than chance explains.

    Args:
        alive: from a few training steps.
        positions: how many values of each layer's unit were seen in a step.
    """
    layers = weighted_layers(model)
    dead = []
    for name, reached in alive.items():
        count, units = int((~reached).sum()), len(reached)
        if units < _FEWEST_UNITS or count == units or count < _DEAD * units:  # none reached: named by another check
            continue
        if positions.get(name, 0) >= _MANY_POSITIONS or _by_chance(count, units) < _UNLIKELY:
            dead.append(f"{count} of {units} in {short(name) or 'the model'}")
    if dead:
        yield Finding(
            "dead units",
            f"no gradient reached these units in several steps: {some(dead)}; their output is constant, or nothing "
            "uses it",
            "look for a large negative bias before a ReLU, weights of zero, or a mask that removes channels",
        )
    equal = []
    for name, layer in layers.items():
        rows = layer.weight.detach().flatten(1)
        if len(rows) < _FEWEST_UNITS or not rows.count_nonzero():
            continue
        double = len(rows) - len(torch.unique(rows, dim=0))
        if double / (len(rows) - 1) >= _EQUAL:
            equal.append(f"{double + 1} of {len(rows)} in {short(name) or 'the model'}")
    if equal:
        yield Finding(
            "equal weights",
            f"units of one layer have the same weights: {some(equal)}; they get the same gradients and stay one unit",
            "initialise weights at random, with the default or torch.nn.init; only biases may be constant",
        )


def weighted_layers(model: nn.Module) -> "dict[str, nn.Linear | _ConvNd]":
    """Linear layers and convolutions whose weight is a parameter with one row for each output unit, by name."""
    return {
        name: one
        for name, one in model.named_modules()
        if isinstance(one, nn.Linear | _ConvNd)
        and not isinstance(one, _ConvTransposeNd)
        and one._parameters.get("weight") is not None  # computed from other parameters, as by a weight norm, it is not
    }


@contextlib.contextmanager
def positions_counted(model: nn.Module, positions: dict[str, int]) -> Iterator[None]:
    """Note, for each weighted layer that runs inside, how many values each of its units gives."""

    def note(name: str, units: int, output: object) -> None:
        if isinstance(output, torch.Tensor):
            positions[name] = output.numel() // units

    hooks = [
        layer.register_forward_hook(lambda module, _, output, name=name: note(name, len(module.weight), output))
        for name, layer in weighted_layers(model).items()
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def short(path: str) -> str:
    """A path as the model's author knows it: without the wrapper that normalises."""
    return path.removeprefix("network").removeprefix(".")


def _stir(model: Classifier) -> None:
    """Add noise to weights, so that layers that begin from zeros let signal and gradient through."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2 and parameter.is_floating_point():
                spread = float(parameter.std()) if parameter.numel() > 1 else 0.0
                noise = torch.randn(parameter.shape, generator=generator).to(parameter)
                parameter.add_(noise, alpha=_STIR * spread or _FROM_ZERO)


def _mixing(model: Classifier, images: torch.Tensor, seed: int) -> tuple[torch.Tensor, float]:
    """Logits, and how much those of unchanged samples change when every other sample is replaced.

    The change is a share of the largest logit; 0 where it is rounding, or where there is one sample only.
    """
    others = images.clone()
    others[::2] = 2.0 * images.amax() - 1.5 * images[::2].flip(2, 3)
    buffers = [(one, one.clone()) for one in model.buffers()]
    logits = []
    for given in (images, others):
        seed_step(seed, 0, images.device)
        logits.append(model(given))
        for one, before in buffers:
            one.copy_(before)  # a spectral norm moves its estimate in every pass
    if len(images) < 2 or len(logits[0]) != len(images):
        return logits[0], 0.0
    largest = float(logits[0].abs().max())
    share = _difference(logits[0][1::2], logits[1][1::2]) / largest if largest else 0.0
    return logits[0], share if share > _MIXED else 0.0


def _dependent(mode: str, share: float) -> Finding:
    aside = " (batch norm set aside)" if mode == "training" else ""
    return Finding(
        "mixed samples",
        f"in {mode} mode the logits of a sample depend on other samples of the batch{aside}: replacing "
        f"those changes them by {share:.2g} of the largest",
        "look for a reshape, view or transpose that joins the batch axis with another, an operation over dim 0 (mean, "
        "softmax, norm), or a permutation of the samples",
    )


def _alone(model: Classifier, images: torch.Tensor, whole: torch.Tensor) -> Iterator[Finding]:
    """Compare a sample alone with the same sample in a batch."""
    alone = model(images[:1])
    if alone.shape != whole[:1].shape:
        yield Finding(
            "mixed samples",
            f"a batch of one sample gets logits of shape {tuple(alone.shape)}, not {tuple(whole[:1].shape)}",
            "take squeeze() out of forward(), or name its axis: flatten(1) keeps the batch axis",
        )
        return
    if _close(alone, whole[:1], _DIFFERS):
        return
    ratio = alone / whole[:1]
    if len(images) > 1 and torch.allclose(ratio, torch.full_like(ratio, len(images)), rtol=0.05):
        cause = f"logits are divided by the batch size: a sample alone gets {len(images)} times those in a batch of "
        told, fix = f"{cause}{len(images)}", "divide by nothing: the loss takes the mean over the batch itself"
    else:
        told = (
            f"in eval mode a sample alone gets other logits than in a batch of {len(images)} (largest difference "
            f"{_difference(alone, whole[:1]):.3g}): they depend on the batch"
        )
        fix = "look for len(batch), a statistic over dim 0 or a batch norm that always takes those of the batch"
    yield Finding("mixed samples", told, fix)


def _unused(model: Classifier, images: torch.Tensor) -> Iterator[Finding]:
    """Channels and pixels that no logit depends on."""
    given = images.clone().requires_grad_()
    logits = model(given)
    if not logits.requires_grad:
        return
    weights = torch.linspace(1.0, 2.0, logits[0].numel(), device=logits.device, dtype=logits.dtype).view_as(logits[0])
    (gradient,) = torch.autograd.grad((logits * weights).sum(), given, allow_unused=True)
    if gradient is None or not gradient.count_nonzero():
        return
    used = gradient != 0
    channels = [str(number) for number, one in enumerate(used.any(3).any(2).any(0).tolist()) if not one]
    unseen = 1.0 - float(used.any(1).any(0).float().mean())
    if channels or unseen >= _UNUSED:
        what = f"channel {some(channels)}" if channels else f"{unseen:.0%} of the pixels"
        yield Finding(
            "unused input",
            f"no logit depends on {what} of the images",
            "look for an index or a slice in forward() that leaves them out",
            "warning",
        )


def _affine(wanted: torch.Tensor, found: torch.Tensor) -> tuple[list[float], list[float]] | None:
    """Scale and shift of each channel that turn `wanted` into `found`; None where that is not what happened."""
    if found.numel() != wanted.numel() or len(found) != len(wanted):
        return None
    if found.shape != wanted.shape:
        if found.dim() != 2:
            return None
        found = found.view_as(wanted)  # flattened, in the same order
    scales, shifts = [], []
    for channel in range(wanted.shape[1]):
        before, after = wanted[:, channel].double().flatten(), found[:, channel].double().flatten()
        spread = before.var(correction=0)
        if spread <= 0:
            return None
        scale = float(((before - before.mean()) * (after - after.mean())).mean() / spread)
        left = float((after - after.mean() - scale * (before - before.mean())).square().mean())
        if left > _STRAIGHT * float(after.var(correction=0)):
            return None
        scales.append(abs(scale))
        shifts.append(float(after.mean()) - scale * float(before.mean()))
    return scales, shifts


def _alike(one: tuple[list[float], list[float]], other: tuple[list[float], list[float]]) -> bool:
    return bool(np.allclose(one[0], other[0], rtol=0.05) and np.allclose(one[1], other[1], atol=0.05))


def _depends_on_mode(module: nn.Module) -> bool:
    """Whether a layer does something else in training; a batch norm that is frozen on purpose does not count."""
    if isinstance(module, _BatchNorm):
        own = list(module.parameters(recurse=False))
        return not own or any(one.requires_grad for one in own)
    return isinstance(module, _DropoutNd) and module.p > 0


def _batch_norm_layers(model: nn.Module) -> dict[str, _BatchNorm]:
    return {short(name): one for name, one in model.named_modules() if isinstance(one, _BatchNorm)}


def _tracks(norm: _BatchNorm) -> bool:
    return norm.running_mean is not None and norm.running_var is not None


def _statistics(norm: _BatchNorm) -> torch.Tensor:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    return torch.cat([norm.running_mean, norm.running_var])


def _generators(device: torch.device) -> dict[str, bytes]:
    """States of the global generators."""
    states = {
        "random": repr(random.getstate()).encode(),
        "numpy.random": np.random.get_state()[1].tobytes(),  # type: ignore[index]  # the array of the five
        "torch": torch.get_rng_state().numpy().tobytes(),
    }
    if device.type == "cuda":
        states["torch.cuda"] = torch.cuda.get_rng_state(device).numpy().tobytes()
    return states


def _by_chance(count: int, units: int) -> float:
    """Probability that so many of the units or more are off, when each is with probability one half."""
    return float(sum(math.comb(units, number) for number in range(count, units + 1)) / 2**units)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one, other)


def _close(one: torch.Tensor, other: torch.Tensor, share: float) -> bool:
    return _difference(one, other) <= share * float(other.detach().abs().max())


def _difference(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.detach() - other.detach()).abs().max())
