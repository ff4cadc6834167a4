"""The classifier that is trained, saved and served: a network with the scaling of its input."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

__all__ = ["Classifier", "ModelSpec"]


@dataclass(frozen=True)
class ModelSpec:
    """Everything needed to build a model: its name, its input and its classes."""

    name: str
    classes: tuple[str, ...]
    channels: int
    height: int
    width: int
    mean: tuple[float, ...]  # per channel, of pixels 0..255
    std: tuple[float, ...]
    dtype: str = "uint8"  # of the pixels; float32 is possible for a user's own Dataset
    factory: str = "none"  # package.module:function, used instead of `name`
    code: str = "none"  # file or folder of the factory's code
    depth: int | None = None  # bits of the raw value that became 255; None: images have 8 bits
    flip_average: bool = False  # predict with the mean of the logits of an image and of its mirror image
    root: str = "."  # folder of `code` on this machine; not part of the model's identity

    @property
    def called(self) -> str:
        return self.name if self.factory == "none" else self.factory

    @property
    def raw_dtype(self) -> str:
        """Type of the values that a served model takes."""
        return self.dtype if self.depth is None else "uint16"

    def to_json(self) -> dict[str, Any]:
        """Return the identity of the model: the spec without the place of its code."""
        content = asdict(self)
        del content["root"]
        if self.depth is None:
            del content["depth"]
        return content


class Classifier(nn.Module):
    """A network with the scaling of its input: it takes raw pixels and returns logits."""

    mean: torch.Tensor
    std: torch.Tensor
    _mean_map: torch.Tensor
    _std_map: torch.Tensor
    temperature: torch.Tensor  # 1 unless evaluation fitted one (Guo et al. 2017)

    def __init__(self, network: nn.Module, spec: ModelSpec) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("mean", torch.tensor(spec.mean, dtype=torch.float32).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(spec.std, dtype=torch.float32).view(1, -1, 1, 1))
        self.register_buffer("temperature", torch.ones(()))
        # One value per pixel, in the memory order of packed images. Scaling by one value per channel takes four times
        # as long (6 against 1.6 us for an image of 32x32 on one core).
        for name, per_channel in (("_mean_map", self.mean), ("_std_map", self.std)):
            whole = per_channel.expand(-1, -1, spec.height, spec.width).contiguous(memory_format=torch.channels_last)
            self.register_buffer(name, whole, persistent=False)

        self.flip_average = spec.flip_average
        self.classes = len(spec.classes)

        # Used by `transfer`
        self.order: tuple[str, ...] = ()  # names of the modules in the order they run; empty if unknown
        self.fixed = frozenset(name for name, weight in self.named_parameters() if not weight.requires_grad)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (n, classes) for pixels 0..255, uint8 or float (n, channels, height, width)."""
        logits: torch.Tensor = self.network(self.normalised(images))
        if self.training:
            return logits
        if self.flip_average:
            logits = (logits + self.network(self.normalised(images.flip(3)))) / 2
        return logits / self.temperature

    def normalised(self, images: torch.Tensor) -> torch.Tensor:
        """Return pixels 0..255, uint8 or float (n, channels, height, width), scaled for the network, as float."""
        if images.shape[1:] != self._mean_map.shape[1:]:
            return (images - self.mean).div_(self.std)
        return (images - self._mean_map).div_(self._std_map)
