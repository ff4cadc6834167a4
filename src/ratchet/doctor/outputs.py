"""Check the last operation before the outputs: a function that bounds what the loss expects to be unbounded."""

import math
import re
from collections.abc import Iterator

import torch
from torch.autograd.graph import Node

from ratchet.doctor.findings import RULES, Finding
from ratchet.training.autograd_graph import graph_leaves, operation

__all__ = ["check_outputs"]

_REARRANGING = re.compile(
    "Alias|AsStrided|Clone|Contiguous|Expand|Permute|(Unsafe)?(Reshape|View)(Alias)?|Select|Slice|(Un)?[Ss]queeze|T|"
    "ToCopy|Transpose"
)
_FACTORS = frozenset({"Div", "Mul"})
_SCALING = _FACTORS | {"Add", "Neg", "Sub"}
_BOUNDS = {  # operation -> function, smallest and largest value
    "Softmax": ("softmax", 0.0, 1.0),
    "Sigmoid": ("sigmoid", 0.0, 1.0),
    "Hardsigmoid": ("hardsigmoid", 0.0, 1.0),
    "Tanh": ("tanh", -1.0, 1.0),
    "Relu": ("ReLU", 0.0, math.inf),
    "Threshold": ("ReLU", 0.0, math.inf),
    "Softplus": ("softplus", 0.0, math.inf),
    "Elu": ("ELU", -1.76, math.inf),
    "Gelu": ("GELU", -0.17, math.inf),
    "Silu": ("SiLU", -0.28, math.inf),
}
_CLAMPS = {"Clamp": ("clamp", ""), "ClampMin": ("clamp", ""), "Hardtanh": ("hardtanh", "_val")}
_LEAF = "torch::autograd::AccumulateGrad"
_ROUNDING = 1e-4  # share of the spread of outputs by which sums of probabilities, or norms, may differ


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
    scaled, learned, last = _last_operation(outputs)
    function, low, high = _bounds_of(last)
    if numbers is not None:
        share = float(((numbers < low) | (numbers > high)).float().mean())
        if function and not scaled and share > RULES["bounded-numbers"].limit:
            yield Finding.of("bounded-numbers", function=function, share=share)
    elif loss in ("cross-entropy", "binary-cross-entropy"):
        values, gap = outputs.detach().double().flatten(0, -2), 0.0
        if last is not None and operation(last) in {*_CLAMPS, "Tanh"} and low < 0:
            gap = math.inf if learned else (high - low) * _factor(last, values, low, high, scaled=scaled)
        elif not function and outputs.grad_fn is not None:
            if indexed and _are_probabilities(values):
                function = "softmax"
            elif not learned and (gap := _gap_of_cosines(last, values)):
                function = "cosine similarity"
            elif indexed and (gap := _gap_of_normalised(outputs, values)):
                function = "normalisation"
        if function and _lowest_loss(gap, values.shape[1], indexed=indexed) > RULES["activation-before-loss"].limit:
            yield Finding.of("activation-before-loss", mode=mode, function=function, loss=loss)


def _last_operation(outputs: torch.Tensor) -> tuple[bool, bool, Node | None]:
    """Return the last operation that does more than scale, shift or rearrange.

    Before it: whether one of those scales or shifts, and whether by a factor that is learned.
    """
    scaled, learned, node = False, False, outputs.grad_fn
    while node is not None and ((name := operation(node)) in _SCALING or _REARRANGING.fullmatch(name)):
        functions = [each for each, _ in node.next_functions if each is not None]
        before = [each for each in functions if each.name() != _LEAF]
        scaled |= name in _SCALING
        learned |= name in _FACTORS and len(before) < len(functions)
        node = before[0] if len(before) == 1 else None
    return scaled, learned, node


def _bounds_of(last: Node | None) -> tuple[str, float, float]:
    """Return a bounding function with its smallest and largest value; no name: it is none."""
    name = operation(last) if last is not None else ""
    if name not in _CLAMPS:
        return _BOUNDS.get(name, ("", 0.0, 0.0))
    function, suffix = _CLAMPS[name]
    low, high = (getattr(last, f"_saved_{end}{suffix}", None) for end in ("min", "max"))
    if isinstance(low, torch.Tensor) or isinstance(high, torch.Tensor):
        return "", 0.0, 0.0
    low, high = -math.inf if low is None else float(low), math.inf if high is None else float(high)
    return f"{function}({low:g}, {high:g})", low, high


def _lowest_loss(gap: float, count: int, *, indexed: bool) -> float:
    """Return the cross-entropy of a right answer. `gap`: largest difference between its output and the others."""
    return math.log1p((count - 1) * math.exp(-gap)) if indexed else math.log1p(math.exp(-gap / 2))


def _are_probabilities(values: torch.Tensor) -> bool:
    """Return whether no value is negative and all rows have one sum, as after a softmax with any factor."""
    spread = float((values - values.mean(0)).norm(dim=1).mean())
    return spread > 0 and float(values.min()) >= 0 and float(values.sum(1).std()) <= _ROUNDING * spread


def _factor(last: Node, values: torch.Tensor, low: float, high: float, *, scaled: bool) -> float:
    """Return the factor after a tanh or clamp; infinite if it cannot be measured, because all its results are equal."""
    result, before = getattr(last, "_saved_result", None), getattr(last, "_saved_self", None)
    if isinstance(before, torch.Tensor):
        result = before.clamp(low, high)
    if not scaled or not isinstance(result, torch.Tensor):
        return 1.0
    spread = float(result.detach().double().std())
    return float(values.std()) / spread if spread else math.inf


def _gap_of_cosines(last: Node | None, values: torch.Tensor) -> float:
    """Return the largest gap of outputs that are products of normalised features and weights; 0: they are not."""
    left, right = getattr(last, "_saved_self", None), getattr(last, "_saved_mat2", None)
    if (
        last is None
        or operation(last) != "Mm"
        or not (isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor))
    ):
        return 0.0
    rows, columns = left.detach().double(), right.detach().double()
    norms, spread = (rows.norm(dim=1), columns.norm(dim=0)), float((rows @ columns).std())
    if not spread or not all(float(each.std()) <= _ROUNDING * float(each.mean()) for each in norms):
        return 0.0
    if not (_has_fixed_norms(left) and _has_fixed_norms(right.t())):
        return 0.0
    return 2 * float(norms[0].mean() * norms[1].mean() * values.std()) / spread


def _gap_of_normalised(outputs: torch.Tensor, values: torch.Tensor) -> float:
    """Return the largest gap of outputs whose rows have one norm that no weight changes; 0: there is no such norm."""
    norms, spread = values.norm(dim=1), float((values - values.mean(0)).norm(dim=1).mean())
    if not (spread > 0 and float(norms.std()) <= _ROUNDING * spread):
        return 0.0
    count = values.shape[1]
    return float(norms.mean()) * math.sqrt(count / (count - 1)) if _has_fixed_norms(outputs.flatten(0, -2)) else 0.0


def _has_fixed_norms(rows: torch.Tensor) -> bool:
    """Return whether no weight changes the norms of the rows."""
    if not rows.requires_grad:
        return True
    leaves = [rows] if rows.is_leaf else list(graph_leaves(rows.grad_fn))
    fixed, free = (
        math.hypot(*(float(each.norm()) for each in gradients if each is not None))
        for gradients in (
            torch.autograd.grad(value, leaves, retain_graph=True, allow_unused=True)
            for value in (rows.norm(dim=1).sum(), rows[:, 0].sum())
        )
    )
    return fixed < _ROUNDING * free
