"""Layers of the examined model, by the names that its author knows."""

import contextlib
from collections.abc import Iterable, Iterator

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

__all__ = ["batch_norms", "layer_name", "layer_names", "tracks", "values_counted", "weighted_layers"]

WeightedLayer = nn.Linear | _ConvNd


def layer_name(path: str) -> str:
    """Return a path within the author's network, without the classifier that wraps it; "the model" for the whole."""
    return path.removeprefix("network").removeprefix(".") or "the model"


def layer_names(paths: Iterable[str]) -> tuple[str, ...]:
    """Return each name once, in the order of the paths."""
    return tuple(dict.fromkeys(map(layer_name, paths)))


def batch_norms(model: nn.Module) -> dict[str, _BatchNorm]:
    """Return the batch norms by name."""
    return {layer_name(path): module for path, module in model.named_modules() if isinstance(module, _BatchNorm)}


def tracks(norm: _BatchNorm) -> bool:
    """Return whether a batch norm has running statistics."""
    return norm.running_mean is not None and norm.running_var is not None


def weighted_layers(model: nn.Module) -> dict[str, WeightedLayer]:
    """Return the linear layers and convolutions whose weight is a parameter with one row for each output unit."""
    return {
        layer_name(path): module
        for path, module in model.named_modules()
        if isinstance(module, WeightedLayer)
        and not isinstance(module, _ConvTransposeNd)
        and module._parameters.get("weight") is not None  # a weight norm computes it from other parameters
    }


@contextlib.contextmanager
def values_counted(model: nn.Module, counts: dict[str, int]) -> Iterator[None]:
    """Set `counts` to the number of values that each unit of a weighted layer gives in a forward pass inside."""

    def count(name: str, units: int, output: object) -> None:
        if isinstance(output, torch.Tensor):
            counts[name] = output.numel() // units

    hooks = [
        layer.register_forward_hook(lambda module, _, output, name=name: count(name, len(module.weight), output))
        for name, layer in weighted_layers(model).items()
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
