"""Corruptions: each does what it says, more so with every strength, and the same every time."""

import numpy as np
import pytest

from ratchet.evaluation.corruptions import KINDS, STRENGTHS, corrupt


def pictures(channels: int = 3, side: int = 32, count: int = 20) -> np.ndarray:
    """Smooth shapes with edges."""
    drawn = np.random.default_rng(0)
    small = drawn.integers(40, 216, (count, side // 5 + 1, side // 5 + 1, channels), dtype=np.uint8)
    return small.repeat(5, axis=1).repeat(5, axis=2)[:, :side, :side]  # not as JPEG's squares of eight lie


def distance(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one.astype(int) - other).mean())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("channels", [1, 3])
def test_each_strength_spoils_more_than_the_one_before(kind: str, channels: int) -> None:
    whole = pictures(channels)
    before = whole.copy()
    found = [distance(corrupt(whole, kind, strength), whole) for strength in STRENGTHS]
    assert found == sorted(found)
    assert found[0] > 0
    np.testing.assert_array_equal(whole, before)
    spoilt = corrupt(whole, kind, 3)
    assert (spoilt.shape, spoilt.dtype) == (whole.shape, np.uint8)
    np.testing.assert_array_equal(spoilt, corrupt(whole, kind, 3))


def test_each_kind_changes_what_it_is_called_after() -> None:
    whole = pictures()
    assert corrupt(whole, "brightness", 2).mean() == pytest.approx(whole.mean() + 25.5, abs=0.6)
    assert corrupt(whole, "contrast", 2).std(axis=(1, 2)).mean() == pytest.approx(
        whole.std(axis=(1, 2)).mean() / 2, rel=0.02
    )
    grey = np.full((4, 64, 64, 3), 128, np.uint8)
    assert corrupt(grey, "noise", 5).std() == pytest.approx(25.5, rel=0.03)
    edges = np.abs(np.diff(whole.astype(int), axis=2)).max(axis=(1, 2, 3))
    assert (np.abs(np.diff(corrupt(whole, "blur", 5).astype(int), axis=2)).max(axis=(1, 2, 3)) < 0.6 * edges).all()


def test_a_larger_picture_is_blurred_in_proportion() -> None:
    small, large = pictures(side=32), pictures(side=32).repeat(4, axis=1).repeat(4, axis=2)
    again = corrupt(large, "blur", 4).reshape(20, 32, 4, 32, 4, 3).mean(axis=(2, 4))
    assert distance(again, corrupt(small, "blur", 4)) < 0.35 * distance(small, corrupt(small, "blur", 4))


@pytest.mark.parametrize("kind", KINDS)
def test_no_pictures_are_no_trouble(kind: str) -> None:
    assert corrupt(np.zeros((0, 8, 8, 3), np.uint8), kind, 1).shape == (0, 8, 8, 3)
