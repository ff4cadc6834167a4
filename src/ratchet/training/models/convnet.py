"""The reference ConvNet, for any input size and channel count."""

import torch
from torch import nn

__all__ = ["ConvNet", "Dropout"]

CHOSEN_BY = {"model": ("convnet",)}

_LARGEST_MAP = 4  # side of the map of a 32-pixel image after three poolings; larger maps are averaged down to about it
_VALUES = 1 << 16  # of the 16 random bits that decide one activation


class ConvNet(nn.Module):
    """Three conv-norm-pool-relu blocks of 32, 64 and 128 channels, dropout .5, a layer of 512, dropout .3.

    It has 1,147,914 parameters for 10 classes of 3x32x32 images. Pooling comes before ReLU: the result is the same, and
    ReLU processes a quarter of the values.
    """

    def __init__(self, *, classes: int, channels: int, height: int, width: int) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        for inside, outside in ((channels, 32), (32, 64), (64, 128)):
            blocks += [nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.MaxPool2d(2), nn.ReLU()]
        rows, columns = height // 8, width // 8  # three floor-halvings
        if max(rows, columns) > _LARGEST_MAP:
            # Plain average pooling, because adaptive pooling has no deterministic gradient on CUDA.
            kernel = (max(1, rows // _LARGEST_MAP), max(1, columns // _LARGEST_MAP))
            blocks.append(nn.AvgPool2d(kernel))
            rows, columns = rows // kernel[0], columns // kernel[1]
        self.features = nn.Sequential(*blocks)
        self.head = nn.Sequential(
            nn.Flatten(),
            Dropout(0.5),
            nn.Linear(128 * rows * columns, 512),
            nn.ReLU(),
            Dropout(0.3),
            nn.Linear(512, classes),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.features(images))
        return logits


class Dropout(nn.Dropout):
    """nn.Dropout, with 16 random bits per activation on a CPU, which takes a sixth of the time.

    PyTorch draws a double for each activation, which is a tenth of the reference ConvNet's step. With 16 bits `p` is
    exact to one part in 131,072. Other devices use the kernel of nn.Dropout.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training or x.device.type != "cpu" or not 0.0 < self.p < 1.0:
            return super().forward(x)
        random_values = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        bits = random_values.view(torch.int16)[: x.numel()].view(x.shape)
        mask = bits >= round(self.p * _VALUES) - _VALUES // 2
        return x * mask.to(x.dtype).mul_(1.0 / (1.0 - self.p))
