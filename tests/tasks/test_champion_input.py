"""Images are adapted to the champion's input as Pillow does it, which ingest uses for resizing."""

from unicodedata import normalize

import numpy as np
import pytest
import torch
from PIL import Image

from ratchet.kinds import Column, ImageInput, TableInput
from tasks.champion_input import InputAdapter, right_answers


def adapter(shape: tuple[int, int, int], packed: tuple[int, int, int], dtype: str = "uint8") -> InputAdapter:
    def described(of: tuple[int, int, int], dtype: str) -> ImageInput:
        return ImageInput(*of, mean=(120.0,) * of[2], std=(60.0,) * of[2], dtype=dtype)

    return InputAdapter(described(packed, "uint8"), described(shape, dtype))


@pytest.mark.parametrize(("size", "packed"), [(32, 64), (64, 32), (28, 32)])
def test_images_are_resized_as_ingest_would(size: int, packed: int) -> None:
    """Smooth images agree up to rounding."""
    rows, columns = np.mgrid[0:packed, 0:packed] / packed
    smooth = np.stack([rows, columns, (rows + columns) / 2], -1) * 200 + 20
    image = smooth.astype(np.uint8)
    wanted = np.asarray(Image.fromarray(image).resize((size, size), Image.Resampling.BILINEAR))
    images = torch.from_numpy(image).permute(2, 0, 1)[None]
    (resized,) = adapter((size, size, 3), (packed, packed, 3)).inputs((images,))
    assert resized.dtype == torch.uint8
    assert np.abs(resized[0].permute(1, 2, 0).numpy().astype(int) - wanted.astype(int)).max() <= 1


def test_colour_and_greyscale_are_converted_as_by_pillow() -> None:
    image = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    images = torch.from_numpy(image).permute(2, 0, 1)[None]
    (grey,) = adapter((8, 8, 1), (8, 8, 3)).inputs((images,))
    wanted = np.asarray(Image.fromarray(image).convert("L")).astype(int)
    assert np.abs(grey[0, 0].numpy().astype(int) - wanted).max() <= 1
    (colour,) = adapter((8, 8, 3), (8, 8, 1)).inputs((grey,))
    assert colour.shape == (1, 3, 8, 8)
    assert (colour == grey).all()


def test_images_of_the_same_shape_are_unchanged() -> None:
    images = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
    assert adapter((8, 8, 3), (8, 8, 3)).inputs((images,))[0] is images


def test_other_pixel_types_and_channels_are_a_mismatch() -> None:
    assert adapter((8, 8, 3), (8, 8, 3), "float32").mismatch == "it takes float32 pixels, and these are uint8"
    assert adapter((8, 8, 4), (8, 8, 3)).mismatch == "it takes images of 4 channels, and these have 3"


@pytest.mark.parametrize(("have", "want"), [("NFC", "NFD"), ("NFD", "NFC")])
def test_columns_in_another_unicode_form_are_the_same(have: str, want: str) -> None:
    """Ingest writes NFC; the champion of an earlier release can have the form of its file."""
    packed, wanted = (
        TableInput(
            (
                Column(normalize(form, "gr\u00f6\u00dfe"), "numeric"),
                Column(normalize(form, "klass\u00eb"), "categorical", categories=("a", "b")),
            )
        )
        for form in (have, want)
    )
    champion = InputAdapter(packed, wanted)
    assert not champion.mismatch
    numbers, codes = champion.inputs((torch.tensor([[1.5], [-2.0]]), torch.tensor([[3], [2]])))
    assert numbers.tolist() == [[1.5], [-2.0]]
    assert codes.tolist() == [[3], [2]]
    turned = TableInput((Column(packed.columns[0].name, "categorical", categories=("a", "b")), packed.columns[1]))
    assert "which has categories now" in InputAdapter(turned, wanted).mismatch


def test_answers_are_matched_by_class_name() -> None:
    """Classes that the data no longer has are skipped."""
    logits = np.array([[9.0, 1.0, 5.0], [0.0, 3.0, 9.0], [9.0, 2.0, 1.0]], np.float32)
    known, classes = ("owl", "dog", "cat"), ("cat", "dog", "bee")
    assert right_answers(logits, np.array([0, 1, 1]), classes=classes, theirs=known).tolist() == [1.0, 0.0, 1.0]
