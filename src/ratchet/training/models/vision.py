"""Any torchvision classifier, by name. torchvision is imported only when needed, because that takes seconds."""

import inspect

import torch
from torch import nn

from ratchet.errors import TrainingError

__all__ = ["torchvision_model", "torchvision_names"]


def torchvision_names() -> list[str]:
    """Return the names of torchvision's classifiers.

    Raises:
        TrainingError: torchvision does not import.
    """
    try:
        from torchvision import models
    except ImportError as error:
        raise TrainingError(
            f"model.name: torchvision does not import here ({error}). Fix: use convnet or resnet"
        ) from error
    return list(models.list_models(module=models))


def torchvision_model(name: str, *, classes: int, channels: int) -> nn.Module:
    """Build model `name` with random weights, for `classes` classes and images of `channels` channels."""
    from torchvision import models

    options: dict[str, object] = {"weights": None, "num_classes": classes}
    if "aux_logits" in inspect.signature(models.get_model_builder(name)).parameters or name in (
        "googlenet",
        "inception_v3",
    ):
        options |= {"aux_logits": False, "init_weights": True}  # with auxiliary heads they return tuples
    network: nn.Module = models.get_model(name, **options)
    return network if channels == 3 else nn.Sequential(_GreyToColour(), network)


class _GreyToColour(nn.Module):
    """Repeats one channel three times."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.expand(-1, 3, -1, -1)
