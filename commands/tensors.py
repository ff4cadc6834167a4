"""Bitwise comparison of two sets of tensors."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["TensorComparison", "TensorDifference", "compare_tensors"]


@dataclass(frozen=True)
class TensorDifference:
    """Difference of one tensor. `largest` is the largest absolute difference of two elements."""

    name: str
    elements: int
    different: int  # elements whose bits differ
    largest: float


@dataclass(frozen=True)
class TensorComparison:
    """Result of a bitwise comparison; `differences` and `mismatches` are in the order of the names."""

    tensors: int
    elements: int
    differences: tuple[TensorDifference, ...]
    mismatches: Mapping[str, str]  # tensors that only one side has, or of another shape or type -> what is different

    @property
    def identical(self) -> bool:
        """True if every bit is the same."""
        return not self.differences and not self.mismatches

    @property
    def different(self) -> int:
        """Number of elements whose bits differ."""
        return sum(difference.different for difference in self.differences)

    @property
    def largest(self) -> TensorDifference | None:
        """The tensor with the largest difference."""
        return max(self.differences, key=lambda difference: difference.largest, default=None)


def compare_tensors(a: "Mapping[str, torch.Tensor]", b: "Mapping[str, torch.Tensor]") -> TensorComparison:
    """Compare bits, not values: 0 differs from -0, and NaN equals itself."""
    differences, mismatches = [], {}
    for name in sorted(a.keys() | b.keys()):
        if name not in a or name not in b:
            mismatches[name] = "is in one only"
            continue
        first, second = a[name], b[name]
        if (first.dtype, first.shape) != (second.dtype, second.shape):
            mismatches[name] = f"is {first.dtype} {tuple(first.shape)}, then {second.dtype} {tuple(second.shape)}"
        elif different := int((_bits(first) != _bits(second)).any(1).sum()):
            distance = (first.double() - second.double()).abs().nan_to_num(nan=float("inf"))
            differences.append(TensorDifference(name, first.numel(), different, float(distance.max())))
    elements = sum(tensor.numel() for tensor in a.values())
    return TensorComparison(len(a), elements, tuple(differences), mismatches)


def _bits(tensor: "torch.Tensor") -> "torch.Tensor":
    """Return the bytes of each element, uint8 (elements, bytes)."""
    import torch

    return tensor.contiguous().reshape(-1, 1).view(torch.uint8)
