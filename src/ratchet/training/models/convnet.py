"""The reference ConvNet, for any input size and channel count."""

import torch
from torch import nn

from ratchet.training.models.dropout import Dropout

__all__ = ["ConvNet"]

_LARGEST_MAP = 4  # what a 32-pixel image leaves after three poolings; larger ones are averaged down to about it


class ConvNet(nn.Module):
    """Three conv-norm-pool-relu blocks of 32, 64 and 128, dropout .5, 512, dropout .3: 1,147,914 parameters at 3x32x32.

    That count is for 10 classes. Pooling stands before ReLU: the maximum commutes with it, the function is the same and
    ReLU sees a quarter of the values.
    """

    def __init__(self, *, classes: int, channels: int, height: int, width: int) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        for inside, outside in ((channels, 32), (32, 64), (64, 128)):
            blocks += [nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.MaxPool2d(2), nn.ReLU()]
        rows, columns = height // 8, width // 8  # three floor-halvings
        if max(rows, columns) > _LARGEST_MAP:
            # Plain average pooling: the adaptive one has no deterministic gradient on CUDA.
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
        """Normalised images (n, channels, height, width) -> logits (n, classes)."""
        logits: torch.Tensor = self.head(self.features(images))
        return logits
