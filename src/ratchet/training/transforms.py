"""Augmentation of whole batches of images, as `training.augment` lists it.

Each transform draws its numbers for all samples on the CPU, and then changes the batch on its device. A changed image
depends on its pixels and its numbers alone, and every transform returns whole numbers: so the bits are the same in any
batch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from ratchet.augmentations import MIXING, entries
from ratchet.training.augment import Keys, Randomness
from ratchet.training.mixing import Mixing
from ratchet.training.own_transform import OwnTransform
from ratchet.training.pixel_arithmetic import blended, grey, mean_grey, sampled, whole
from ratchet.training.plan import Plan
from ratchet.training.rand_augment import RandAugment

__all__ = ["Augmentation"]

CHOSEN_BY = {"kind": ("image",)}

Draws = list[NDArray[Any]]
_STREAMLESS = ("shift", "flip", "cutout")  # as the older settings; their numbers are from different bits


class Transform(Protocol):
    """One augmentation of uint8 images, (n, height, width, channels)."""

    def draws(self, random: Randomness, size: tuple[int, int]) -> Draws:
        """Return the numbers of images of this height and width: arrays (n,)."""

    def apply(self, images: torch.Tensor, drawn: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the images, changed by `drawn`, on the same device. The argument is not changed."""


class Augmentation:
    """The augmentations of a plan."""

    def __init__(self, plan: Plan) -> None:
        """Prepare the entries of the list.

        Raises:
            TrainingError: a class of the user's own cannot be imported.
        """
        self.plan = plan
        self._steps: list[tuple[str, Any]] = []  # stream of random numbers and transform
        mixing: dict[str, float] = {}
        used: dict[str, int] = {}
        for name, value in entries(plan):
            number = used[name] = used.get(name, 0) + 1
            if name in MIXING:
                mixing[name] = value
            elif name == "own":
                self._steps.append((f"own {number}", OwnTransform(value, plan)))
            else:
                stream = "" if name in _STREAMLESS and number == 1 else f"{name} {number}"
                self._steps.append((stream, _TRANSFORMS[name](value)))
        self.mixing = Mixing(mixing, plan) if mixing else None

    @property
    def own(self) -> list[OwnTransform]:
        """The user's own transforms."""
        return [step for _, step in self._steps if isinstance(step, OwnTransform)]

    def draws(self, keys: Keys, *, epoch: int, size: tuple[int, int]) -> Draws:
        """Return what images of this height and width need: arrays (n,) of numbers or truth values."""
        random = Randomness(keys, self.plan.seed, epoch)
        arrays = [each for name, step in self._steps for each in step.draws(replace(random, stream=name), size)]
        return arrays if self.mixing is None else [*arrays, *self.mixing.draws(random)]

    def apply(self, images: torch.Tensor, drawn: Sequence[torch.Tensor]) -> torch.Tensor:
        """Change each image by itself.

        Args:
            images: uint8 (n, height, width, channels), on any device; not changed.
            drawn: the `draws` of these images, on their device.

        Returns:
            uint8 of the same shape, on the same device.
        """
        first = 0
        for _, step in self._steps:
            last = first + step.count
            images, first = step.apply(images, drawn[first:last]), last
        return images


@dataclass(frozen=True)
class _Shift:
    """Shift by up to so many pixels in each direction."""

    value: int | Sequence[Any]  # pixels, or pixels and fill
    count = 2

    @property
    def padding(self) -> int:
        return self.value if isinstance(self.value, int) else int(self.value[0])

    def draws(self, random: Randomness, size: tuple[int, int]) -> Draws:
        return [random.below(place, 2 * self.padding + 1) for place in (8, 24)]

    def apply(self, images: torch.Tensor, drawn: Sequence[torch.Tensor]) -> torch.Tensor:
        fill = "zeros" if isinstance(self.value, int) else self.value[1]
        return _shifted(images, *drawn, padding=self.padding, fill=fill)


@dataclass(frozen=True)
class _Flip:
    """Mirror left to right.

    Alternating flips mirror half the images in the first epoch and the other half in the next, so two epochs in a row
    show each image both ways (Jordan 2024).
    """

    value: float | str
    count = 1

    def draws(self, random: Randomness, size: tuple[int, int]) -> Draws:
        if self.value == "alternating":
            return [random.bits(epoch=0) & np.uint64(1) != np.uint64(random.epoch % 2)]
        if self.value == 0.5:
            return [random.bits() & np.uint64(1) != np.uint64(0)]
        return [random.uniform(1) < float(self.value)]

    def apply(self, images: torch.Tensor, drawn: Sequence[torch.Tensor]) -> torch.Tensor:
        return _mirrored(images, *drawn)


@dataclass(frozen=True)
class _Cutout:
    """Make a square black (DeVries and Taylor 2017). Its centre is anywhere, so part of it may be outside the image."""

    value: int
    count = 2

    def draws(self, random: Randomness, size: tuple[int, int]) -> Draws:
        return [random.evenly(place, span) for place, span in zip((40, 52), size, strict=True)]

    def apply(self, images: torch.Tensor, drawn: Sequence[torch.Tensor]) -> torch.Tensor:
        down, across = (centre - self.value // 2 for centre in drawn)
        return _blanked(images, down, across, self.value, self.value)


@dataclass(frozen=True)
class _Erase:
    """Make a rectangle black in this share of the images (Zhong et al. 2017).

    It covers 2 to 33 % of the image, and its sides are as 0.3 to 3.3.
    """

    value: float
    count = 4

    def draws(self, random: Randomness, size: tuple[int, int]) -> Draws:
        area, ratio = random.uniform(2, 0.02, 0.33), np.exp(random.uniform(3, np.log(0.3), np.log(3.3)))
        is_erased = random.uniform(1) < self.value
        sides, corners = [], []
        for place, length, share in zip((4, 5), size, (np.sqrt(area * ratio), np.sqrt(area / ratio)), strict=True):
            side = np.clip(np.rint(share * length), 1, length).astype(np.int64)
            corners.append((random.uniform(place) * (length - side + 1)).astype(np.int64))
            sides.append(np.where(is_erased, side, 0))
        return [*corners, *sides]

    def apply(self, images: torch.Tensor, drawn: Sequence[torch.Tensor]) -> torch.Tensor:
        down, across, height, width = drawn
        return _blanked(images, down, across, height[:, None], width[:, None])


@dataclass(frozen=True)
class _Rotate:
    """Turn about the centre by up to so many degrees. The corners are black."""

    value: float
    count = 2

    def draws(self, random: Randomness, size: tuple[int, int]) -> Draws:
        angle = np.deg2rad(random.uniform(1, -self.value, self.value))
        return [np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)]

    def apply(self, images: torch.Tensor, drawn: Sequence[torch.Tensor]) -> torch.Tensor:
        cosine, sine = drawn
        aspect = images.shape[1] / images.shape[2]
        return sampled(images, (cosine, -sine * aspect, 0), (sine / aspect, cosine, 0), padding="zeros")


@dataclass(frozen=True)
class _Crop:
    """Take a crop of random area and aspect ratio, 3:4 to 4:3, and enlarge it to the image's size (Szegedy 2015)."""

    value: Sequence[float]
    count = 4

    def draws(self, random: Randomness, size: tuple[int, int]) -> Draws:
        area, ratio = random.uniform(1, *self.value), np.exp(random.uniform(2, np.log(3 / 4), np.log(4 / 3)))
        sides = [np.minimum(1.0, np.sqrt(area * each)) for each in (ratio, 1 / ratio)]
        centres = [random.uniform(place, -1.0, 1.0) * (1.0 - side) for place, side in zip((3, 4), sides, strict=True)]
        return [array.astype(np.float32) for array in (*sides, *centres)]

    def apply(self, images: torch.Tensor, drawn: Sequence[torch.Tensor]) -> torch.Tensor:
        width, height, across, down = drawn
        return sampled(images, (width, 0, across), (0, height, down), padding="border")


@dataclass(frozen=True)
class _Jitter:
    """Change brightness, contrast and saturation, each by a factor between 1 - value and 1 + value."""

    value: float
    count = 3

    def draws(self, random: Randomness, size: tuple[int, int]) -> Draws:
        return [random.uniform(place, 1 - self.value, 1 + self.value).astype(np.float32) for place in (1, 2, 3)]

    def apply(self, images: torch.Tensor, drawn: Sequence[torch.Tensor]) -> torch.Tensor:
        brightness, contrast, saturation = (factor[:, None, None, None] for factor in drawn)
        images = whole(images * brightness)
        images = blended(images, mean_grey(images), contrast)
        return blended(images, grey(images), saturation) if images.shape[3] == 3 else images


_TRANSFORMS: dict[str, Any] = {
    "shift": _Shift,
    "flip": _Flip,
    "cutout": _Cutout,
    "erase": _Erase,
    "rotate": _Rotate,
    "random-resized-crop": _Crop,
    "color-jitter": _Jitter,
    "rand-augment": RandAugment,
}


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


def _blanked(
    images: torch.Tensor,
    down: torch.Tensor,
    across: torch.Tensor,
    height: torch.Tensor | int,
    width: torch.Tensor | int,
) -> torch.Tensor:
    """Set a rectangle to 0. Its corner is at `down` and `across`, (n,); its sides are numbers or (n, 1)."""
    rows = torch.arange(images.shape[1], device=images.device) - down[:, None]
    columns = torch.arange(images.shape[2], device=images.device) - across[:, None]
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
    return images.masked_fill(inside[..., None], 0)


def _reflected(side: int, padding: int) -> Iterator[tuple[int, int]]:
    """Yield for each line that padding adds to a side its place and the line it repeats. The edge is not repeated.

    Three lines padded by two: (0, 2), (1, 1), (5, 1), (6, 0).
    """
    period = max(1, 2 * (side - 1))
    for place in (*range(padding), *range(padding + side, side + 2 * padding)):
        other = abs(place - padding) % period
        yield place, min(other, period - other)
