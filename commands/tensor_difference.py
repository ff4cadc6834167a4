"""Bitwise comparison of two sets of tensors."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["tensor_difference"]


def tensor_difference(a: "Mapping[str, torch.Tensor]", b: "Mapping[str, torch.Tensor]") -> str | None:
    """Describe how B differs from A in one line; None if all bits are equal. 0 differs from -0, NaN equals itself."""
    import torch

    mismatched, different, largest, where = [], 0, -1.0, ""
    for name in sorted(a.keys() | b.keys()):
        if name not in a or name not in b or (a[name].dtype, a[name].shape) != (b[name].dtype, b[name].shape):
            mismatched.append(name)
            continue
        # The bytes of each element: uint8 (elements, bytes).
        first, second = (tensors[name].contiguous().reshape(-1, 1).view(torch.uint8) for tensors in (a, b))
        if count := int((first != second).any(1).sum()):
            different += count
            distance = (a[name].double() - b[name].double()).abs().nan_to_num(nan=float("inf")).max()
            largest, where = max((largest, where), (float(distance), name), key=lambda pair: pair[0])
    sentences = [f"{', '.join(mismatched)}: in one only, or of another shape or type"] if mismatched else []
    if different:
        numbers = sum(tensor.numel() for tensor in a.values())
        sentences.append(f"{different:,} of {numbers:,} numbers differ, by up to {largest:.3g}, in {where}")
    return "; ".join(sentences) or None
