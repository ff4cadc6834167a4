"""Corruptions have their documented effect, grow with the strength and are reproducible."""

import numpy as np
import pytest

from ratchet.evaluation.robustness import KINDS, STRENGTHS, corrupt


def images(channels: int = 3, side: int = 32, count: int = 20) -> np.ndarray:
    """Return smooth shapes with edges."""
    drawn = np.random.default_rng(0)
    small = drawn.integers(40, 216, (count, side // 5 + 1, side // 5 + 1, channels), dtype=np.uint8)
    return small.repeat(5, axis=1).repeat(5, axis=2)[
        :, :side, :side
    ]  # squares of 5, which are not aligned with JPEG's blocks of 8


def distance(first: np.ndarray, second: np.ndarray) -> float:
    return float(np.abs(first.astype(int) - second).mean())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("channels", [1, 3])
def test_each_strength_corrupts_more_than_the_previous(kind: str, channels: int) -> None:
    whole = images(channels)
    before = whole.copy()
    distances = [distance(corrupt(whole, kind, strength), whole) for strength in STRENGTHS]
    assert distances == sorted(distances)
    assert distances[0] > 0
    np.testing.assert_array_equal(whole, before)
    corrupted = corrupt(whole, kind, 3)
    assert (corrupted.shape, corrupted.dtype) == (whole.shape, np.uint8)
    np.testing.assert_array_equal(corrupted, corrupt(whole, kind, 3))


def test_each_kind_has_its_documented_effect() -> None:
    whole = images()
    assert corrupt(whole, "brightness", 2).mean() == pytest.approx(whole.mean() + 25.5, abs=0.6)
    assert corrupt(whole, "contrast", 2).std(axis=(1, 2)).mean() == pytest.approx(
        whole.std(axis=(1, 2)).mean() / 2, rel=0.02
    )
    grey = np.full((4, 64, 64, 3), 128, np.uint8)
    assert corrupt(grey, "noise", 5).std() == pytest.approx(25.5, rel=0.03)
    edges = np.abs(np.diff(whole.astype(int), axis=2)).max(axis=(1, 2, 3))
    assert (np.abs(np.diff(corrupt(whole, "blur", 5).astype(int), axis=2)).max(axis=(1, 2, 3)) < 0.6 * edges).all()


def test_blur_is_proportional_to_the_image_size() -> None:
    small, large = images(side=32), images(side=32).repeat(4, axis=1).repeat(4, axis=2)
    again = corrupt(large, "blur", 4).reshape(20, 32, 4, 32, 4, 3).mean(axis=(2, 4))
    assert distance(again, corrupt(small, "blur", 4)) < 0.35 * distance(small, corrupt(small, "blur", 4))


@pytest.mark.parametrize("kind", KINDS)
def test_empty_arrays_are_accepted(kind: str) -> None:
    assert corrupt(np.zeros((0, 8, 8, 3), np.uint8), kind, 1).shape == (0, 8, 8, 3)
