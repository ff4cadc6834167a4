"""Near-duplicates: copies with various changes are found, and different images are not reported."""

import io
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from PIL import Image, ImageEnhance, ImageFilter

from ratchet.data.checks.near_duplicates import near_duplicate_pairs, signatures, similar_pairs


def drawn(count: int, side: int = 32) -> np.ndarray:
    """Return images with large shapes, like photos: noise of few pixels, enlarged."""
    generator = np.random.default_rng(0)
    small = generator.integers(0, 256, (count, 6, 6, 3), dtype=np.uint8)
    return np.stack(
        [np.asarray(Image.fromarray(noise).resize((side, side), Image.Resampling.BICUBIC)) for noise in small]
    )


def saved(image: Image.Image) -> Image.Image:
    content = io.BytesIO()
    image.save(content, "JPEG", quality=60)
    return Image.open(content)


CHANGES = {
    "saved as JPEG": saved,
    "brighter": lambda image: ImageEnhance.Brightness(image).enhance(1.15),
    "less contrast": lambda image: ImageEnhance.Contrast(image).enhance(0.8),
    "scaled": lambda image: image.resize((20, 20)).resize(image.size),
    "blurred": lambda image: image.filter(ImageFilter.GaussianBlur(0.7)),
    "grey": lambda image: image.convert("L").convert("RGB"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_copies_are_found_and_no_other_pair(change: str) -> None:
    before = drawn(300)
    after = np.stack([np.asarray(CHANGES[change](Image.fromarray(image))) for image in before])
    pairs = search(np.concatenate([before, after]))
    copies = {(number, 300 + number) for number in range(300)}
    assert len(pairs & copies) >= 0.75 * len(copies)  # for noise; for photos nearly all
    assert not pairs - copies


@pytest.mark.parametrize("side", [8, 20, 28, 64, 100])
def test_images_of_any_size_and_grey_have_fingerprints(side: int) -> None:
    marks, small = signatures(drawn(4, side)[..., :1])
    assert (marks.dtype, marks.shape, small.shape) == (np.uint64, (4,), (4, 8, 8))
    assert len(set(marks.tolist())) == 4


def test_flat_images_are_not_near_duplicates() -> None:
    flat = np.stack([np.full((16, 16, 3), value, np.uint8) for value in range(0, 200, 10)])
    assert search(flat) == set()


def test_search_finds_what_comparing_all_images_finds() -> None:
    """More images than may share a part of a fingerprint are flat; copies among the others differ by noise."""
    drawn_images, generator = drawn(40, 16).astype(np.int64), np.random.default_rng(1)
    copies = np.repeat(drawn_images, 5, axis=0)
    copies = np.clip(copies + generator.integers(-12, 13, copies.shape), 0, 255).astype(np.uint8)
    images = signatures(np.concatenate([copies, np.full((2_100, 16, 16, 3), 7, np.uint8)]))
    marks, small = images.fingerprints, images.small.reshape(-1, 64).astype(float)
    pairs = set()
    for row in range(len(copies)):
        differ = marks[row] ^ marks
        shares = [(differ >> np.uint64(shift)) & np.uint64(0xFFFF) == 0 for shift in (0, 16, 32, 48)]
        near = np.any(shares, axis=0) & (np.bitwise_count(differ) <= 8) & (np.arange(len(marks)) > row)
        for other in np.flatnonzero(near):
            if np.ptp(small[other]) and np.corrcoef(small[row], small[other])[0, 1] >= 0.98:
                pairs.add((row, int(other)))
    assert len(pairs) > 100
    assert similar_pairs(images).rows() == sorted(pairs)  # each once


def test_an_empty_set_has_no_pairs() -> None:
    assert search(np.zeros((0, 16, 16, 3), np.uint8)) == set()


def test_pairs_have_ids_and_splits_but_no_exact_copies() -> None:
    images = drawn(3)
    near = np.asarray(saved(Image.fromarray(images[0])))
    index = pl.DataFrame(
        {
            "id": ["a", "b", "again", "c", "near"],
            "split": ["train", "train", "train", "test", "test"],
            "pixels": ["0", "1", "1", "2", "3"],
        }
    )
    pixels = np.stack([images[0], images[1], images[1], images[2], near])
    assert near_duplicate_pairs(index, [signatures(pixels[:3]), signatures(pixels[3:])]).to_dicts() == [
        {"one_id": "a", "one_split": "train", "other_id": "near", "other_split": "test"}
    ]


def test_known_pairs_of_cifar_are_found(shared) -> None:
    """Barz and Denzler 2020 found 3.3 % of the test images among the training images, mostly changed a little."""
    import pickle

    folder: Path = shared("cifar-10-batches-py") / "cifar-10-batches-py"
    content = [
        pickle.loads((folder / name).read_bytes(), encoding="bytes")[b"data"] for name in ("data_batch_1", "test_batch")
    ]
    images = np.concatenate(content).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    pairs = similar_pairs(signatures(images))
    assert pairs.height >= 20
    across = pairs.filter((pl.col("one") < 10_000) & (pl.col("other") >= 10_000))
    assert across.height >= 5
    left, right = (images[pairs[name].to_numpy()].astype(float) for name in ("one", "other"))
    correlations = [np.corrcoef(a.ravel(), b.ravel())[0, 1] for a, b in zip(left, right, strict=True)]
    assert np.median(correlations) > 0.9


def search(pixels: np.ndarray) -> set[tuple[int, int]]:
    return set(similar_pairs(signatures(pixels)).rows())
