"""Arithmetic of whole batches of images, uint8 (n, height, width, channels). The bits do not depend on the batch."""

import torch

__all__ = ["blended", "grey", "mean_grey", "sampled", "whole"]

CHOSEN_BY = {"kind": ("image",)}

_LUMINANCE = (299, 587, 114)  # thousandths, ITU-R 601


def whole(values: torch.Tensor) -> torch.Tensor:
    """Return the nearest pixel values, uint8."""
    return values.round().clamp(0, 255).to(torch.uint8)


def grey(images: torch.Tensor) -> torch.Tensor:
    """Return the luminance of each pixel, float32 (n, height, width, 1)."""
    if images.shape[3] != 3:
        return images[..., :1].float()
    weighted = [weight * images[..., channel].to(torch.int32) for channel, weight in enumerate(_LUMINANCE)]
    return (weighted[0] + weighted[1] + weighted[2])[..., None].float() / 1000


def mean_grey(images: torch.Tensor) -> torch.Tensor:
    """Return the mean luminance of each image, float32 (n, 1, 1, 1). The sum is of whole numbers, so it is exact."""
    sums = whole(grey(images)).sum((1, 2, 3), dtype=torch.int64)
    return (sums.float() / (images.shape[1] * images.shape[2]))[:, None, None, None]


def blended(images: torch.Tensor, others: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    """Return share * images + (1 - share) * others, as pixel values."""
    return whole(others + share * (images.float() - others))


Row = tuple[torch.Tensor | float, torch.Tensor | float, torch.Tensor | float]


def sampled(images: torch.Tensor, across: Row, down: Row, *, padding: str) -> torch.Tensor:
    """Return images whose pixel at (x, y) is that of the argument at (across . (x, y, 1), down . (x, y, 1)).

    Coordinates go from -1 to 1; between pixels it interpolates linearly. Elements of the rows are numbers or (n,).
    """
    height, width = images.shape[1:3]
    x, y = (
        ((2 * torch.arange(size, device=images.device) + 1) / size - 1).view(shape)
        for size, shape in ((width, (1, 1, width)), (height, (1, height, 1)))
    )
    places = [_by_row(row[0]) * x + _by_row(row[1]) * y + _by_row(row[2]) for row in (across, down)]
    grid = torch.stack([each.expand(len(images), height, width) for each in places], 3)
    planes = images.permute(0, 3, 1, 2).float().contiguous()
    sampled = torch.nn.functional.grid_sample(planes, grid, padding_mode=padding, align_corners=False)
    return whole(sampled).permute(0, 2, 3, 1).contiguous()


def _by_row(element: torch.Tensor | float) -> torch.Tensor | float:
    return element[:, None, None] if isinstance(element, torch.Tensor) else element
