"""RandAugment (Cubuk et al. 2019): two random changes of each image, with the strengths of torchvision."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ratchet.training.augment import Randomness
from ratchet.training.pixel_arithmetic import blended, grey, mean_grey, sampled, whole

__all__ = ["RandAugment"]

CHOSEN_BY = {"kind": ("image",)}

_LAYERS, _STRONGEST = 2, 30.0
_MOVES = ("shear across", "shear down", "move across", "move down", "rotate")
_NUMBERS = 6  # of a layer: which change, how much, and the matrix of a move, less its corner


@dataclass(frozen=True)
class RandAugment:
    """Two changes of the value's strength, each chosen from fourteen; one of them changes nothing."""

    value: float
    count = _LAYERS * _NUMBERS

    def draws(self, random: Randomness, size: tuple[int, int]) -> list[NDArray[Any]]:
        share = self.value / _STRONGEST
        arrays: list[NDArray[Any]] = []
        for layer in range(_LAYERS):
            change = (random.uniform(2 * layer) * (len(_MOVES) + len(_CHANGES) + 1)).astype(np.int64)
            signed = np.where(random.uniform(2 * layer + 1) < 0.5, -share, share)
            amounts = dict.fromkeys(_MOVES, np.zeros(len(change)))
            for number, move in enumerate(_MOVES):
                amounts[move] = np.where(change == number, signed, 0.0)
            angle = np.deg2rad(30.0 * amounts["rotate"])
            shear_across, shear_down = (0.3 * amounts[name] for name in _MOVES[:2])
            across, down = (2 * 150 / 331 * amounts[name] for name in _MOVES[2:4])
            aspect = size[0] / size[1]
            matrix = shear_across - np.sin(angle) * aspect, shear_down + np.sin(angle) / aspect, across, down
            arrays += [change, *(array.astype(np.float32) for array in (signed, *matrix))]
        return arrays

    def apply(self, images: torch.Tensor, drawn: Sequence[torch.Tensor]) -> torch.Tensor:
        for layer in range(_LAYERS):
            change, amount, *matrix = drawn[_NUMBERS * layer : _NUMBERS * (layer + 1)]
            images = _changed(images, change < len(_MOVES), _moved, *matrix)
            for number, function in enumerate(_CHANGES, len(_MOVES)):
                images = _changed(images, change == number, function, amount)
        return images


def _changed(
    images: torch.Tensor, chosen: torch.Tensor, function: Callable[..., torch.Tensor], *amounts: torch.Tensor
) -> torch.Tensor:
    """Return the images, of which the chosen ones, (n,), are changed. A GPU changes all, so as not to wait for it."""
    if images.device.type != "cpu":
        return torch.where(chosen[:, None, None, None], function(images, *amounts), images)
    rows = chosen.nonzero()[:, 0]
    return (
        images.index_copy(0, rows, function(images[rows], *(each[rows] for each in amounts))) if len(rows) else images
    )


def _moved(
    images: torch.Tensor, x_of_y: torch.Tensor, y_of_x: torch.Tensor, across: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    aspect = images.shape[1] / images.shape[2]
    is_turn = (x_of_y != 0) & (y_of_x != 0)
    cosine = torch.where(is_turn, (1 - (y_of_x * aspect) ** 2).clamp(min=0).sqrt(), torch.ones_like(x_of_y))
    return sampled(images, (cosine, x_of_y, across), (y_of_x, cosine, down), padding="zeros")


def _factor(amount: torch.Tensor) -> torch.Tensor:
    return 1 + 0.9 * amount[:, None, None, None]


def _brightened(images: torch.Tensor, amount: torch.Tensor) -> torch.Tensor:
    return whole(images * _factor(amount))


def _coloured(images: torch.Tensor, amount: torch.Tensor) -> torch.Tensor:
    return blended(images, grey(images), _factor(amount)) if images.shape[3] == 3 else images


def _contrasted(images: torch.Tensor, amount: torch.Tensor) -> torch.Tensor:
    return blended(images, mean_grey(images), _factor(amount))


def _sharpened(images: torch.Tensor, amount: torch.Tensor) -> torch.Tensor:
    """Blend with the smoothed image, whose border is that of the image."""
    (height, width), others, values = images.shape[1:3], images.clone(), images.to(torch.int32)
    sums = 4 * values[:, 1:-1, 1:-1]  # the pixel itself weighs 5 of 13
    for down in range(3):
        for across in range(3):
            sums = sums + values[:, down : height - 2 + down, across : width - 2 + across]
    others[:, 1:-1, 1:-1] = whole(sums / 13)
    return blended(images, others, _factor(amount))


def _posterised(images: torch.Tensor, amount: torch.Tensor) -> torch.Tensor:
    """Keep 8 to 4 bits of each value."""
    dropped = 2.0 ** (4 * amount.abs()).round()[:, None, None, None]
    return whole((images / dropped).floor() * dropped)


def _solarised(images: torch.Tensor, amount: torch.Tensor) -> torch.Tensor:
    """Invert values from a limit on."""
    limit = 255 * (1 - amount.abs())[:, None, None, None]
    return torch.where(images >= limit, 255 - images, images)


def _stretched(images: torch.Tensor, amount: torch.Tensor) -> torch.Tensor:
    """Stretch each channel to the whole range."""
    low, high = (function((1, 2), keepdim=True).float() for function in (images.amin, images.amax))
    return torch.where(high > low, whole((images - low) * (255 / (high - low).clamp(min=1))), images)


def _equalised(images: torch.Tensor, amount: torch.Tensor) -> torch.Tensor:
    """Make the values of each channel equally frequent, as Pillow does."""
    count, height, width, channels = images.shape
    values = images.permute(0, 3, 1, 2).reshape(count * channels, height * width).long()
    histogram = torch.zeros(count * channels, 256, dtype=torch.int64, device=images.device)
    histogram.scatter_add_(1, values, torch.ones_like(values))
    levels = torch.arange(256, device=images.device)
    last = torch.where(histogram > 0, levels, 0).amax(1, keepdim=True)
    step = (height * width - histogram.gather(1, last)) // 255
    sums = histogram.cumsum(1) - histogram
    table = torch.where(step > 0, ((sums + step // 2) // step.clamp(min=1)).clamp(0, 255), levels)
    return table.gather(1, values).to(torch.uint8).view(count, channels, height, width).permute(0, 2, 3, 1).contiguous()


_CHANGES = (_brightened, _coloured, _contrasted, _solarised, _sharpened, _posterised, _stretched, _equalised)
