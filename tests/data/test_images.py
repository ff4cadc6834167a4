"""From an image file to pixels. Expected values are computed by hand from the colours in the file."""

import hashlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ratchet.data.reading.images import FORMATS, Facts, ImageDecoder, check_formats, format_of_extension
from ratchet.data.reading.pixels import to_pixels
from ratchet.data.reading.storage import LocalFolder
from ratchet.errors import StorageUnavailable
from tests.data.conftest import failing_disk, no_free_descriptor


def read(path: Path, shape: tuple[int, int] | None = (8, 1)) -> tuple[Facts, np.ndarray | None]:
    (facts,), (pixels,) = ImageDecoder(shape, max_pixels=10**7).read_all(LocalFolder(path.parent).read, [path.name])
    return facts, pixels if facts.pixels else None


@pytest.mark.parametrize(
    ("lack", "reason"),
    [(no_free_descriptor, "Too many open files"), (partial(failing_disk, "a.png"), "Input/output error")],
)
def test_an_image_that_cannot_be_read_now_is_not_bad(
    tmp_path: Path, lack: Callable[[], AbstractContextManager[None]], reason: str
) -> None:
    Image.new("L", (8, 8), 100).save(tmp_path / "a.png")
    before, _ = read(tmp_path / "a.png")  # imports the decoders, too
    match = rf"^a\.png: cannot be read now \({reason}\); it may be good\. Fix: "
    with lack(), pytest.raises(StorageUnavailable, match=match):
        read(tmp_path / "a.png")
    assert read(tmp_path / "a.png")[0] == before
    assert before.readable


def test_orientation_is_applied(tmp_path: Path) -> None:
    image = Image.new("RGB", (16, 8), (0, 0, 0))
    image.paste((255, 255, 255), (0, 0, 8, 8))
    exif = Image.Exif()
    exif[0x0112] = 6  # displayed turned clockwise by 90 degrees: the left side is on top
    image.save(tmp_path / "a.png", exif=exif)
    _, pixels = read(tmp_path / "a.png")
    assert pixels is not None
    assert pixels[1, :, 0].tolist() == [255] * 8
    assert pixels[6, :, 0].tolist() == [0] * 8


def test_metadata_never_reaches_the_output(two_classes) -> None:
    exif = Image.Exif()
    exif[0x010E] = "SECRET-DESCRIPTION"
    exif.get_ifd(0x8825)[1] = "SECRET-GPS"
    for name, kind in (("a.jpg", "JPEG"), ("b.png", "PNG"), ("c.webp", "WEBP")):
        path = two_classes.root / "images" / "cat" / name
        two_classes.image(8000 + len(kind)).save(path, kind, exif=exif)
        assert b"SECRET" in path.read_bytes()
    two_classes.ingest()
    assert two_classes.bad() == {}
    written = [path for path in (two_classes.root / "data").rglob("*") if path.is_file()]
    assert not [path.name for path in written if b"SECRET" in path.read_bytes() or b"Exif" in path.read_bytes()]
    assert {"cat/a.jpg", "cat/b.png", "cat/c.webp"} <= set(two_classes.index()["id"])


@pytest.mark.parametrize(
    ("image", "grey", "colour"),
    [
        (Image.new("L", (8, 8), 100), 100, (100, 100, 100)),
        (Image.new("1", (8, 8), 1), 255, (255, 255, 255)),
        (Image.fromarray(np.full((8, 8), 25700, np.uint16)), 100, (100, 100, 100)),
        (Image.new("RGBA", (8, 8), (9, 9, 9, 0)), 255, (255, 255, 255)),
        (Image.new("RGBA", (8, 8), (200, 100, 50, 255)), 124, (200, 100, 50)),
        (Image.new("LA", (8, 8), (0, 0)), 255, (255, 255, 255)),
        (Image.new("CMYK", (8, 8), (0, 255, 255, 0)), 76, (255, 0, 0)),
        (Image.new("RGB", (8, 8), (200, 100, 50)).quantize(4), 124, (200, 100, 50)),
    ],
)
def test_every_pixel_mode_becomes_grey_or_rgb(image: Image.Image, grey: int, colour: tuple[int, ...]) -> None:
    assert to_pixels(image.copy(), size=8, channels=1)[4, 4].tolist() == [grey]
    assert to_pixels(image.copy(), size=8, channels=3)[4, 4].tolist() == list(colour)


def test_numbers_without_a_range_are_refused(tmp_path: Path) -> None:
    Image.new("F", (8, 8), 0.5).save(tmp_path / "a.tiff")
    facts, pixels = read(tmp_path / "a.tiff")
    assert pixels is None
    assert facts.readable is False
    assert "floating-point" in (facts.problem or "")


def test_the_centre_is_cropped_and_the_shorter_side_scaled() -> None:
    image = Image.new("RGB", (60, 20), (255, 0, 0))
    image.paste((0, 255, 0), (20, 0, 40, 20))
    pixels = to_pixels(image, size=10, channels=3)
    assert pixels.shape == (10, 10, 3)
    assert pixels[:, 1:-1].reshape(-1, 3).tolist() == [[0, 255, 0]] * 80


def test_shrinking_is_antialiased() -> None:
    board = np.indices((64, 64)).sum(axis=0) % 2 * 255
    pixels = to_pixels(Image.fromarray(board.astype(np.uint8)), size=8, channels=1)
    assert abs(pixels.astype(int) - 127).max() <= 8


@pytest.mark.parametrize("kind", sorted(set(FORMATS) - {"MPO"}))
def test_every_format_that_settings_name_is_recognised(tmp_path: Path, kind: str) -> None:
    if kind == "HEIF":
        pytest.importorskip("pillow_heif", reason="pillow-heif, which is optional, is not installed")
        check_formats(["heif"])
    path = tmp_path / f"a.{FORMATS[kind]}"
    Image.new("RGB", (9, 8), (1, 2, 3)).save(path, kind)
    facts, pixels = read(path, None)
    assert pixels is None
    assert (facts.format, format_of_extension(path.name), facts.frames) == (FORMATS[kind], FORMATS[kind], 1)
    assert (facts.width, facts.height, facts.grey) == (9, 8, False)


def test_a_jpeg_with_a_preview_is_a_jpeg(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    Image.new("RGB", (16, 16), (200, 0, 0)).save(
        path, "MPO", save_all=True, append_images=[Image.new("RGB", (8, 8), (0, 0, 200))]
    )
    facts, _ = read(path)
    assert (facts.format, format_of_extension(path.name), facts.frames) == ("jpeg", "jpeg", None)


def test_a_large_file_is_streamed_with_the_same_result(tmp_path: Path) -> None:
    """It is not read into memory as a whole."""
    Image.effect_noise((2100, 1400), 50).convert("RGB").save(tmp_path / "a.bmp")
    content = (tmp_path / "a.bmp").read_bytes()
    held = LocalFolder(tmp_path).read("a.bmp")
    assert not isinstance(held, bytes)
    held.close()
    facts, pixels = read(tmp_path / "a.bmp")
    assert facts.content == hashlib.sha256(content).hexdigest()
    assert (facts.bytes, facts.width, facts.height) == (len(content), 2100, 1400)
    with Image.open(tmp_path / "a.bmp") as image:
        np.testing.assert_array_equal(pixels, to_pixels(image, size=8, channels=1))
    (tmp_path / "b.bmp").write_bytes(content[:-10_000])
    facts, pixels = read(tmp_path / "b.bmp")
    assert (facts.readable, pixels) == (False, None)


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_large_jpeg_decoded_small_looks_the_same(tmp_path: Path, mode: str) -> None:
    small = np.random.default_rng(0).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    image = Image.fromarray(small).resize((640, 480), Image.Resampling.BICUBIC).convert(mode)
    image.save(tmp_path / "a.jpg", quality=95)
    facts, pixels = read(tmp_path / "a.jpg", (64, 3))
    assert (facts.width, facts.height, facts.grey) == (640, 480, mode == "L")
    assert pixels is not None
    with Image.open(tmp_path / "a.jpg") as whole:
        whole.load()  # at full size, before draft() can reduce it
        expected = to_pixels(whole, size=64, channels=3)
    assert whole.size == (640, 480)
    assert np.abs(pixels.astype(int) - expected).mean() < 1.0
    assert np.abs(pixels.astype(int) - expected).max() < 16


@pytest.mark.parametrize("share", [0.3, 0.7, 0.95])
def test_a_truncated_large_jpeg_is_noticed_at_every_scale(tmp_path: Path, share: float) -> None:
    Image.effect_noise((800, 800), 60).save(tmp_path / "whole.jpg", quality=90)
    content = (tmp_path / "whole.jpg").read_bytes()
    (tmp_path / "cut.jpg").write_bytes(content[: int(share * len(content))])
    assert read(tmp_path / "whole.jpg")[0].readable
    facts, pixels = read(tmp_path / "cut.jpg")
    assert (facts.readable, pixels) == (False, None)
