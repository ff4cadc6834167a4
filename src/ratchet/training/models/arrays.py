"""The scaling of named arrays, and the network for them that needs no choice: an MLP over all values of a sample."""

import torch
from torch import nn

from ratchet.kinds import ArraysInput, Target
from ratchet.training.models.convnet import Dropout

__all__ = ["ArraysFront", "ArraysMLP"]

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
        for inside in (sum(array.size for array in input.arrays), _WIDTH):
            layers += [nn.Linear(inside, _WIDTH), nn.ReLU(), Dropout(_DROPOUT)]
        self.layers = nn.Sequential(*layers, nn.Linear(_WIDTH, target.outputs))

    def forward(self, *arrays: torch.Tensor) -> torch.Tensor:
        """Return outputs (n, outputs), from the arrays that `ArraysFront` returns."""
        flat = [
            (values.float().reshape(len(values), -1) - mean) / std
            for values, (mean, std) in zip(arrays, self.scales, strict=True)
        ]
        outputs: torch.Tensor = self.layers(torch.cat(flat, 1))
        return outputs
