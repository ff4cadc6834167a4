"""Augmentation and order: pixels against a plain loop over the images, chance against what it must reach."""

import numpy as np
import pytest
import torch

from ratchet.training.augment import augment, epoch_order, sample_bits
from ratchet.training.batches import step_rows

KEYS = np.arange(10_000, dtype=np.uint64) * np.uint64(7919)


def pictures(count: int, *, height: int = 5, width: int = 6, channels: int = 2) -> torch.Tensor:
    values = np.random.default_rng(0).integers(1, 256, (count, height, width, channels))
    return torch.from_numpy(values.astype(np.uint8))  # no zero: what was filled in can be told apart


def shifted(image: np.ndarray, down: int, across: int, *, mirrored: bool) -> np.ndarray:
    """One image moved up by `down` and left by `across` (negative: the other way), zeros drawn in."""
    if mirrored:
        image = image[:, ::-1]
    result = np.zeros_like(image)
    height, width = image.shape[:2]
    for row in range(height):
        for column in range(width):
            if 0 <= row + down < height and 0 <= column + across < width:
                result[row, column] = image[row + down, column + across]
    return result


@pytest.mark.parametrize(("flip", "padding"), [(True, 0), (False, 1), (True, 2)])
def test_every_image_is_one_allowed_flip_and_shift_and_every_one_occurs(flip: bool, padding: int) -> None:
    images = pictures(600)
    changed = augment(images, KEYS[:600], seed=3, epoch=2, flip=flip, padding=padding).numpy()
    span = range(-padding, padding + 1)
    allowed = [(down, across, mirrored) for down in span for across in span for mirrored in ({False, flip})]
    seen: dict[tuple[int, int, bool], int] = dict.fromkeys(allowed, 0)
    for image, result in zip(images.numpy(), changed, strict=True):
        matching = [how for how in allowed if np.array_equal(shifted(image, how[0], how[1], mirrored=how[2]), result)]
        assert len(matching) == 1
        seen[matching[0]] += 1
    expected = 600 / len(allowed)
    assert all(abs(count - expected) < 5 * expected**0.5 for count in seen.values()), seen


def test_nothing_switched_on_changes_nothing() -> None:
    images = pictures(4)
    assert augment(images, KEYS[:4], seed=0, epoch=0, flip=False, padding=0) is images


def test_what_happens_to_a_sample_depends_on_seed_epoch_and_key_alone() -> None:
    images, keys = pictures(64), KEYS[:64]
    settings = {"flip": True, "padding": 2}
    whole = augment(images, keys, seed=1, epoch=4, **settings)
    order = np.random.default_rng(1).permutation(64)
    moved = augment(images[order], keys[order], seed=1, epoch=4, **settings)
    assert torch.equal(moved, whole[order])
    micro = [augment(images[i : i + 7], keys[i : i + 7], seed=1, epoch=4, **settings) for i in range(0, 64, 7)]
    assert torch.equal(torch.cat(micro), whole)
    for other in ({"seed": 2, "epoch": 4}, {"seed": 1, "epoch": 5}):
        assert not torch.equal(augment(images, keys, **other, **settings), whole)


def test_a_sample_is_not_treated_alike_in_all_epochs() -> None:
    epochs = np.stack([sample_bits(KEYS[:50], seed=0, epoch=epoch) & np.uint64(1) for epoch in range(40)])
    assert (epochs.min(0) == 0).all()
    assert (epochs.max(0) == 1).all()


def test_bits_are_even_and_differ_between_samples() -> None:
    bits = sample_bits(KEYS, seed=0, epoch=0)
    assert len(np.unique(bits)) == len(KEYS)
    ones = np.unpackbits(bits.view(np.uint8)).reshape(len(KEYS), 64).mean(0)
    assert abs(ones - 0.5).max() < 0.025  # five standard errors of 10,000 tosses


def test_labels_and_pictures_of_a_batch_stay_together(lab) -> None:
    rows = np.array([17, 3, 29, 3])
    plain, labels = lab.train.batch(rows, torch.device("cpu"))
    changed, same_labels = lab.train.batch(rows, torch.device("cpu"), lab.plan(crop_padding=0), epoch=1)
    assert labels.tolist() == same_labels.tolist() == lab.train.labels[rows].tolist()
    assert plain.shape == changed.shape == (4, 1, 8, 8)
    for before, after in zip(plain, changed, strict=True):
        assert torch.equal(after, before) or torch.equal(after, before.flip(2))
    assert torch.equal(changed[1], changed[3])  # one key, one fate


@pytest.mark.parametrize("rows", [1, 2, 30, 1000])
def test_an_epochs_order_is_a_permutation_that_seed_and_epoch_decide(rows: int) -> None:
    order = epoch_order(rows, seed=1, epoch=2)
    assert sorted(order) == list(range(rows))
    assert np.array_equal(order, epoch_order(rows, seed=1, epoch=2))
    if rows == 1000:
        assert not np.array_equal(order, epoch_order(rows, seed=1, epoch=3))
        assert not np.array_equal(order, epoch_order(rows, seed=2, epoch=2))


@pytest.mark.parametrize(
    ("rows", "batch", "expected"),
    [
        (10, 4, [(0, 4), (4, 8), (8, 10)]),
        (8, 4, [(0, 4), (4, 8)]),
        (9, 4, [(0, 4), (4, 9)]),  # a single left-over sample joins the batch before it
        (1, 4, [(0, 1)]),
        (3, 10, [(0, 3)]),
        (3, 1, [(0, 1), (1, 3)]),
    ],
)
def test_an_epochs_steps_cover_every_row_once(rows: int, batch: int, expected: list[tuple[int, int]]) -> None:
    assert step_rows(rows, batch) == expected


def test_rows_come_from_the_shard_that_holds_them(lab) -> None:
    rows = np.array([29, 0, 10, 9, 20, 19, 0])
    one, three = lab.split("train", 30), lab.split("train", 30, shards=3)
    assert len(three.shards) == 3
    assert np.array_equal(three.gather(rows), one.gather(rows))
    assert np.array_equal(three.gather(rows), np.concatenate(three.shards)[rows])
