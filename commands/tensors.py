"""Bitwise comparison of two sets of tensors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["TensorDifference", "compare_tensors", "describe_weights"]


@dataclass(frozen=True)
class TensorDifference:
    """Difference of one tensor. `mismatch` says why its elements cannot be compared."""

    name: str
    elements: int = 0
    different: int = 0  # elements whose bits differ
    largest: float = 0.0  # absolute difference of two elements
    mismatch: str = ""

    def __str__(self) -> str:
        if self.mismatch:
            return f"tensor {self.name} {self.mismatch}"
        return f"tensor {self.name}: {self.different} of {self.elements} elements, by up to {self.largest:.3g}"


def compare_tensors(a: "Mapping[str, torch.Tensor]", b: "Mapping[str, torch.Tensor]") -> list[TensorDifference]:
    """Compare bits, not values: 0 differs from -0, and NaN equals itself. Return differences in the order of names."""
    differences = []
    for name in sorted(a.keys() | b.keys()):
        if name not in a or name not in b:
            differences.append(TensorDifference(name, mismatch="is in one only"))
            continue
        first, second = a[name], b[name]
        if (first.dtype, first.shape) != (second.dtype, second.shape):
            mismatch = f"is {first.dtype} {tuple(first.shape)}, then {second.dtype} {tuple(second.shape)}"
            differences.append(TensorDifference(name, mismatch=mismatch))
        elif different := int((_bits(first) != _bits(second)).any(1).sum()):
            distance = (first.double() - second.double()).abs().nan_to_num(nan=float("inf"))
            differences.append(TensorDifference(name, first.numel(), different, float(distance.max())))
    return differences


def describe_weights(weights: "Mapping[str, torch.Tensor]", differences: Sequence[TensorDifference]) -> str:
    """Summarise the differences from `weights` in one line."""
    numbers = sum(tensor.numel() for tensor in weights.values())
    if not differences:
        return f"all {len(weights):,} tensors, {numbers:,} numbers, are identical"
    mismatches = [difference.name for difference in differences if difference.mismatch]
    sentences = [f"{', '.join(mismatches)}: in one only, or of another shape or type"] if mismatches else []
    if different := sum(difference.different for difference in differences):
        largest = max(differences, key=lambda difference: (not difference.mismatch, difference.largest))
        sentences.append(
            f"{different:,} of {numbers:,} numbers differ, by up to {largest.largest:.3g}, in {largest.name}"
        )
    return "; ".join(sentences)


def _bits(tensor: "torch.Tensor") -> "torch.Tensor":
    """Return the bytes of each element, uint8 (elements, bytes)."""
    import torch

    return tensor.contiguous().reshape(-1, 1).view(torch.uint8)
