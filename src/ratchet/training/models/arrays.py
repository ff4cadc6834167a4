"""Networks for named arrays: an MLP over all values of a sample, and gradient-boosted trees over the same values."""

import torch
from torch import nn

from ratchet.kinds import ArraysInput, Column, TableInput, Target
from ratchet.training.models.convnet import Dropout
from ratchet.training.models.trees import Trees

__all__ = ["ArrayTrees", "ArraysFront", "ArraysMLP", "as_table", "flattened"]

_WIDTH = 256
_DROPOUT = 0.1


class ArraysFront(nn.Module):
    """Scales floating-point arrays to mean 0 and standard deviation 1 of the training values. Others stay."""

    def __init__(self, described: ArraysInput) -> None:
        super().__init__()
        self.scales = [(array.mean, array.std) if array.is_scaled else None for array in described.arrays]

    def forward(self, *arrays: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(
            values if scale is None else (values - scale[0]) / scale[1]
            for values, scale in zip(arrays, self.scales, strict=True)
        )


class ArraysMLP(nn.Module):
    """An MLP with two hidden layers over all values of a sample. Integers are scaled here, as numbers."""

    def __init__(self, input: ArraysInput, target: Target) -> None:
        super().__init__()
        self.scales = [(0.0, 1.0) if array.is_scaled else (array.mean, array.std) for array in input.arrays]
        layers: list[nn.Module] = []
        for inside in (input.size, _WIDTH):
            layers += [nn.Linear(inside, _WIDTH), nn.ReLU(), Dropout(_DROPOUT)]
        self.layers = nn.Sequential(*layers, nn.Linear(_WIDTH, target.outputs))

    def forward(self, *arrays: torch.Tensor) -> torch.Tensor:
        """Return outputs (n, outputs), from the arrays that `ArraysFront` returns."""
        scaled = ((values.float() - mean) / std for values, (mean, std) in zip(arrays, self.scales, strict=True))
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


def flattened(*arrays: torch.Tensor) -> torch.Tensor:
    """Return all values of each sample, float32 (n, values)."""
    return torch.cat([values.float().reshape(values.shape[0], -1) for values in arrays], 1)


def as_table(described: ArraysInput) -> TableInput:
    """Return the table with a numeric column for each value of a sample, scaled as by `ArraysFront`."""
    return TableInput(
        tuple(
            Column(f"{array.name} {place}", "numeric", *((array.mean, array.std) if array.is_scaled else ()))
            for array in described.arrays
            for place in range(array.size)
        )
    )
