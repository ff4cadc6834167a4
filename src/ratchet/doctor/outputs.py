"""Check the last operation before the outputs: a function that bounds what the loss expects to be unbounded."""

import math
import re
from collections.abc import Iterator

import torch
from torch.autograd.graph import Node

from ratchet.doctor.findings import RULES, Finding
from ratchet.training.autograd_graph import operation

__all__ = ["check_outputs"]

_REARRANGING = re.compile(
    "Alias|AsStrided|Clone|Contiguous|Expand|Permute|(Unsafe)?(Reshape|View)(Alias)?|Select|Slice|(Un)?[Ss]queeze|T|"
    "ToCopy|Transpose"
)
_SCALING = frozenset({"Add", "Div", "Mul", "Neg", "Sub"})
_BOUNDS = {  # operation -> function, smallest and largest value
    "Softmax": ("softmax", 0.0, 1.0),
    "Sigmoid": ("sigmoid", 0.0, 1.0),
    "Tanh": ("tanh", -1.0, 1.0),
    "Relu": ("ReLU", 0.0, math.inf),
    "Threshold": ("ReLU", 0.0, math.inf),
    "Softplus": ("softplus", 0.0, math.inf),
    "Elu": ("ELU", -1.76, math.inf),
    "Gelu": ("GELU", -0.17, math.inf),
    "Silu": ("SiLU", -0.28, math.inf),
}
_LEAF = "torch::autograd::AccumulateGrad"
_ROUNDING = 1e-4  # share of the spread of outputs by which sums of probabilities may differ


def check_outputs(
    outputs: torch.Tensor, mode: str, *, loss: str, indexed: bool, numbers: torch.Tensor | None
) -> Iterator[Finding]:
    """Look for a function that bounds the outputs.

    Args:
        outputs: with their graph, float (..., outputs).
        loss: one that applies a softmax or a sigmoid itself, or another, which may want bounded outputs.
        indexed: whether a sample has one class; otherwise each output is a probability of its own.
        numbers: scaled targets of the batch where numbers are predicted.
    """
    scaled, last = _last_operation(outputs)
    function, low, high = _BOUNDS.get(operation(last) if last is not None else "", ("", 0.0, 0.0))
    if numbers is not None:
        share = float(((numbers < low) | (numbers > high)).float().mean())
        if function and not scaled and share > RULES["bounded-numbers"].limit:
            yield Finding.of("bounded-numbers", function=function, share=share)
    elif loss in ("cross-entropy", "binary-cross-entropy"):
        values = outputs.detach().double().flatten(0, -2)
        if not function and indexed and outputs.grad_fn is not None and _are_probabilities(values):
            function = "softmax"
        if function and not (function == "tanh" and _is_soft_cap(last, values)):
            yield Finding.of("activation-before-loss", mode=mode, function=function, loss=loss)


def _last_operation(outputs: torch.Tensor) -> tuple[bool, Node | None]:
    """Return the last operation that does more than scale, shift or rearrange, and whether one of those scales."""
    scaled, node = False, outputs.grad_fn
    while node is not None and ((name := operation(node)) in _SCALING or _REARRANGING.fullmatch(name)):
        scaled |= name in _SCALING
        before = [each for each, _ in node.next_functions if each is not None and each.name() != _LEAF]
        node = before[0] if len(before) == 1 else None
    return scaled, node


def _are_probabilities(values: torch.Tensor) -> bool:
    """Return whether no value is negative and all rows have one sum, as after a softmax with any factor."""
    spread = float((values - values.mean(0)).norm(dim=1).mean())
    return spread > 0 and float(values.min()) >= 0 and float(values.sum(1).std()) <= _ROUNDING * spread


def _is_soft_cap(tanh: Node | None, values: torch.Tensor) -> bool:
    """Return whether a factor after the tanh lets the cross-entropy of a right answer come near 0."""
    result = getattr(tanh, "_saved_result", None)
    factor = float(values.std() / result.detach().double().std()) if isinstance(result, torch.Tensor) else 1.0
    lowest = math.log1p((values.shape[1] - 1) * math.exp(-2 * factor))
    return lowest <= RULES["activation-before-loss"].limit
