"""The list of augmentations: against torchvision, one image at a time, and the older settings bit for bit."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import functional

from ratchet.training import rand_augment
from ratchet.training.augment import Randomness
from ratchet.training.plan import Plan
from ratchet.training.transforms import _TRANSFORMS, Augmentation
from tests.training.conftest import make_plan

KEYS = np.arange(64, dtype=np.uint64) * np.uint64(7919)
SIZE = (12, 16)
EACH: dict[str, list[Any]] = {
    "shift": [{"shift": 2}],
    "flip": [{"flip": 0.3}],
    "cutout": [{"cutout": 5}],
    "erase": [{"erase": 0.8}],
    "rotate": [{"rotate": 30}],
    "crop": [{"random-resized-crop": [0.3, 0.8]}],
    "jitter": [{"color-jitter": 0.4}],
    "rand-augment": [{"rand-augment": 20}],
    "twice": [{"rotate": 10}, {"shift": [2, "reflect"]}, {"rotate": 10}],
}


def images(count: int = 64, *, channels: int = 3) -> torch.Tensor:
    """Return smooth images: the corners, enlarged."""
    small = torch.from_numpy(np.random.default_rng(0).uniform(20, 235, (count, channels, 3, 4)).astype(np.float32))
    return functional.resize(small, list(SIZE), antialias=False).round().to(torch.uint8).permute(0, 2, 3, 1)


def augment(pixels: torch.Tensor, keys: np.ndarray, plan: Plan, *, epoch: int = 1) -> torch.Tensor:
    augmentation = Augmentation(plan)
    drawn = augmentation.draws(keys, epoch=epoch, size=(pixels.shape[1], pixels.shape[2]))
    return augmentation.apply(pixels, [torch.from_numpy(array) for array in drawn])


@pytest.mark.parametrize("listed", EACH.values(), ids=EACH)
@pytest.mark.parametrize("channels", [1, 3])
def test_a_changed_image_depends_on_seed_epoch_and_key(listed: list[Any], channels: int) -> None:
    """Not on its batch: pieces of any size, in any order, have the same bits."""
    pixels, plan = images(channels=channels), make_plan(seed=4, augment=tuple(listed))
    before = pixels.clone()
    whole = augment(pixels, KEYS, plan)
    assert (whole.shape, whole.dtype) == (pixels.shape, torch.uint8)
    assert torch.equal(pixels, before)
    order = np.random.default_rng(1).permutation(64)
    for size in (1, 7, 50):
        pieces = [augment(pixels[rows], KEYS[rows], plan) for rows in np.split(order, range(size, 64, size))]
        assert torch.equal(torch.cat(pieces), whole[order])
    changed = (whole != pixels).flatten(1).any(1).float().mean()
    assert changed > 0.2
    for other in (augment(pixels, KEYS, plan, epoch=2), augment(pixels, KEYS, replace(plan, seed=5))):
        assert not torch.equal(other, whole)


@pytest.mark.parametrize(
    ("older", "listed"),
    [
        ({"flip": "random", "crop_padding": 2}, [{"shift": 2}, {"flip": 0.5}]),
        ({"flip": "none", "crop_padding": 1}, [{"shift": 1}]),
        (
            {"flip": "alternating", "crop_padding": 2, "crop_fill": "reflect", "cutout": 4},
            [{"shift": [2, "reflect"]}, {"flip": "alternating"}, {"cutout": 4}],
        ),
        ({"flip": "none", "crop_padding": 0}, []),
    ],
)
def test_older_settings_have_the_bits_of_their_list(older: dict[str, Any], listed: list[Any]) -> None:
    pixels = images()
    expected = augment(pixels, KEYS, make_plan(seed=3, **older))
    assert torch.equal(augment(pixels, KEYS, make_plan(seed=3, augment=tuple(listed))), expected)


def test_an_entry_that_is_twice_in_the_list_draws_twice() -> None:
    plan = make_plan(augment=({"rotate": 10}, {"rotate": 10}))
    first, _, second, _ = Augmentation(plan).draws(KEYS, epoch=0, size=SIZE)
    assert not np.array_equal(first, second)


def test_a_rotation_equals_that_of_torchvision() -> None:
    """Also of images that are not square. Rounding may differ by a level."""
    pixels, transform = images(), _TRANSFORMS["rotate"](40)
    cosine, sine = transform.draws(Randomness(KEYS, 0, 0), SIZE)
    turned = transform.apply(pixels, [torch.from_numpy(cosine), torch.from_numpy(sine)])
    for pixel, result, angle in zip(pixels, turned, np.rad2deg(np.arctan2(sine, cosine)), strict=True):
        expected = functional.rotate(
            pixel.permute(2, 0, 1), float(angle), interpolation=functional.InterpolationMode.BILINEAR
        ).permute(1, 2, 0)
        inside = expected > 19  # torchvision blends with black at the border in another way
        assert (result.int() - expected.int())[inside & (result > 19)].abs().float().quantile(0.98) <= 1


def test_a_crop_has_the_area_and_place_that_were_drawn() -> None:
    """A gradient from left to right shows where a crop begins and ends."""
    ramp = torch.arange(0, 256, 2, dtype=torch.uint8).expand(128, 128)[None, :, :, None].repeat(64, 1, 1, 1)
    transform = _TRANSFORMS["random-resized-crop"]([0.25, 0.5])
    width, height, across, _ = transform.draws(Randomness(KEYS, 0, 0), (128, 128))
    cropped = transform.apply(
        ramp, [torch.from_numpy(array) for array in transform.draws(Randomness(KEYS, 0, 0), (128, 128))]
    )
    assert (width * height >= 0.2499).all()
    assert (width * height <= 0.5001).all()
    left, right = cropped[:, 64, 0, 0].numpy() / 254, cropped[:, 64, -1, 0].numpy() / 254
    np.testing.assert_allclose(left, (1 + across - width) / 2, atol=0.02)
    np.testing.assert_allclose(right, (1 + across + width) / 2, atol=0.02)


def test_jitter_equals_that_of_torchvision() -> None:
    pixels, transform = images(), _TRANSFORMS["color-jitter"](0.5)
    drawn = transform.draws(Randomness(KEYS, 0, 0), SIZE)
    changed = transform.apply(pixels, [torch.from_numpy(array) for array in drawn])
    for pixel, result, brightness, contrast, saturation in zip(pixels, changed, *drawn, strict=True):
        expected = functional.adjust_brightness(pixel.permute(2, 0, 1), float(brightness))
        expected = functional.adjust_contrast(expected, float(contrast))
        expected = functional.adjust_saturation(expected, float(saturation)).permute(1, 2, 0)
        assert (result.int() - expected.int()).abs().max() <= 5  # torchvision truncates where this rounds


CHANGES = {  # of RandAugment by their amounts, with their counterparts in torchvision
    "_brightened": lambda image, amount: functional.adjust_brightness(image, 1 + 0.9 * amount),
    "_coloured": lambda image, amount: functional.adjust_saturation(image, 1 + 0.9 * amount),
    "_contrasted": lambda image, amount: functional.adjust_contrast(image, 1 + 0.9 * amount),
    "_sharpened": lambda image, amount: functional.adjust_sharpness(image, 1 + 0.9 * amount),
    "_posterised": lambda image, amount: functional.posterize(image, 8 - round(4 * abs(amount))),
    "_solarised": lambda image, amount: functional.solarize(image, 255 * (1 - abs(amount))),
    "_stretched": lambda image, amount: functional.autocontrast(image),
    "_equalised": lambda image, amount: functional.equalize(image),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_of_randaugment_equal_those_of_torchvision(name: str) -> None:
    """Rounding may differ by two levels."""
    pixels, amounts = images(), torch.linspace(-0.6, 0.6, 64)
    result = getattr(rand_augment, name)(pixels, amounts)
    for pixel, changed, amount in zip(pixels, result, amounts, strict=True):
        expected = CHANGES[name](pixel.permute(2, 0, 1), float(amount)).permute(1, 2, 0)
        assert (changed.int() - expected.int()).abs().max() <= 2


def test_erasing_blanks_one_rectangle_in_a_share_of_images() -> None:
    pixels = torch.full((2000, 20, 20, 1), 9, dtype=torch.uint8)
    blank = augment(pixels, np.arange(2000, dtype=np.uint64), make_plan(augment=({"erase": 0.25},)))[..., 0] == 0
    share = blank.flatten(1).any(1).float().mean().item()
    assert 0.2 < share < 0.3
    for mask in blank[blank.flatten(1).any(1)]:
        rows, columns = mask.any(1), mask.any(0)
        assert torch.equal(mask, rows[:, None] & columns[None])
        assert 0.01 < mask.float().mean() < 0.4


def test_a_share_of_flips_is_kept() -> None:
    pixels = images()
    mirrored = augment(pixels, KEYS, make_plan(augment=({"flip": 0.9},)))
    share = (mirrored == pixels.flip(2)).flatten(1).all(1).float().mean().item()
    assert 0.75 < share < 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("listed", EACH.values(), ids=EACH)
def test_a_gpu_changes_images_as_a_cpu_does(listed: list[Any]) -> None:
    """But for the rounding of interpolated pixels."""
    pixels, plan = images(), make_plan(seed=4, augment=tuple(listed))
    augmentation = Augmentation(plan)
    drawn = [torch.from_numpy(array) for array in augmentation.draws(KEYS, epoch=1, size=SIZE)]
    expected = augmentation.apply(pixels, drawn)
    result = augmentation.apply(pixels.cuda(), [array.cuda() for array in drawn]).cpu()
    assert (result.int() - expected.int()).abs().max() <= 1
