"""Pictures that look the same: which changes are seen through, and that different pictures are not confounded."""

import io
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from ratchet import files
from ratchet.data.checks.near_duplicates import NearDuplicates, fingerprints, look, pairs
from ratchet.data.checks.transformed_duplicates import transformed_pairs
from ratchet.data.reading.images import to_pixels


def drawn(count: int, side: int = 32) -> np.ndarray:
    """Pictures with large shapes, as photos have: noise of few pixels, enlarged."""
    generator = np.random.default_rng(0)
    small = generator.integers(0, 256, (count, 6, 6, 3), dtype=np.uint8)
    return np.stack([np.asarray(Image.fromarray(one).resize((side, side), Image.Resampling.BICUBIC)) for one in small])


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
def test_a_picture_is_found_again_and_no_other_is_taken_for_it(change: str) -> None:
    before = drawn(300)
    after = np.stack([np.asarray(CHANGES[change](Image.fromarray(one))) for one in before])
    marks, small = fingerprints(np.concatenate([before, after]))
    found = set(pairs(marks, small).select("one", "other").rows())
    right = {(number, 300 + number) for number in range(300)}
    assert len(found & right) >= 0.75 * len(right)  # of noise; of photos nearly all
    assert not found - right


@pytest.mark.parametrize("side", [8, 20, 28, 64, 100])
def test_any_size_and_grey_pictures_have_fingerprints(side: int) -> None:
    marks, small = fingerprints(drawn(4, side)[..., :1])
    assert (marks.dtype, marks.shape, small.shape) == (np.uint64, (4,), (4, 8, 8))
    assert len(set(marks.tolist())) == 4


def test_flat_pictures_are_not_all_alike() -> None:
    flat = np.stack([np.full((16, 16, 3), value, np.uint8) for value in range(0, 200, 10)])
    marks, small = fingerprints(flat)
    assert pairs(marks, small).is_empty()


def test_nothing_is_found_among_nothing() -> None:
    marks, small = fingerprints(np.zeros((0, 16, 16, 3), np.uint8))
    assert pairs(marks, small).is_empty()


def test_pairs_are_told_by_id_and_split_and_exact_copies_are_not_among_them() -> None:
    pictures = drawn(3)
    near = np.asarray(saved(Image.fromarray(pictures[0])))
    index = pl.DataFrame(
        {
            "id": ["a", "b", "again", "c", "near"],
            "split": ["train", "train", "train", "test", "test"],
            "pixels": ["0", "1", "1", "2", "3"],
        }
    )
    alike = NearDuplicates()
    pixels = np.stack([pictures[0], pictures[1], pictures[1], pictures[2], near])
    alike.add(look(pixels[:3]))
    alike.add(look(pixels[3:]))
    assert alike.pairs(index, lambda rows: pixels[rows]).to_dicts() == [
        {"one_id": "a", "one_split": "train", "other_id": "near", "other_split": "test", "change": "none"}
    ]


def test_the_pairs_known_of_cifar_are_found(shared) -> None:
    """Barz and Denzler 2020 found 3.3 % of the test images among the training images, mostly changed a little."""
    import pickle

    folder: Path = shared("cifar-10-batches-py") / "cifar-10-batches-py"
    content = [
        pickle.loads((folder / name).read_bytes(), encoding="bytes")[b"data"] for name in ("data_batch_1", "test_batch")
    ]
    images = np.concatenate(content).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    marks, small = fingerprints(images)
    found = pairs(marks, small)
    assert found.height >= 20
    across = found.filter((pl.col("one") < 10_000) & (pl.col("other") >= 10_000))
    assert across.height >= 5
    left, right = (images[found[name].to_numpy()].astype(float) for name in ("one", "other"))
    alike = [np.corrcoef(one.ravel(), other.ravel())[0, 1] for one, other in zip(left, right, strict=True)]
    assert np.median(alike) > 0.9


def cut(share: float, across: float = 0.5, down: float = 0.5):
    """Crop to this share of both sides; `across` and `down` say where, 0 to 1."""

    def crop(image: Image.Image) -> Image.Image:
        width, height = (round(share * side) for side in image.size)
        left, top = round(across * (image.width - width)), round(down * (image.height - height))
        return image.crop((left, top, left + width, top + height))

    return crop


TURNS = {
    "mirrored": ImageOps.mirror,
    "upside down": ImageOps.flip,
    "turned by 90": lambda image: image.transpose(Image.Transpose.ROTATE_90),
    "turned by 180": lambda image: image.transpose(Image.Transpose.ROTATE_180),
    "turned by 270": lambda image: image.transpose(Image.Transpose.ROTATE_270),
}
CROPS = {"to 90 %": cut(0.9), "to 90 % in a corner": cut(0.9, 0.0, 1.0), "to 80 %": cut(0.8)}
LEAST = dict.fromkeys(TURNS, 0.95) | {"to 90 %": 0.85, "to 90 % in a corner": 0.6, "to 80 %": 0.5}


def photos(shared, count: int) -> list[Image.Image]:
    folder: Path = shared("hymenoptera") / "hymenoptera" / "train"
    return [Image.open(path).convert("RGB") for path in sorted(folder.rglob("*.jpg"))[:count]]


def cifar(shared, count: int) -> np.ndarray:
    import pickle

    path = shared("cifar-10-batches-py") / "cifar-10-batches-py" / "data_batch_1"
    content = pickle.loads(path.read_bytes(), encoding="bytes")[b"data"]
    return np.ascontiguousarray(content.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)[:count])


def found_in(pixels: np.ndarray) -> dict[tuple[int, int], str]:
    looks = look(pixels)
    rows = np.arange(len(pixels))
    found = transformed_pairs(looks.statistics, looks.thumbnails, lambda some: pixels[some], rows=rows)
    return {(one, other): change for one, other, change in found.rows()}


@pytest.mark.parametrize("change", LEAST)
def test_mirrored_turned_and_cropped_photos_are_found(change: str, shared) -> None:
    """Each photo and its changed copy, saved as JPEG again, among 1,000 others; no other pair is reported."""
    images = photos(shared, 60)
    act = (TURNS | CROPS)[change]
    before, after = (
        np.stack([to_pixels(image, size=64, channels=3) for image in some])
        for some in (images, [saved(act(image)) for image in images])
    )
    others = np.stack([np.asarray(Image.fromarray(one).resize((64, 64))) for one in cifar(shared, 1000)])
    found = found_in(np.concatenate([before, after, others]))
    right = {(number, 60 + number) for number in range(60)}
    assert len(found.keys() & right) >= LEAST[change] * 60
    assert not found.keys() - right
    assert set(found.values()) == {"turned" if change in TURNS else "cropped"}


def test_different_photos_are_not_paired(shared) -> None:
    assert found_in(cifar(shared, 2000)) == {}


def test_flat_and_few_images_are_not_paired() -> None:
    flat = np.stack([np.full((16, 16, 3), value, np.uint8) for value in range(0, 200, 10)])
    assert found_in(flat) == {}
    assert found_in(drawn(1)) == {}


def test_small_images_are_compared_as_they_are_only() -> None:
    looks = look(drawn(4, 8))
    assert len(looks.marks) == 4
    assert len(looks.thumbnails) == len(looks.statistics) == 0


def test_grey_images_are_found_mirrored() -> None:
    before = drawn(200, 40)[..., :1]
    found = found_in(np.concatenate([before, before[:, :, ::-1]]))
    assert set(found) == {(number, 200 + number) for number in range(200)}


def test_ingest_names_mirrored_copies_in_other_splits(place) -> None:
    for split, count in (("train", 30), ("val", 12), ("test", 12)):
        for number in range(count):
            for label in ("cat", "dog"):
                path = place.root / "pictures" / split / label / f"{number:02d}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                seed = ["train", "val", "test"].index(split) * 1000 + number + 500 * (label == "dog")
                noise = np.random.default_rng(seed).integers(0, 256, (7, 7, 3), dtype=np.uint8)
                Image.fromarray(noise).resize((48, 48), Image.Resampling.BICUBIC).save(path)
    for number in range(5):
        copy = ImageOps.mirror(Image.open(place.root / "pictures" / "train" / "cat" / f"{number:02d}.png"))
        copy.save(place.root / "pictures" / "test" / "cat" / f"mirrored-{number:02d}.png")
    place.ingest()
    near = files.read_json(place.packed / "profile.json")["near_duplicates"]
    assert (near["pairs"], near["across_splits"], near["changes"]) == (5, 5, {"turned": 5})
    assert near["first"][0] == {
        "ids": ["train/cat/00.png", "test/cat/mirrored-00.png"],
        "splits": ["train", "test"],
        "change": "turned",
    }
