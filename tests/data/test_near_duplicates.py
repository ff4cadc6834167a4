"""Near-duplicates: copies with various changes are found, and different images are not reported."""

import io
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from ratchet import files
from ratchet.data.checks.near_duplicates import NearDuplicates, signatures, similar_pairs
from ratchet.data.reading.pixels import to_pixels


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
    pairs = set(search(np.concatenate([before, after])))
    copies = {(number, 300 + number) for number in range(300)}
    assert len(pairs & copies) >= 0.75 * len(copies)  # for noise; for photos nearly all
    assert not pairs - copies


@pytest.mark.parametrize("side", [8, 20, 28, 64, 100])
def test_images_of_any_size_and_grey_have_fingerprints(side: int) -> None:
    marks, small = signatures(drawn(4, side)[..., :1])
    assert (marks.dtype, marks.shape, small.shape) == (np.uint64, (4, 8), (4, 8, 8))
    assert len(set(marks.ravel().tolist())) == 4 * 8


def test_a_turned_image_has_the_fingerprints_of_the_image_turned() -> None:
    images = drawn(20, 24)
    marks = signatures(images).fingerprints
    for change in TURNS.values():
        turned = np.stack([np.asarray(change(Image.fromarray(image))) for image in images])
        first = signatures(turned).fingerprints[:, 0]
        assert [mark in every for mark, every in zip(first.tolist(), marks.tolist(), strict=True)] == [True] * 20


def test_flat_images_are_not_near_duplicates() -> None:
    flat = np.stack([np.full((16, 16, 3), value, np.uint8) for value in range(0, 200, 10)])
    assert search(flat) == {}


def test_an_empty_set_has_no_pairs() -> None:
    assert search(np.zeros((0, 16, 16, 3), np.uint8)) == {}


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
    near_duplicates = NearDuplicates()
    pixels = np.stack([images[0], images[1], images[1], images[2], near])
    near_duplicates.add(signatures(pixels[:3]))
    near_duplicates.add(signatures(pixels[3:]))
    assert near_duplicates.pairs(index, lambda rows: pixels[rows]).to_dicts() == [
        {"one_id": "a", "one_split": "train", "other_id": "near", "other_split": "test", "change": "none"}
    ]


def test_known_pairs_of_cifar_are_found(shared) -> None:
    """Barz and Denzler 2020 found 3.3 % of the test images among the training images, mostly changed a little."""
    import pickle

    folder: Path = shared("cifar-10-batches-py") / "cifar-10-batches-py"
    content = [
        pickle.loads((folder / name).read_bytes(), encoding="bytes")[b"data"] for name in ("data_batch_1", "test_batch")
    ]
    images = np.concatenate(content).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    pairs = similar_pairs(signatures(images), lambda rows: images[rows]).filter(change="none")
    assert pairs.height >= 20
    across = pairs.filter((pl.col("one") < 10_000) & (pl.col("other") >= 10_000))
    assert across.height >= 5
    left, right = (images[pairs[name].to_numpy()].astype(float) for name in ("one", "other"))
    correlations = [np.corrcoef(a.ravel(), b.ravel())[0, 1] for a, b in zip(left, right, strict=True)]
    assert np.median(correlations) > 0.9


TURNS = {
    "mirrored": ImageOps.mirror,
    "upside down": ImageOps.flip,
    "turned by 90": lambda image: image.transpose(Image.Transpose.ROTATE_90),
    "turned by 180": lambda image: image.transpose(Image.Transpose.ROTATE_180),
    "turned by 270": lambda image: image.transpose(Image.Transpose.ROTATE_270),
}


def photos(shared, count: int) -> list[Image.Image]:
    folder: Path = shared("hymenoptera") / "hymenoptera" / "train"
    return [Image.open(path).convert("RGB") for path in sorted(folder.rglob("*.jpg"))[:count]]


def cifar(shared, count: int) -> np.ndarray:
    import pickle

    path = shared("cifar-10-batches-py") / "cifar-10-batches-py" / "data_batch_1"
    content = pickle.loads(path.read_bytes(), encoding="bytes")[b"data"]
    return np.ascontiguousarray(content.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)[:count])


def search(pixels: np.ndarray) -> dict[tuple[int, int], str]:
    """Return the change of each pair that is found."""
    pairs = similar_pairs(signatures(pixels), lambda rows: pixels[rows])
    return {(left, right): change for left, right, change in pairs.rows()}


@pytest.mark.parametrize("change", TURNS)
def test_mirrored_and_turned_photos_are_found(change: str, shared) -> None:
    """Each photo and its changed copy, saved as JPEG again, among 1,000 others; no other pair is reported."""
    images = photos(shared, 60)
    act = TURNS[change]
    before, after = (
        np.stack([to_pixels(image, size=64, channels=3) for image in some])
        for some in (images, [saved(act(image)) for image in images])
    )
    others = np.stack([np.asarray(Image.fromarray(pixels).resize((64, 64))) for pixels in cifar(shared, 1000)])
    pairs = search(np.concatenate([before, after, others]))
    copies = {(number, 60 + number) for number in range(60)}
    assert len(pairs.keys() & copies) >= 0.95 * 60
    assert not pairs.keys() - copies
    assert set(pairs.values()) == {"turned"}


def test_different_photos_are_not_paired(shared) -> None:
    assert "turned" not in search(cifar(shared, 2000)).values()


def test_small_images_are_not_searched_for_turned_copies() -> None:
    before = drawn(20, 8)
    assert search(np.concatenate([before, before[:, :, ::-1]])) == {}


def test_grey_images_are_found_mirrored() -> None:
    before = drawn(200, 40)[..., :1]
    pairs = search(np.concatenate([before, before[:, :, ::-1]]))
    assert set(pairs) == {(number, 200 + number) for number in range(200)}


def test_ingest_names_mirrored_copies_in_other_splits(place) -> None:
    for split, count in (("train", 30), ("val", 12), ("test", 12)):
        for number in range(count):
            for label in ("cat", "dog"):
                path = place.root / "images" / split / label / f"{number:02d}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                seed = ["train", "val", "test"].index(split) * 1000 + number + 500 * (label == "dog")
                noise = np.random.default_rng(seed).integers(0, 256, (7, 7, 3), dtype=np.uint8)
                Image.fromarray(noise).resize((48, 48), Image.Resampling.BICUBIC).save(path)
    for number in range(5):
        copy = ImageOps.mirror(Image.open(place.root / "images" / "train" / "cat" / f"{number:02d}.png"))
        copy.save(place.root / "images" / "test" / "cat" / f"mirrored-{number:02d}.png")
    place.ingest()
    near = files.read_json(place.packed / "profile.json")["near_duplicates"]
    assert (near["pairs"], near["across_splits"], near["changes"]) == (5, 5, {"turned": 5})
    assert near["first"][0] == {
        "ids": ["train/cat/00.png", "test/cat/mirrored-00.png"],
        "splits": ["train", "test"],
        "change": "turned",
    }
