"""Check the last operations before the outputs: functions that bound them, and factors that make them tiny or huge."""

import math

import torch
from torch.autograd.graph import Node

from ratchet.training.autograd_graph import graph_leaves, operation
from ratchet.training.doctor.rules import Finding

__all__ = ["check_logits", "probability_function"]

_PROBABILITY = 1.0e-4  # by which the probabilities of one sample may miss a sum of 1
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
_RANGES = {"Softmax": 1.0, "Sigmoid": 1.0, "Hardsigmoid": 1.0, "Tanh": 2.0}  # largest minus smallest value
_LIMITS = {  # smallest and largest value
    "Softmax": (0.0, 1.0), "Sigmoid": (0.0, 1.0), "Hardsigmoid": (0.0, 1.0), "Tanh": (-1.0, 1.0),
    "Relu": (0.0, math.inf), "Threshold": (0.0, math.inf), "Softplus": (0.0, math.inf), "Elu": (-1.76, math.inf),
    "Gelu": (-0.17, math.inf), "Silu": (-0.28, math.inf),
}  # fmt: skip
_SCALING = {"Add", "Div", "Mul", "Neg", "Sub"}
_OUT_OF_REACH = 0.1  # share of the numbers
_LEAF = "torch::autograd::AccumulateGrad"
_ROUNDING = 1e-4  # share of the distance between two samples' logits by which their sums may differ
_NEARLY = 3e-3  # the same for their lengths, which the epsilon of a norm changes
_LOWEST_LOSS = 0.05  # nats of loss at a perfect answer that bounded logits may leave
_SCALES = 1e-2, 1e2  # factors between the last layer and the logits; fastnet has 0.044


def probability_function(logits: torch.Tensor) -> str | None:
    """Return softmax, log-softmax or sigmoid where the logits are the output of one."""
    values = logits.detach().double().flatten(0, -2)
    sums = torch.ones(len(values), dtype=torch.float64, device=values.device)
    if _is_one_hot(values):
        return None  # `check_logits` names it
    if values.min() >= 0 and torch.allclose(values.sum(1), sums, rtol=0, atol=_PROBABILITY):
        return "softmax"
    if torch.allclose(values.exp().sum(1), sums, rtol=0, atol=_PROBABILITY):
        return "log-softmax"
    # Only the operation identifies a sigmoid: other logits may be between 0 and 1 by chance.
    _, last = _last_operation(logits)
    return "sigmoid" if last is not None and operation(last) == "Sigmoid" else None


def check_logits(
    logits: torch.Tensor, mode: str, *, takes_logits: bool, binary: bool = False,
    numbers: torch.Tensor | None = None,
) -> Finding | None:  # fmt: skip
    """Check for bounds that keep the loss from falling, and for factors that make outputs tiny or huge.

    Args:
        logits: with their graph, float (..., outputs).
        takes_logits: whether the loss applies a softmax or a sigmoid itself.
        numbers: scaled targets of the batch where numbers are predicted, in training mode.
        binary: whether each output is a probability of its own.
    """
    if numbers is not None and (unreachable := _out_of_reach(logits, numbers)) is not None:
        return unreachable
    if takes_logits and (limit := _bound(logits, binary=binary)) is not None:
        function, lowest = limit
        if lowest > 0:
            return Finding.of("bounded-logits", mode=mode, function=function, lowest_loss=lowest)
        return Finding.of("one-sided-logits", mode=mode, function=function)
    factor = _factor(logits)
    if factor is None or _SCALES[0] <= factor <= _SCALES[1]:
        return None
    return Finding.of("logits-too-small" if factor < 1 else "logits-too-large", mode=mode, factor=factor)


def _out_of_reach(outputs: torch.Tensor, numbers: torch.Tensor) -> Finding | None:
    """Look for a last function whose range lacks many of the numbers; None where a factor or a shift follows it."""
    passed, last = _last_operation(outputs)
    function = "" if last is None else operation(last)
    if function not in _LIMITS or any(operation(node) in _SCALING for node in passed):
        return None
    low, high = _LIMITS[function]
    share = float(((numbers < low) | (numbers > high)).float().mean())
    return Finding.of("bounded-numbers", function=_BOUNDS[function][0], share=share) if share > _OUT_OF_REACH else None


def _bound(logits: torch.Tensor, *, binary: bool) -> tuple[str, float] | None:
    """Return the function that bounds the logits and the lowest loss they allow (0: unknown)."""
    values = logits.detach().double().flatten(0, -2)
    classes = values.shape[1]
    _, last = _last_operation(logits)
    if last is not None and operation(last) in _BOUNDS:
        function, always = _BOUNDS[operation(last)]
        lowest = _lowest_loss(_span(last, values) / (2 if binary else 1), 2 if binary else classes)
        if always or lowest > _LOWEST_LOSS:
            return function, lowest
    if _is_one_hot(values):
        return "one-hot argmax", _lowest_loss(float((values.amax(1) - values.amin(1)).max()), classes)
    if binary:
        return None
    distance = float((values - values.mean(0)).norm(dim=1).mean())  # of one sample's logits from the others'
    if distance <= 0:
        return None
    sums, norms = values.sum(1), values.norm(dim=1)
    if values.min() >= 0 and float(sums.std()) <= _ROUNDING * distance:
        return "softmax", _lowest_loss(float(sums.mean()), classes)
    if classes > 2 and float(norms.std()) <= _NEARLY * distance:
        lowest = _lowest_loss(float(norms.mean()) * math.sqrt(2), classes)
        return ("normalisation", lowest) if lowest > _LOWEST_LOSS else None
    return None


def _is_one_hot(values: torch.Tensor) -> bool:
    """Return whether each row has one large value, and the others are equal, as after an argmax."""
    if values.shape[1] < 3 or len(values) < 2:
        return False
    ordered = values.sort(1).values
    step = ordered[:, -1] - ordered[:, -2]
    return bool((step > 0).all()) and bool((ordered[:, -2] - ordered[:, 0] <= _ROUNDING * step).all())


def _factor(logits: torch.Tensor) -> float | None:
    """Return the factor between the last layer's output and the logits; None where it cannot be found."""
    passed, last = _last_operation(logits)
    if last is None or not passed or operation(last) == "Sum":  # a sum has no scale of its own
        return None
    gradients: list[torch.Tensor] = []
    hook = last.register_prehook(lambda given: gradients.extend(each for each in given if each is not None))
    try:
        leaf = next(graph_leaves(last), None)
        if leaf is None:
            return None
        torch.autograd.grad(logits.sum(), [leaf], retain_graph=True, allow_unused=True)
    finally:
        hook.remove()
    return float(gradients[0].detach().abs().median()) if gradients else None


def _last_operation(logits: torch.Tensor) -> tuple[list[Node], Node | None]:
    """Return the operations that only scale, shift or reshape, from the logits backwards, and the first other one."""
    passed: list[Node] = []
    node = logits.grad_fn
    while node is not None and operation(node) in _PASSES:
        passed.append(node)
        before = [each for each, _ in node.next_functions if each is not None and each.name() != _LEAF]
        if len(before) != 1:
            return passed, None
        node = before[0]
    return passed, node


def _span(node: Node, values: torch.Tensor) -> float:
    """Return the largest difference between two logits that the function allows; infinite without an upper bound."""
    kind = operation(node)
    if kind == "Clamp":
        low, high = (getattr(node, f"_saved_{end}", None) for end in ("min", "max"))
        return float(high - low) if isinstance(low, int | float) and isinstance(high, int | float) else math.inf
    if kind == "Hardtanh":
        return float(getattr(node, "_saved_max_val", 1.0)) - float(getattr(node, "_saved_min_val", -1.0))
    if kind not in _RANGES:
        return math.inf
    result = getattr(node, "_saved_result", None)
    if not isinstance(result, torch.Tensor):
        return _RANGES[kind]
    spread = float(result.detach().double().std())
    return _RANGES[kind] * (float(values.std()) / spread if spread > 0 else 1.0)


def _lowest_loss(span: float, classes: int) -> float:
    """Return the cross-entropy with the right class at the top of the span and all others at the bottom."""
    return math.log1p((classes - 1) * math.exp(-span)) if math.isfinite(span) else 0.0
