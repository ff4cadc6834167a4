"""Pictures that look the same: which changes are seen through, and that different pictures are not confounded."""

import io
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from PIL import Image, ImageEnhance, ImageFilter

from ratchet.data.trouble.likeness import Likeness, fingerprints, pairs


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
    alike = Likeness()
    alike.add(*fingerprints(np.stack([pictures[0], pictures[1], pictures[1]])))
    alike.add(*fingerprints(np.stack([pictures[2], near])))
    assert alike.pairs(index).to_dicts() == [
        {"one_id": "a", "one_split": "train", "other_id": "near", "other_split": "test"}
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
