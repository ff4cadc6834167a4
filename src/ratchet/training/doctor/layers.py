"""Layers of the examined model by the names that its author knows, and checks of their units."""

import contextlib
import math
from collections.abc import Iterable, Iterator

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from ratchet.training.doctor.rules import Finding

__all__ = [
    "batch_norms",
    "check_dead_units",
    "check_equal_weights",
    "layer_name",
    "layer_names",
    "mark_reached_units",
    "tracks",
    "values_counted",
    "weighted_layers",
]

WeightedLayer = nn.Linear | _ConvNd
_FEWEST_UNITS = 4  # in a layer, for a share of them to be meaningful
_DEAD = 0.5  # share of units; the highest of the fresh models calibrated on: see docs/preflight.md
_MANY_VALUES = 256  # of a unit in a step, above which it is not off by chance
_UNLIKELY = 1e-4
_EQUAL = 0.5  # share of units with the weights of another unit


def layer_name(path: str) -> str:
    """Return a path within the author's network, without the classifier that wraps it; "the model" for the whole."""
    return path.removeprefix("network").removeprefix(".") or "the model"


def layer_names(paths: Iterable[str]) -> tuple[str, ...]:
    """Return each name once, in the order of the paths."""
    return tuple(dict.fromkeys(map(layer_name, paths)))


def batch_norms(model: nn.Module) -> dict[str, _BatchNorm]:
    """Return the batch norms by name."""
    return {layer_name(path): module for path, module in model.named_modules() if isinstance(module, _BatchNorm)}


def tracks(norm: _BatchNorm) -> bool:
    """Return whether a batch norm has running statistics."""
    return norm.running_mean is not None and norm.running_var is not None


def weighted_layers(model: nn.Module) -> dict[str, WeightedLayer]:
    """Return the linear layers and convolutions whose weight is a parameter with one row for each output unit."""
    return {
        layer_name(path): module
        for path, module in model.named_modules()
        if isinstance(module, WeightedLayer)
        and not isinstance(module, _ConvTransposeNd)
        and module._parameters.get("weight") is not None  # a weight norm computes it from other parameters
    }


@contextlib.contextmanager
def values_counted(model: nn.Module, counts: dict[str, int]) -> Iterator[None]:
    """Set `counts` to the number of values that each unit of a weighted layer gives in a forward pass inside."""

    def count(name: str, units: int, output: object) -> None:
        if isinstance(output, torch.Tensor):
            counts[name] = output.numel() // units

    hooks = [
        layer.register_forward_hook(lambda module, _, output, name=name: count(name, len(module.weight), output))
        for name, layer in weighted_layers(model).items()
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def mark_reached_units(model: nn.Module, reached: dict[str, torch.Tensor]) -> None:
    """Add to `reached` which units of each layer have a gradient: layer name -> bool (units,)."""
    for name, layer in weighted_layers(model).items():
        gradient = layer.weight.grad
        if gradient is not None:
            now = gradient.flatten(1).count_nonzero(1) > 0
            reached[name] = reached[name] | now if name in reached else now


def check_dead_units(reached: dict[str, torch.Tensor], values: dict[str, int]) -> Iterator[Finding]:
    """Look for layers of which a large share of units has no gradient.

    A unit with few values in a step, as behind a global pooling, may be off for all of them by chance: there the count
    must be significant.

    Args:
        reached: from a few training steps; see `mark_reached_units`.
        values: number of values of a unit in a step, by layer.
    """
    dead = []
    for name, alive in reached.items():
        count, units = int((~alive).sum()), len(alive)
        if units < _FEWEST_UNITS or count == units or count < _DEAD * units:  # all: "no-gradient" reports it
            continue
        if values.get(name, 0) >= _MANY_VALUES or _probability(count, units) < _UNLIKELY:
            dead.append(f"{count} of {units} in {name}")
    if dead:
        yield Finding.of("dead-units", *dead)


def check_equal_weights(model: nn.Module) -> Iterator[Finding]:
    """Look for layers of which a large share of units has the weights of another unit."""
    equal = []
    for name, layer in weighted_layers(model).items():
        rows = layer.weight.detach().flatten(1)
        if len(rows) < _FEWEST_UNITS or not rows.count_nonzero():
            continue
        duplicates = len(rows) - len(torch.unique(rows, dim=0))
        if duplicates / (len(rows) - 1) >= _EQUAL:
            equal.append(f"{duplicates + 1} of {len(rows)} in {name}")
    if equal:
        yield Finding.of("equal-weights", *equal)


def _probability(count: int, units: int) -> float:
    """Return the probability that `count` units or more are off, when each is with probability one half."""
    return float(sum(math.comb(units, number) for number in range(count, units + 1)) / 2**units)
