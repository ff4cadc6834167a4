"""A small residual net."""

import torch
from torch import nn

__all__ = ["ResidualNet"]

CHOSEN_BY = {"model": ("resnet",)}

_WIDTH = 64


def _norm_conv() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(_WIDTH, _WIDTH, 3, padding=1, bias=False), nn.BatchNorm2d(_WIDTH))


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = _norm_conv()
        self.second = _norm_conv()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.second(torch.relu(self.first(x))))


class ResidualNet(nn.Module):
    """Stem, three residual blocks of 64 channels (He et al. 2016), average pooling. Any input size."""

    def __init__(self, *, classes: int, channels: int, height: int, width: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(channels, _WIDTH, 3, padding=1, bias=False), nn.BatchNorm2d(_WIDTH), nn.ReLU()
        )
        self.blocks = nn.Sequential(_Block(), _Block(), _Block())
        self.head = nn.Linear(_WIDTH, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.blocks(self.stem(images)).mean(dim=(2, 3)))
        return logits
