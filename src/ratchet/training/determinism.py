"""Find layers whose backward pass on CUDA has no deterministic implementation, before the first step.

PyTorch raises an error for them when deterministic algorithms are required (`training.deterministic: true`). The
documentation of `torch.use_deterministic_algorithms` lists these operations. The backward pass of a model names its
operations on any device, so the search also works without a GPU.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from ratchet.errors import TrainingError
from ratchet.training.autograd_graph import graph_nodes, operation
from ratchet.training.batches import Split
from ratchet.training.device import any_implementation
from ratchet.training.duplicate import duplicate
from ratchet.training.models import Model
from ratchet.training.plan import Plan

__all__ = [
    "Nondeterministic",
    "explained",
    "nondeterministic_layers",
    "refuse_nondeterministic",
    "require_deterministic",
]

_NO_IMPLEMENTATION = "does not have a deterministic implementation"  # PyTorch's message
_TRIED = 2  # samples
_OFF = "or set training.deterministic to false: runs then are no longer bit-identical"

# Node of the backward pass -> what to use instead. Taken from the documentation of torch.use_deterministic_algorithms
# in PyTorch 2.15. Not listed: pooling to 1x1, which is a mean; interpolation without antialias and MaxPool3d, for
# which PyTorch has another, deterministic implementation.
_INSTEAD = {
    "AdaptiveAvgPool2D": "x.mean((2, 3)) or nn.AdaptiveAvgPool2d(1), or nn.AvgPool2d with a fixed kernel",
    "AdaptiveAvgPool3D": "x.mean((2, 3, 4)) or nn.AdaptiveAvgPool3d(1)",
    "AdaptiveMaxPool2D": "x.amax((2, 3)), or nn.MaxPool2d with a fixed kernel",
    "AvgPool3D": "a convolution of stride, or nn.MaxPool3d",
    "FractionalMaxPool2D": "nn.MaxPool2d",
    "FractionalMaxPool3D": "nn.MaxPool3d",
    "MaxUnpool2D": "nn.ConvTranspose2d, or nn.Upsample",
    "MaxUnpool3D": "nn.ConvTranspose3d, or nn.Upsample",
    "ReflectionPad1D": "zero or replicate padding",
    "ReflectionPad2D": "zero or replicate padding",
    "ReflectionPad3D": "zero or replicate padding",
    "GridSampler2D": "nearest or fixed resampling",
    "GridSampler3D": "nearest or fixed resampling",
    "UpsampleLinear1D": "interpolation of mode nearest",
    "UpsampleBicubic2D": "interpolation of mode bilinear without antialias",
    "UpsampleBilinear2DAa": "interpolation without antialias",
    "UpsampleBicubic2DAa": "interpolation without antialias",
    "EmbeddingBag": "nn.Embedding and a sum",
    "CtcLoss": "another loss",
    "Kthvalue": "torch.sort",
}


class Nondeterministic(NamedTuple):
    """An operation without a deterministic implementation, on CUDA at least."""

    layer: str  # path of the innermost module that runs it; empty: the forward() of the model
    operation: str  # name of the node in the backward pass
    instead: str

    def __str__(self) -> str:
        place = f"layer {self.layer}" if self.layer else "forward()"
        return f"{place} ({self.operation})"


def nondeterministic_layers(model: nn.Module, *inputs: torch.Tensor) -> list[Nondeterministic]:
    """Return the operations of a forward pass over `inputs` that CUDA cannot differentiate deterministically."""
    spans: list[tuple[int, int, str]] = []
    begun: list[int] = []
    hooks = []
    for name, module in model.named_modules():
        hooks.append(module.register_forward_pre_hook(lambda *_: begun.append(_sequence())))
        hooks.append(module.register_forward_hook(lambda *_, name=name: spans.append((begun.pop(), _sequence(), name))))
    try:
        with torch.enable_grad():
            output = model(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    listed = []
    nodes = (node for node in graph_nodes([output.grad_fn]) if hasattr(node, "_sequence_nr"))
    for node in sorted(nodes, key=lambda node: node._sequence_nr()):
        kind = operation(node)
        if kind in _INSTEAD:
            place = node._sequence_nr()
            inside = [(end - begin, name) for begin, end, name in spans if begin <= place < end]
            layer = min(inside)[1] if inside else ""
            listed.append(Nondeterministic(layer.removeprefix("network").removeprefix("."), kind, _INSTEAD[kind]))
    return list(dict.fromkeys(listed))


def explained(error: BaseException, model: nn.Module, *inputs: torch.Tensor) -> tuple[str, str]:
    """Return (problem, fix) for PyTorch's error about a missing deterministic implementation."""
    unknown = str(error).partition(_NO_IMPLEMENTATION)[0].strip()
    with any_implementation():  # else an operation that raises in its forward pass raises again
        layers = nondeterministic_layers(model, *(tensor[:_TRIED] for tensor in inputs))
    where = ", ".join(map(str, layers)) or f"an operation ({unknown})"
    instead = f"use {layers[0].instead}; " if layers else "replace the operation, "
    problem = f"training.deterministic is true, and {where} has no deterministic implementation here"
    return problem, f"{instead}{_OFF}"


def require_deterministic(model: Model, train: Split, plan: Plan, device: torch.device) -> None:
    """Try one forward and backward pass if training must be deterministic on CUDA; otherwise do nothing.

    Args:
        model: on `device`; the pass uses a copy of it.

    Raises:
        TrainingError: an operation has no deterministic implementation; the message names the layer and the fix.
    """
    if device.type != "cuda" or not plan.deterministic:
        return
    inputs, _ = train.batch(np.arange(min(_TRIED, len(train))), device)
    try:
        copy = duplicate(model)
    except TrainingError:
        return  # training may need no copy; the first step reports what is not deterministic
    try:
        torch.autograd.backward(copy.eval()(*inputs).float().sum())
    except RuntimeError as error:
        refuse_nondeterministic(error, copy, train, device)  # the first step reports other errors


def refuse_nondeterministic(error: BaseException, model: nn.Module, train: Split, device: torch.device) -> None:
    """Explain an error of a pass over samples of `train` if it says that an operation is not deterministic.

    Raises:
        TrainingError: it does; the message names the layer and the fix.
    """
    if not isinstance(error, RuntimeError) or _NO_IMPLEMENTATION not in str(error):
        return
    inputs, _ = train.batch(np.arange(min(_TRIED, len(train))), device)
    raise TrainingError(". Fix: ".join(explained(error, model, *inputs))) from error


def _sequence() -> int:
    """Return the number that the next node of a backward pass gets in this thread."""
    return int(torch._C._autograd._get_sequence_nr())
