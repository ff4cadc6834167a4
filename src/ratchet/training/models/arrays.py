"""Networks for named arrays: an MLP over all values of a sample, and gradient-boosted trees over the same values."""

from dataclasses import replace

import torch
from torch import nn

from ratchet.kinds import Array, ArraysInput, Column, TableInput
from ratchet.problems import Target
from ratchet.training.models.convnet import Dropout
from ratchet.training.models.trees import Trees

__all__ = ["ArrayTrees", "ArraysFront", "ArraysMLP", "as_table", "flattened"]

CHOSEN_BY = {"kind": ("arrays",)}

_WIDTH = 256
_DROPOUT = 0.1


class ArraysFront(nn.Module):
    """Scales floating-point arrays to mean 0 and standard deviation 1 of the training values. Others stay.

    Far values count as the array's limits.
    """

    def __init__(self, input_spec: ArraysInput) -> None:
        super().__init__()
        self.arrays = input_spec.arrays

    def forward(self, *arrays: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(
            _scaled(values, array) if array.is_scaled else values
            for values, array in zip(arrays, self.arrays, strict=True)
        )


class ArraysMLP(nn.Module):
    """An MLP with two hidden layers over all values of a sample. Integers are scaled here, as numbers."""

    def __init__(self, input: ArraysInput, target: Target) -> None:
        super().__init__()
        self.arrays = [
            replace(array, mean=0.0, std=1.0, limits=()) if array.is_scaled else array for array in input.arrays
        ]
        layers: list[nn.Module] = []
        for inside in (input.size, _WIDTH):
            layers += [nn.Linear(inside, _WIDTH), nn.ReLU(), Dropout(_DROPOUT)]
        self.layers = nn.Sequential(*layers, nn.Linear(_WIDTH, target.outputs))

    def forward(self, *arrays: torch.Tensor) -> torch.Tensor:
        """Return outputs (n, outputs), from the arrays that `ArraysFront` returns."""
        scaled = (_scaled(values.float(), array) for values, array in zip(arrays, self.arrays, strict=True))
        outputs: torch.Tensor = self.layers(flattened(*scaled))
        return outputs


class ArrayTrees(Trees):
    """`Trees` over all values of a sample."""

    def __init__(self, input: ArraysInput, target: Target) -> None:
        super().__init__(as_table(input), target)

    def forward(self, *arrays: torch.Tensor) -> torch.Tensor:
        """Return outputs (n, outputs), from the arrays that `ArraysFront` returns."""
        values = flattened(*arrays)
        return super().forward(values, torch.zeros_like(values), values[:, :0].long())


def _scaled(values: torch.Tensor, array: Array) -> torch.Tensor:
    """Return values in standard deviations from the mean."""
    if array.limits:
        values = values.clamp(*array.limits)
    return (values - array.mean) / array.std


def flattened(*arrays: torch.Tensor) -> torch.Tensor:
    """Return all values of each sample, float32 (n, values)."""
    return torch.cat([values.float().reshape(values.shape[0], -1) for values in arrays], 1)


def as_table(input_spec: ArraysInput) -> TableInput:
    """Return the table with a numeric column for each value of a sample, scaled as by `ArraysFront`."""
    plain = input_spec.unscaled.arrays
    scaling = {
        array.name: array if array.is_scaled else raw for array, raw in zip(input_spec.arrays, plain, strict=True)
    }
    return TableInput(
        tuple(
            Column(f"{name} {place}", "numeric", array.mean, array.std, limits=array.limits)
            for name, array in scaling.items()
            for place in range(array.size)
        )
    )
