"""Check for units that no gradient reaches, and for units with equal weights."""

import math
from collections.abc import Iterator

import torch
from torch import nn

from ratchet.training.doctor.findings import Finding
from ratchet.training.doctor.layers import weighted_layers

__all__ = ["check_dead_units", "check_equal_weights", "mark_reached_units"]

_FEWEST_UNITS = 4  # in a layer, for a share of them to be meaningful
_DEAD = 0.5  # share of units; the highest of the fresh models calibrated on: see docs/preflight.md
_MANY_VALUES = 256  # of a unit in a step, above which it is not off by chance
_UNLIKELY = 1e-4
_EQUAL = 0.5  # share of units with the weights of another unit


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
        yield Finding("dead-units", tuple(dead))


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
        yield Finding("equal-weights", tuple(equal))


def _probability(count: int, units: int) -> float:
    """Return the probability that `count` units or more are off, when each is with probability one half."""
    return float(sum(math.comb(units, number) for number in range(count, units + 1)) / 2**units)
