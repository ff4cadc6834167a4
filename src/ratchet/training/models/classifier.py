"""What is trained, saved and served: a network with its input's scaling."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

__all__ = ["Classifier", "ModelSpec"]


@dataclass(frozen=True)
class ModelSpec:
    """All that is needed to build a model again: its name, its input and its answers."""

    name: str
    classes: tuple[str, ...]
    channels: int
    height: int
    width: int
    mean: tuple[float, ...]  # per channel, of pixels 0..255
    std: tuple[float, ...]
    dtype: str = "uint8"  # of the pixels; or float32, as a user's own Dataset may give them
    factory: str = "none"  # package.module:function, which takes the place of `name`
    code: str = "none"  # file or folder of the factory's code
    depth: int | None = None  # bits of the raw value that became 255; None: images had 8 bits and are taken as they are
    flip_average: bool = False  # answer an image with the mean of its logits and its mirror image's
    root: str = "."  # the folder that `code` lies in now; no part of what the model is

    @property
    def called(self) -> str:
        """What to call the model: its name, or its factory's."""
        return self.name if self.factory == "none" else self.factory

    @property
    def raw_dtype(self) -> str:
        """The type of the values that a served model takes."""
        return self.dtype if self.depth is None else "uint16"

    def to_json(self) -> dict[str, Any]:
        """What the model is, wherever its code lies: two specs of one model have the same."""
        content = asdict(self)
        del content["root"]
        if self.depth is None:
            del content["depth"]
        return content


class Classifier(nn.Module):
    """A network with its input's scaling: raw pixels in, logits out, so that nobody can forget to normalise."""

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
        # For every pixel, as a packed image lies in memory: broadcast over three channels alone, the scaling costs
        # four times as much (6 against 1.6 us for an image of 32x32 on one core)
        for name, per_channel in (("_mean_map", self.mean), ("_std_map", self.std)):
            whole = per_channel.expand(-1, -1, spec.height, spec.width).contiguous(memory_format=torch.channels_last)
            self.register_buffer(name, whole, persistent=False)

        self.flip_average = spec.flip_average
        self.classes = len(spec.classes)

        # What `transfer` goes by
        self.order: tuple[str, ...] = ()  # names of the modules as they first ran, where that has been watched
        self.fixed = frozenset(name for name, one in self.named_parameters() if not one.requires_grad)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Pixels 0..255, uint8 or float (n, channels, height, width) -> logits (n, classes)."""
        logits: torch.Tensor = self.network(self.normalised(images))
        if self.training:
            return logits
        if self.flip_average:
            logits = (logits + self.network(self.normalised(images.flip(3)))) / 2
        return logits / self.temperature

    def normalised(self, images: torch.Tensor) -> torch.Tensor:
        """Pixels 0..255, uint8 or float (n, channels, height, width) -> what the network sees: float, scaled."""
        if images.shape[1:] != self._mean_map.shape[1:]:
            return (images - self.mean).div_(self.std)
        return (images - self._mean_map).div_(self._std_map)
