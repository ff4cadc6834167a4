"""Augmentation and order: pixels against a plain loop over the images, chance against what it must reach."""

import threading
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from ratchet.training import batches
from ratchet.training.augment import epoch_order, sample_bits
from ratchet.training.batches import ahead, step_rows
from ratchet.training.device import moved
from ratchet.training.plan import Plan
from ratchet.training.transforms import Augmentation
from tests.training.conftest import make_plan

KEYS = np.arange(10_000, dtype=np.uint64) * np.uint64(7919)


def random_images(count: int, *, height: int = 5, width: int = 6, channels: int = 2) -> torch.Tensor:
    values = np.random.default_rng(0).integers(1, 256, (count, height, width, channels))
    return torch.from_numpy(values.astype(np.uint8))  # no zero: what was filled in can be recognised


def augment(images: torch.Tensor, keys: np.ndarray, plan: Plan, *, epoch: int) -> torch.Tensor:
    """Return the images as a split of them gives them to training."""
    augmentation = Augmentation(plan)
    drawn = augmentation.draws(keys, epoch=epoch, size=(images.shape[1], images.shape[2]))
    return augmentation.apply(images, [torch.from_numpy(each) for each in drawn])


def shifted(image: np.ndarray, down: int, across: int, *, mirrored: bool, fill: str) -> np.ndarray:
    """One image moved up by `down` and left by `across` (negative: the other way), then mirrored."""
    mode = {"mode": "constant"} if fill == "zeros" else {"mode": "reflect"}
    reach = max(abs(down), abs(across))
    padded = np.pad(image, ((reach, reach), (reach, reach), (0, 0)), **mode)
    height, width = image.shape[:2]
    window = padded[reach + down : reach + down + height, reach + across : reach + across + width]
    return window[:, ::-1] if mirrored else window


@pytest.mark.parametrize("fill", ["zeros", "reflect"])
@pytest.mark.parametrize(("flip", "padding"), [("random", 0), ("none", 1), ("alternating", 2), ("random", 2)])
def test_all_allowed_flips_and_shifts_occur(flip: str, padding: int, fill: str) -> None:
    """Every image is one allowed flip and shift, and each of them occurs."""
    images = random_images(600)
    plan = make_plan(seed=3, flip=flip, crop_padding=padding, crop_fill=fill)
    changed = augment(images, KEYS[:600], plan, epoch=2).numpy()
    span = range(-padding, padding + 1)
    allowed = [(down, across, mirrored) for down in span for across in span for mirrored in {False, flip != "none"}]
    seen: dict[tuple[int, int, bool], int] = dict.fromkeys(allowed, 0)
    for image, result in zip(images.numpy(), changed, strict=True):
        matching = [
            how for how in allowed if np.array_equal(shifted(image, *how[:2], mirrored=how[2], fill=fill), result)
        ]
        assert len(matching) == 1
        seen[matching[0]] += 1
    expected = 600 / len(allowed)
    assert all(abs(count - expected) < 5 * expected**0.5 for count in seen.values()), seen


def test_nothing_switched_on_changes_nothing() -> None:
    images = random_images(4)
    assert augment(images, KEYS[:4], make_plan(flip="none", crop_padding=0), epoch=0) is images


def test_alternating_flips_show_both_sides_in_two_epochs() -> None:
    """Any two epochs in a row show every image both ways."""
    images = random_images(200)
    plan = make_plan(flip="alternating", crop_padding=0, seed=5)
    shown = [augment(images, KEYS[:200], plan, epoch=epoch) for epoch in range(4)]
    for before, after in pairwise(shown):
        assert torch.equal(after, before.flip(2))
    share = (shown[0] != images).flatten(1).any(1).float().mean().item()
    assert 0.35 < share < 0.65


@pytest.mark.parametrize("side", [1, 2, 3, 50])
def test_cutout_blanks_one_square_that_may_hang_over_the_edge(side: int) -> None:
    images = random_images(500)
    plan = make_plan(flip="none", crop_padding=0, cutout=side)
    blank = (augment(images, KEYS[:500], plan, epoch=1) == 0).all(3).numpy()
    squares = set()
    for row in range(5):
        for column in range(6):
            square = np.zeros((5, 6), bool)
            top, left = row - side // 2, column - side // 2
            square[max(0, top) : max(0, top + side), max(0, left) : max(0, left + side)] = True
            squares.add(square.tobytes())
    assert {each.tobytes() for each in blank} == squares


def test_augmentation_depends_on_seed_epoch_and_key() -> None:
    images, keys = random_images(64), KEYS[:64]
    plan = make_plan(seed=1, flip="random", crop_padding=2, cutout=2)
    whole = augment(images, keys, plan, epoch=4)
    order = np.random.default_rng(1).permutation(64)
    changed = augment(images[order], keys[order], plan, epoch=4)
    assert torch.equal(changed, whole[order])
    micro = [augment(images[i : i + 7], keys[i : i + 7], plan, epoch=4) for i in range(0, 64, 7)]
    assert torch.equal(torch.cat(micro), whole)
    assert not torch.equal(augment(images, keys, plan, epoch=5), whole)
    assert not torch.equal(augment(images, keys, replace(plan, seed=2), epoch=4), whole)


def test_a_sample_is_not_treated_alike_in_all_epochs() -> None:
    epochs = np.stack([sample_bits(KEYS[:50], seed=0, epoch=epoch) & np.uint64(1) for epoch in range(40)])
    assert (epochs.min(0) == 0).all()
    assert (epochs.max(0) == 1).all()


def test_bits_are_even_and_differ_between_samples() -> None:
    bits = sample_bits(KEYS, seed=0, epoch=0)
    assert len(np.unique(bits)) == len(KEYS)
    items = np.unpackbits(bits.view(np.uint8)).reshape(len(KEYS), 64).mean(0)
    assert abs(items - 0.5).max() < 0.025  # five standard errors of 10,000 tosses


def test_labels_and_images_of_a_batch_stay_together(lab) -> None:
    rows = np.array([17, 3, 29, 3])
    (plain,), labels = lab.train.batch(rows, torch.device("cpu"))
    (changed,), same_labels = lab.train.batch(rows, torch.device("cpu"), plan=lab.plan(crop_padding=0), epoch=1)
    assert labels.tolist() == same_labels.tolist() == lab.train.targets[rows].tolist()
    assert plain.shape == changed.shape == (4, 1, 8, 8)
    for before, after in zip(plain, changed, strict=True):
        assert torch.equal(after, before) or torch.equal(after, before.flip(2))
    assert torch.equal(changed[1], changed[3])  # one key, one fate


@pytest.mark.parametrize("rows", [1, 2, 30, 1000])
def test_epoch_order_depends_on_seed_and_epoch(rows: int) -> None:
    """The order is a permutation."""
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
    each, three = lab.split("train", 30), lab.split("train", 30, shards=3)
    assert len(three.arrays[0].shards) == 3
    assert np.array_equal(three.images(rows), each.images(rows))
    assert np.array_equal(three.images(rows), np.concatenate(three.arrays[0].shards)[rows])


def test_a_feed_yields_its_batches_with_or_without_prefetch(lab) -> None:
    pieces = [np.array([3, 1]), np.array([7]), np.arange(20, 28)]
    device, plan = torch.device("cpu"), lab.plan()
    one_by_one = [lab.train.batch(rows, device, plan=plan, epoch=2) for rows in pieces]
    for fed in (lab.train.feed(pieces, device, plan=plan, epoch=2), ahead(iter(one_by_one))):
        for ((images,), labels), ((expected,), expected_labels) in zip(fed, one_by_one, strict=True):
            assert torch.equal(images, expected)
            assert torch.equal(labels, expected_labels)


@pytest.mark.parametrize("changes", [{}, {"flip": "none", "crop_padding": 0}, {"flip": "alternating", "cutout": 3}])
def test_batches_of_a_resident_split_are_those_of_the_host(lab, monkeypatch, changes: dict[str, Any]) -> None:
    """A GPU that has the whole split gets the row numbers and draws of 64 batches at once."""
    pieces, device = [np.array([number % 30, 3]) for number in range(70)], torch.device("cpu")
    plan = lab.plan(**changes)
    expected = [lab.train.batch(rows, device, plan=plan, epoch=2) for rows in pieces]
    copies = []
    monkeypatch.setattr(batches, "moved", lambda array, device: copies.append(len(array)) or moved(array, device))
    resident = lab.train._resident_batches(lab.train._whole(device), pieces, device, plan, 2)
    for ((images,), labels), ((same_images,), same_labels) in zip(resident, expected, strict=True):
        assert torch.equal(images, same_images)
        assert torch.equal(labels, same_labels)
    assert set(copies) == {128, 12}
    assert len(copies) == 2 * (1 + 2 * bool(plan.crop_padding) + (plan.flip != "none") + 2 * bool(plan.cutout))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_batches_on_a_gpu_equal_those_on_a_cpu(lab) -> None:
    pieces, others = [np.arange(20, 28), np.array([3, 1])], threading.enumerate()
    plan = lab.plan(cutout=3)
    expected = [lab.train.batch(rows, torch.device("cpu"), plan=plan, epoch=2) for rows in pieces]
    fed = lab.train.feed(pieces, torch.device("cuda"), plan=plan, epoch=2)
    for ((images,), labels), ((same_images,), same_labels) in zip(fed, expected, strict=True):
        assert torch.equal(images.cpu(), same_images)
        assert torch.equal(labels.cpu(), same_labels)
        assert threading.enumerate() == others


def test_prefetch_ends_with_its_consumer_and_raises_errors() -> None:
    created, others = [], threading.enumerate()

    def endless():
        number = 0
        while True:
            created.append(number)
            yield number
            number += 1

    taken = ahead(endless(), depth=2)
    assert [next(taken), next(taken)] == [0, 1]
    taken.close()
    assert len(created) <= 6
    assert not [each for each in threading.enumerate() if each.name.startswith("batches") and each not in others]

    def failing():
        yield 1
        raise ValueError("the third shelf is empty")

    with pytest.raises(ValueError, match="third shelf"):
        list(ahead(failing()))


def centres(side: int, count: int, *, epoch: int = 0) -> np.ndarray:
    """Return the places of the squares of one pixel on images of `side` x 1 pixels."""
    keys = np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    plan = make_plan(flip="none", crop_padding=0, cutout=1)
    images = np.ones((1, side, 1, 1), np.uint8)
    parts = [torch.from_numpy(images.repeat(len(part), 0)) for part in np.array_split(keys, max(1, count * side >> 26))]
    shown = [
        augment(part, mine, plan, epoch=epoch)
        for part, mine in zip(parts, np.array_split(keys, len(parts)), strict=True)
    ]
    return torch.cat([(each == 0).flatten(1).int().argmax(1) for each in shown]).numpy()


@pytest.mark.parametrize("side", [7, 28, 96, 224])
def test_a_cutout_is_as_likely_at_each_pixel(side: int) -> None:
    """Chi squared over many draws: below the 99.99 % quantile, which twelve bits exceed many times over at 224."""
    count = 2000 * side
    observed = np.bincount(centres(side, count), minlength=side)
    assert ((observed - 2000) ** 2 / 2000).sum() < chi2.ppf(0.9999, side - 1)


def test_a_cutout_reaches_every_part_of_a_large_image() -> None:
    actual = centres(6000, 3000)
    assert actual.max() > 5900
    assert (actual >= 4096).mean() == pytest.approx(1 - 4096 / 6000, abs=0.04)


def test_cutouts_for_powers_of_two_are_unchanged() -> None:
    """32 pixels, as CIFAR-10's: twelve of the sample's own bits, by hand."""
    keys = np.arange(500, dtype=np.uint64)
    bits = sample_bits(keys, seed=3, epoch=2)
    images = torch.ones(500, 32, 32, 1, dtype=torch.uint8)
    blank = augment(images, keys, make_plan(seed=3, flip="none", crop_padding=0, cutout=1), epoch=2)[..., 0] == 0
    expected = (bits >> np.uint64(40) & np.uint64(31)) * np.uint64(32) + (bits >> np.uint64(52) & np.uint64(31))
    assert blank.flatten(1).int().argmax(1).tolist() == expected.tolist()
