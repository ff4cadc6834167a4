"""Layers with fewer channels than the network's code gives them."""

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from ratchet.errors import TrainingError
from ratchet.kinds import Width

__all__ = ["NARROWED", "narrow"]

NARROWED = (_ConvNd, nn.Linear, _BatchNorm)
"""Layers that can be narrowed."""


def narrow(network: nn.Module, widths: tuple[Width, ...]) -> None:
    """Leave only the first inputs and outputs of layers.

    A grouped convolution must be depthwise: it has filters for each channel, and keeps that.

    Raises:
        TrainingError: the network has no such layer.
    """
    layers = dict(network.named_modules())
    for width in widths:
        layer = layers.get(width.layer)
        if not isinstance(layer, NARROWED):
            raise TrainingError(
                f"training.prune_channels: the network has no convolution, linear layer or batch norm {width.layer}, "
                "which the pruned model has. Fix: use the code and model.name that it was pruned with"
            )
        _narrow(layer, width)


def _narrow(layer: nn.Module, width: Width) -> None:
    shape: tuple[int, ...] = ()
    match layer:
        case _ConvNd():
            layer.groups = width.inputs if layer.groups > 1 else 1
            layer.in_channels, layer.out_channels = width.inputs, width.outputs
            shape = (width.outputs, width.inputs // layer.groups)
        case nn.Linear():
            layer.in_features, layer.out_features = width.inputs, width.outputs
            shape = (width.outputs, width.inputs)
        case _BatchNorm():
            layer.num_features = width.outputs
            shape = (width.outputs,)
    for name, tensor in (*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)):
        if tensor.dim():
            smaller = tensor.detach()[tuple(slice(size) for size in shape[: tensor.dim()])].clone()
            learns = isinstance(tensor, nn.Parameter)
            setattr(layer, name, nn.Parameter(smaller, tensor.requires_grad) if learns else smaller)
