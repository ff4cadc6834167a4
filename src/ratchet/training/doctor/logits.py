"""The last operations before the logits: functions that bound them, and factors that shrink them."""

import math
from collections.abc import Iterator

import torch
from torch.autograd.graph import Node

from ratchet.training.doctor.findings import Finding

__all__ = ["bounded", "examine_logits", "scaled", "squashed"]

_PROBABILITY = 1.0e-4  # by which probabilities of one image may miss a sum of 1
_PASSES = {  # operations that keep the order and the meaning of the values
    "Add", "Alias", "As", "AsStrided", "Clone", "Contiguous", "Div", "Expand", "Mul", "Neg", "Permute", "Reshape",
    "ReshapeAlias", "Select", "Slice", "Squeeze", "Sub", "T", "ToCopy", "Transpose", "Unsqueeze", "UnsafeView", "View",
}  # fmt: skip
_BOUNDS = {  # operation -> name of the function, whether it always harms
    "Softmax": ("softmax", True),
    "Sigmoid": ("sigmoid", True),
    "Relu": ("ReLU", True),
    "Threshold": ("ReLU", True),
    "Softplus": ("softplus", True),
    "Elu": ("ELU", True),
    "Gelu": ("GELU", True),
    "Silu": ("SiLU", True),
    "Hardsigmoid": ("hard sigmoid", True),
    "Tanh": ("tanh", False),
    "Hardtanh": ("hard tanh", False),
    "Clamp": ("clamp", False),
}
_ROUNDING = 1e-4  # share of the distance between two samples' logits by which their sums may differ
_NEARLY = 3e-3  # the same for their lengths: the epsilon of a norm shows
_LOWEST_LOSS = 0.05  # nats that bounded logits may leave of the loss of a perfect answer
_SCALES = 1e-2, 1e2  # factors between the last layer and the logits; fastnet has .044


def squashed(logits: torch.Tensor) -> str | None:
    """softmax, log-softmax or sigmoid, where the logits are the output of one."""
    values = logits.detach().double()
    sums = torch.ones(len(values), dtype=torch.float64, device=values.device)
    if values.min() >= 0 and torch.allclose(values.sum(1), sums, rtol=0, atol=_PROBABILITY):
        return "softmax"
    if torch.allclose(values.exp().sum(1), sums, rtol=0, atol=_PROBABILITY):
        return "log-softmax"
    # A sigmoid is known by the operation alone: others' logits may be between 0 and 1 by chance.
    last = _tail(logits)[1]
    return "sigmoid" if last is not None and _kind(last) == "Sigmoid" else None


def examine_logits(logits: torch.Tensor, mode: str, *, takes_logits: bool) -> Iterator[Finding]:
    """Check for bounds that keep the loss from falling, and for factors that make logits tiny or huge."""
    limit = bounded(logits)
    if limit is not None and takes_logits:
        yield limit_finding(limit, mode)
        return
    factor = scaled(logits)
    if factor is not None and not _SCALES[0] <= factor <= _SCALES[1]:
        size = "hardly any gradient gets through" if factor < 1 else "the loss is huge at the start"
        yield Finding(
            "logit scale",
            f"in {mode} mode the last layer's output is multiplied by {factor:.3g} to make the logits: {size}",
            "return the last layer's output as it is",
        )


def limit_finding(limit: tuple[str, float], mode: str) -> Finding:
    """The finding for logits that `bounded` describes."""
    function, lowest = limit
    return Finding(
        "bounded logits",
        f"in {mode} mode the logits are the output of a {function}"
        + (
            f": the cross-entropy loss cannot fall below {lowest:.2g}"
            if lowest > 0
            else ": part of them has no gradient"
        ),
        f"let forward() return the last layer's output, without the {function}",
    )


def bounded(logits: torch.Tensor) -> tuple[str, float] | None:
    """The function that bounds the logits, and the lowest cross-entropy they allow (0: unknown); None: no bound."""
    values = logits.detach().double()
    classes = values.shape[1]
    _, last = _tail(logits)
    if last is not None and (kind := _kind(last)) in _BOUNDS:
        name, always = _BOUNDS[kind]
        lowest = _lowest_loss(_span(last, values, kind), classes)
        if always or lowest > _LOWEST_LOSS:
            return name, lowest
    varied = float((values - values.mean(0)).norm(dim=1).mean())  # how far one sample's logits are from another's
    if varied <= 0:
        return None
    sums, norms = values.sum(1), values.norm(dim=1)
    if values.min() >= 0 and float(sums.std()) <= _ROUNDING * varied:
        return "softmax", _lowest_loss(float(sums.mean()), classes)
    if classes > 2 and float(norms.std()) <= _NEARLY * varied:
        lowest = _lowest_loss(float(norms.mean()) * math.sqrt(2), classes)
        return ("normalisation", lowest) if lowest > _LOWEST_LOSS else None
    return None


def scaled(logits: torch.Tensor) -> float | None:
    """The factor between the last layer's output and the logits; None where it cannot be found."""
    passed, last = _tail(logits)
    if last is None or not passed:
        return None
    seen: list[torch.Tensor] = []
    hook = last.register_prehook(lambda gradients: seen.extend(one for one in gradients if one is not None))
    try:
        inputs = list(_leaves(last))
        if not inputs:
            return None
        torch.autograd.grad(logits.sum(), inputs[:1], retain_graph=True, allow_unused=True)
    finally:
        hook.remove()
    return float(seen[0].detach().abs().median()) if seen else None


def _tail(logits: torch.Tensor) -> tuple[list[Node], Node | None]:
    """The operations that only scale, shift or reshape, from the logits back; and the first that does more."""
    passed: list[Node] = []
    node = logits.grad_fn
    while node is not None and _kind(node) in _PASSES:
        passed.append(node)
        before = [one for one, _ in node.next_functions if one is not None and one.name() != _LEAF]
        if len(before) != 1:
            return passed, None
        node = before[0]
    return passed, node


_LEAF = "torch::autograd::AccumulateGrad"


def _kind(node: Node) -> str:
    return node.name().rstrip("0123456789").removesuffix("Backward").removeprefix("_")


def _leaves(node: Node) -> list[torch.Tensor]:
    """The nearest tensors that a gradient can be asked for, behind a node."""
    waiting, seen = [node], {node}
    while waiting:
        one = waiting.pop()
        variable = getattr(one, "variable", None)
        if isinstance(variable, torch.Tensor):
            return [variable]
        for other, _ in one.next_functions:
            if other is not None and other not in seen:
                seen.add(other)
                waiting.append(other)
    return []


def _span(node: Node, values: torch.Tensor, kind: str) -> float:
    """The largest difference between two logits that the function allows; infinite where it has no upper bound."""
    if kind == "Clamp":
        ends = [getattr(node, f"_saved_{end}", None) for end in ("min", "max")]
        low, high = (float(one) if isinstance(one, int | float) else None for one in ends)
        return math.inf if low is None or high is None else (high - low)
    if kind == "Hardtanh":
        return float(getattr(node, "_saved_max_val", 1.0)) - float(getattr(node, "_saved_min_val", -1.0))
    widths = {"Softmax": 1.0, "Sigmoid": 1.0, "Hardsigmoid": 1.0, "Tanh": 2.0}
    if kind not in widths:
        return math.inf
    result = getattr(node, "_saved_result", None)
    if not isinstance(result, torch.Tensor):
        return widths[kind]
    spread = float(result.detach().double().std())
    return widths[kind] * (float(values.std()) / spread if spread > 0 else 1.0)


def _lowest_loss(span: float, classes: int) -> float:
    """Cross-entropy of the right class at the top of the span and all others at the bottom."""
    return math.log1p((classes - 1) * math.exp(-span)) if math.isfinite(span) else 0.0
