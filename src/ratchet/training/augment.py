"""Augmentation of whole batches.

The augmentation of a sample depends only on (seed, epoch, sample key): not on its batch, its place there, the
micro-batch size or the number of workers. So a resumed run sees the same pixels as an uninterrupted one.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ratchet.training.plan import Plan

__all__ = ["augmented", "draws", "epoch_order", "resized", "sample_bits"]

Keys = NDArray[np.uint64]
_TWELVE = 2**12


def sample_bits(keys: Keys, *, seed: int, epoch: int) -> Keys:
    """Return 64 random bits per sample key, uint64 (n,), by the SplitMix64 finaliser (Steele, Lea and Flood 2014)."""
    stream = _mix(_mix(np.array([seed], np.uint64)) ^ np.array([epoch], np.uint64))
    return _mix(keys ^ stream)


def _mix(value: Keys) -> Keys:
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64 is the method
        value = value + np.uint64(0x9E3779B97F4A7C15)
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return value ^ (value >> np.uint64(31))


def epoch_order(rows: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return the sample order of one epoch: a permutation of range(rows), int64, decided by (seed, epoch)."""
    return np.random.Generator(np.random.Philox(key=np.array([seed, epoch], np.uint64))).permutation(rows)


def draws(keys: Keys, plan: Plan, *, epoch: int, size: tuple[int, int]) -> list[NDArray[Any]]:
    """Return what `augmented` needs of images of this height and width: arrays (n,) of numbers or truth values."""
    bits = sample_bits(keys, seed=plan.seed, epoch=epoch)
    drawn: list[NDArray[Any]] = []
    if plan.crop_padding:
        drawn += [_drawn(bits, place, 2 * plan.crop_padding + 1) for place in (8, 24)]
    if plan.flip != "none":
        decides, turn = bits, 0
        if plan.flip == "alternating":
            decides, turn = sample_bits(keys, seed=plan.seed, epoch=0), epoch % 2
        drawn.append(decides & np.uint64(1) != np.uint64(turn))
    if plan.cutout:
        drawn += [_centre(bits, place, span) for place, span in zip((40, 52), size, strict=True)]
    return drawn


def augmented(images: torch.Tensor, drawn: Sequence[torch.Tensor], plan: Plan) -> torch.Tensor:
    """Shift, mirror and cut out as `plan` says (`crop_padding`, `crop_fill`, `flip`, `cutout`).

    Alternating flips mirror half the images in the first epoch and the other half in the next, so two epochs in a row
    show each image both ways (Jordan 2024). Cutout is that of DeVries and Taylor 2017, in black.

    Args:
        images: uint8 (n, height, width, channels), on any device; not changed.
        drawn: the `draws` of these images, on their device.

    Returns:
        uint8 of the same shape, on the same device.
    """
    coming = iter(drawn)
    if plan.crop_padding:
        images = _shifted(images, next(coming), next(coming), padding=plan.crop_padding, fill=plan.crop_fill)
    if plan.flip != "none":
        images = _mirrored(images, next(coming))
    if plan.cutout:
        images = _blanked(images, next(coming), next(coming), side=plan.cutout)
    return images


def resized(images: torch.Tensor, plan: Plan, *, epoch: int) -> torch.Tensor:
    """Return the images in the size of `plan.progressive_sizes` for `epoch`: (n, channels, height, width), any dtype.

    The time of an epoch is proportional to its pixels, and early in training small images are enough (Howard 2018).
    Images are scaled down with an antialiasing filter, as float32. Images that have the size are returned unchanged.
    """
    if isinstance(plan.progressive_sizes, str):
        return images
    side = plan.progressive_sizes[min(epoch, len(plan.progressive_sizes) - 1)]
    height, width = images.shape[2:]
    scale = side / min(height, width)
    if scale == 1.0:
        return images
    size = round(height * scale), round(width * scale)
    return torch.nn.functional.interpolate(images.float(), size, mode="bilinear", antialias=True)


def _shifted(
    images: torch.Tensor, down: torch.Tensor, across: torch.Tensor, *, padding: int, fill: str
) -> torch.Tensor:
    """Shift each image by up to `padding` pixels in each direction, by copying strips of whole rows."""
    count, height, width, channels = images.shape
    padded = torch.nn.functional.pad(images, (0, 0, padding, padding, padding, padding)).contiguous()
    if fill == "reflect":  # line by line: an index for every pixel takes seven times as long
        inside = slice(padding, padding + height)
        for column, other in _reflected(width, padding):
            padded[:, inside, column] = images[:, :, other]
        for row, other in _reflected(height, padding):
            padded[:, row] = padded[:, padding + other]
    strip = padded.stride(1)
    windows = padded.as_strided(
        (count, 2 * padding + 1, 2 * padding + 1, height, width * channels),
        (padded.stride(0), strip, channels, strip, 1),
    )
    if images.device.type == "cpu":  # NumPy copies whole blocks, where PyTorch copies single bytes
        return torch.from_numpy(windows.numpy()[np.arange(count), down.numpy(), across.numpy()]).view(images.shape)
    each = torch.arange(count, device=images.device)
    return windows[each, down, across].view(images.shape)


def _mirrored(images: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Return a copy of the images in which the chosen ones, (n,), are mirrored."""
    if images.device.type == "cpu":
        copy = images.clone()
        copy.numpy()[chosen.numpy()] = images.numpy()[chosen.numpy(), :, ::-1]
        return copy
    return torch.where(chosen[:, None, None, None], images.flip(2), images)


def _blanked(images: torch.Tensor, down: torch.Tensor, across: torch.Tensor, *, side: int) -> torch.Tensor:
    """Set a square of `side` pixels to 0. Its centre is anywhere, so part of it may be outside the image."""
    _, height, width, _ = images.shape
    rows = torch.arange(height, device=images.device) - down[:, None] + side // 2
    columns = torch.arange(width, device=images.device) - across[:, None] + side // 2
    inside = ((rows >= 0) & (rows < side))[:, :, None] & ((columns >= 0) & (columns < side))[:, None, :]
    return images.masked_fill(inside[..., None], 0)


def _centre(bits: Keys, place: int, span: int) -> NDArray[np.int64]:
    """Return uniform numbers in range(span), int64 (n,).

    They are made from the 12 bits at `place` where `span` is a power of two up to 4,096, which is exact. Otherwise from
    32 other bits, which makes no number more than span / 2^32 too frequent.
    """
    if _TWELVE % span == 0:
        return ((bits >> np.uint64(place) & np.uint64(_TWELVE - 1)) % np.uint64(span)).astype(np.int64)
    others = _mix(bits ^ np.uint64(place)) >> np.uint64(32)
    return (others * np.uint64(span) >> np.uint64(32)).astype(np.int64)


def _drawn(bits: Keys, place: int, span: int) -> NDArray[np.int64]:
    """Return a number in range(span) for each image, int64 (n,), from 16 of its bits."""
    return ((bits >> np.uint64(place) & np.uint64(0xFFFF)) % np.uint64(span)).astype(np.int64)


def _reflected(side: int, padding: int) -> Iterator[tuple[int, int]]:
    """Yield for each line that padding adds to a side its place and the line it repeats. The edge is not repeated.

    Three lines padded by two: (0, 2), (1, 1), (5, 1), (6, 0).
    """
    period = max(1, 2 * (side - 1))
    for place in (*range(padding), *range(padding + side, side + 2 * padding)):
        other = abs(place - padding) % period
        yield place, min(other, period - other)
