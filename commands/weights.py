"""Two sets of weights, tensor by tensor and bit by bit."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from commands.checkpoint_difference import bits

if TYPE_CHECKING:
    import torch

__all__ = ["Weights", "compare"]


@dataclass(frozen=True)
class Weights:
    """What a comparison found. `largest` is the largest difference of two numbers, in the tensor `where`."""

    tensors: int
    numbers: int
    different: int  # numbers whose bits differ
    largest: float
    where: str
    unlike: tuple[str, ...]  # tensors that only one has, or that are of another shape or type

    @property
    def identical(self) -> bool:
        """Whether every bit is the same."""
        return not self.different and not self.unlike

    @property
    def words(self) -> str:
        """All of it in one line."""
        if self.identical:
            return f"all {self.tensors:,} tensors, {self.numbers:,} numbers, are the same to the bit"
        told = []
        if self.unlike:
            told.append(f"{', '.join(self.unlike)}: there in one only, or of another shape or type")
        if self.different:
            told.append(
                f"{self.different:,} of {self.numbers:,} numbers differ, by up to {self.largest:.3g}, in {self.where}"
            )
        return "; ".join(told)


def compare(one: "Mapping[str, torch.Tensor]", other: "Mapping[str, torch.Tensor]") -> Weights:
    """Bits decide, not values: 0 is not -0, and NaN is itself."""
    unlike, different, largest, where = [], 0, 0.0, ""
    for name in sorted(one.keys() | other.keys()):
        a, b = one.get(name), other.get(name)
        if a is None or b is None or (a.dtype, a.shape) != (b.dtype, b.shape):
            unlike.append(name)
            continue
        others = int((bits(a) != bits(b)).any(1).sum())
        distance = float((a.double() - b.double()).abs().nan_to_num(nan=float("inf")).max()) if others else 0.0
        different += others
        if others and (distance > largest or not where):
            largest, where = distance, name
    return Weights(len(one), sum(tensor.numel() for tensor in one.values()), different, largest, where, tuple(unlike))
