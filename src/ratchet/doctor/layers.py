"""Layers of the examined model by the names that its author knows, and checks of their units."""

import contextlib
import math
from collections.abc import Iterable, Iterator

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.modules.dropout import _DropoutNd

from ratchet.doctor.findings import RULES, Finding

__all__ = [
    "check_dead_units",
    "check_weights",
    "layer_name",
    "layer_names",
    "mark_reached_units",
    "values_counted",
    "weighted_layers",
]

WeightedLayer = nn.Linear | _ConvNd
_FEWEST_UNITS = 4  # in a layer, for a share of them to be meaningful
_MANY_VALUES = 256  # of a unit in a step, above which it is not off by chance
_UNLIKELY = 1e-4


def layer_name(path: str) -> str:
    """Return a path within the author's network, without the classifier that wraps it; "the model" for the whole."""
    return path.removeprefix("network").removeprefix(".") or "the model"


def layer_names(paths: Iterable[str]) -> tuple[str, ...]:
    """Return each name once, in the order of the paths."""
    return tuple(dict.fromkeys(map(layer_name, paths)))


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
    hooks = [
        layer.register_forward_hook(
            lambda module, _, output, name=name: counts.update({name: output.numel() // len(module.weight)})
        )
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
        if layer.weight.grad is not None:
            now = layer.weight.grad.flatten(1).count_nonzero(1) > 0
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
        if units < _FEWEST_UNITS or count == units or count < RULES["dead-units"].limit * units:
            continue  # all: "no-gradient" reports it
        by_chance = sum(math.comb(units, number) for number in range(count, units + 1)) / 2**units
        if values.get(name, 0) >= _MANY_VALUES or by_chance < _UNLIKELY:
            dead.append(f"{count} of {units} in {name}")
    if dead:
        yield Finding.of("dead-units", *dead)


def check_weights(model: nn.Module, *, pretrained: bool) -> Iterator[Finding]:
    """Look for units with the weights of another unit, and for extreme arguments of dropout and batch norm."""
    equal, dropouts, frozen = [], [], []
    for name, layer in weighted_layers(model).items():
        rows = layer.weight.detach().flatten(1)
        duplicates = len(rows) - len(torch.unique(rows, dim=0))
        share = duplicates / max(1, len(rows) - 1)
        if len(rows) >= _FEWEST_UNITS and rows.count_nonzero() and share >= RULES["equal-weights"].limit:
            equal.append(f"{duplicates + 1} of {len(rows)} in {name}")
    for path, module in model.named_modules():
        if isinstance(module, _DropoutNd) and module.p >= RULES["high-dropout"].limit:
            dropouts.append(f"{layer_name(path)} ({module.p:g})")
        low = RULES["frozen-running-statistics"].limit
        if isinstance(module, _BatchNorm) and module.momentum is not None and module.momentum < low:
            frozen.append(layer_name(path))
    if equal:
        yield Finding.of("equal-weights", *equal)
    if dropouts:
        yield Finding.of("high-dropout", *dropouts)
    if frozen and not pretrained:
        yield Finding.of("frozen-running-statistics", *frozen)
