"""Classifiers of torchvision and timm, by name. They are imported only when needed, because that takes seconds."""

import difflib
import inspect
from typing import Any

import torch
from torch import nn

from ratchet.errors import TrainingError

__all__ = ["TIMM", "timm_model", "torchvision_model", "torchvision_names"]

TIMM = "timm/"


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


def timm_model(name: str, *, classes: int, channels: int, height: int, width: int) -> nn.Module:
    """Build timm's model `name`, without "timm/", with random weights, for `classes` classes and images of a size.

    Raises:
        TrainingError: timm is not installed, or has no such model.
    """
    try:
        import timm
    except ImportError as error:
        raise TrainingError(
            f"model.name: {TIMM}{name} needs timm, which does not import here ({error}). Fix: `pip install "
            "ratchet[timm]`"
        ) from error
    if not timm.is_model(name):
        near = ", ".join(f"{TIMM}{each}" for each in difflib.get_close_matches(name, timm.list_models()))
        raise TrainingError(f"model.name: timm has no model {TIMM}{name}. Nearest: {near or 'none'}")
    usual = timm.get_pretrained_cfg(name)
    is_fixed = getattr(usual, "fixed_input_size", False)
    size: dict[str, Any] = {"img_size": (height, width)} if is_fixed else {}
    try:
        network: nn.Module = timm.create_model(name, num_classes=classes, **size)
    except Exception as error:  # each model has its own way to refuse a size
        side = usual.input_size[-1] if usual else 224
        raise TrainingError(
            f"model.name: {TIMM}{name} cannot be built for {height} x {width} pixels ({error}). Fix: `ratchet set "
            f"data.image_size={side}`, its usual size, or another model"
        ) from error
    return network if channels == 3 else nn.Sequential(_GreyToColour(), network)


class _GreyToColour(nn.Module):
    """Repeats one channel three times."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.expand(-1, 3, -1, -1)
