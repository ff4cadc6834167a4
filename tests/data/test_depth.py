"""Images of more than eight bits: ingest and serving scale them by the range that the set uses."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from mlflow.exceptions import MlflowException
from PIL import Image

from ratchet import files
from ratchet.data.manifest import Manifest
from ratchet.data.reading import images, storage
from ratchet.kinds.image.depth import eight_bits, raw_values
from ratchet.reports.data_card import card


def scan(number: int, *, bits: int = 12, side: int = 32) -> np.ndarray:
    """Return values of an image, uint16 (side, side): noise over the range 0..2**bits - 1."""
    values = np.random.default_rng(number).integers(0, 1 << bits, (side, side), dtype=np.uint16)
    values[0, :2] = 0, (1 << bits) - 1
    return values


def fill(place, folder: str, count: int, *, first: int = 0, bits: int = 12, kind: str = "png") -> Path:
    path = place.root / "images" / folder
    path.mkdir(parents=True, exist_ok=True)
    for number in range(first, first + count):
        Image.fromarray(scan(number, bits=bits)).save(path / f"{number:04d}.{kind}")
    return path


@pytest.fixture
def scans(place):
    """40 scans of 12 bits in each of two classes, in 16-bit PNG and TIFF."""
    fill(place, "healthy", 40)
    fill(place, "ill", 40, first=1000, kind="tiff")
    return place


def shown(place, name: str) -> np.ndarray:
    split, row = place.index().filter(pl.col("id") == name).select("split", "row").row(0)
    return place.images(split)[row, ..., 0]


def test_twelve_bits_in_sixteen_keep_all_grey_levels(scans) -> None:
    """Divided by 65,535 they would have only 17."""
    manifest = scans.ingest(image_size=32)
    assert manifest.input.depth == 12
    packed = scans.images("train")
    assert len(np.unique(packed)) == 256
    for name, number in (("healthy/0003.png", 3), ("ill/1003.tiff", 1003)):
        expected = np.round(scan(number).astype(np.float64) * 255 / 4095).astype(np.uint8)
        np.testing.assert_array_equal(shown(scans, name), expected)


def test_the_scale_is_in_manifest_profile_and_card(scans) -> None:
    fill(scans, "ill", 1, first=5000, bits=8)
    scans.ingest()
    assert files.read_json(scans.packed / "manifest.json")["input"]["depth"] == 12
    assert files.read_json(scans.packed / "profile.json")["depth"] == {"bits": 12, "samples": {"8": 1, "12": 80}}
    page = card(scans.packed, scans.quarantine, changed=None)
    assert "81 images: values 0..4,095 (12 bits) scaled to 0..255" in page
    assert "8 bits 1, 12 bits 80" in page


def test_eight_bit_sets_have_no_depth(two_classes) -> None:
    assert two_classes.ingest().input.depth is None
    before = two_classes.bytes()
    assert "depth" not in (two_classes.packed / "manifest.json").read_text()
    assert "depth" not in files.read_json(two_classes.packed / "profile.json")
    assert "depth" not in two_classes.index().columns
    two_classes.ingest(depth=12)
    assert two_classes.bytes() == before


@pytest.mark.parametrize(("depth", "over"), [(10, 80), (16, 0)])
def test_a_set_depth_is_used_and_larger_values_become_white(scans, depth: int, over: int) -> None:
    assert scans.ingest(image_size=32, depth=depth).input.depth == depth
    limit = 2**depth - 1
    expected = np.round(np.minimum(scan(7), limit).astype(np.float64) * 255 / limit).astype(np.uint8)
    np.testing.assert_array_equal(shown(scans, "healthy/0007.png"), expected)
    page = card(scans.packed, scans.quarantine, changed=None)
    assert (f"{over} of them have larger values, which became 255" in page) == bool(over)


def test_a_deeper_image_changes_the_scale_and_no_split(scans) -> None:
    scans.ingest()
    before = dict(scans.index().select("id", "split").rows())
    Image.fromarray(scan(9000, bits=14)).save(scans.root / "images" / "ill" / "deep.png")
    assert scans.ingest().input.depth == 14
    after = dict(scans.index().select("id", "split").rows())
    assert {name: after[name] for name in before} == before


@pytest.mark.parametrize("deepest", [12, 14])
def test_only_added_images_are_decoded(scans, monkeypatch, deepest: int) -> None:
    """The deepest of many images need not be among the few that the scale is guessed from."""
    monkeypatch.setattr(storage, "_FRESH", 0)
    scans.cache = scans.root / "cache.parquet"
    names = sorted(path.relative_to(scans.root / "images").as_posix() for path in scans.root.glob("images/*/*"))
    previewed = {names[at * 80 // 60] for at in range(60)}
    unseen = next(name for name in names if name not in previewed)
    Image.fromarray(scan(9000, bits=deepest)).save(scans.root / "images" / unseen)
    assert scans.ingest().input.depth == deepest
    decoded, to_pixels = [], images.to_pixels
    monkeypatch.setattr(images, "to_pixels", lambda *args, **kwargs: (decoded.append(1), to_pixels(*args, **kwargs))[1])
    fill(scans, "ill", 3, first=5000)
    assert scans.ingest().input.depth == deepest
    assert len(decoded) == 3


def test_ingesting_again_gives_the_same_set(scans, make_place) -> None:
    scans.cache = scans.root / "cache.parquet"
    scans.ingest(workers=1)
    first = scans.bytes()
    scans.ingest(workers=3)
    assert scans.bytes() == first


def test_a_transparent_value_is_white_and_sets_no_scale(tmp_path: Path) -> None:
    values = scan(1)
    values[5] = 65_535
    Image.fromarray(values).save(tmp_path / "a.png", transparency=65_535)
    decoder = images.ImageDecoder((32, 1), 10**7, depth=12)
    (facts,), (pixels,) = decoder.read_all(storage.LocalFolder(tmp_path).read, ["a.png"])
    assert facts.depth == 12
    assert pixels[5].tolist() == [[255]] * 32
    np.testing.assert_array_equal(np.delete(pixels[..., 0], 5, 0), np.delete(eight_bits(values, 12), 5, 0))


@pytest.mark.parametrize("depth", range(8, 17))
def test_every_grey_level_has_a_raw_value(depth: int) -> None:
    levels = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(eight_bits(raw_values(levels, depth), depth), levels)
    assert eight_bits(np.array([0, 2**depth - 1, 65_535]), depth).tolist() == [0, 255, 255]


def test_a_served_model_takes_the_raw_values_that_ingest_took(scans, tmp_path: Path) -> None:
    from ratchet.kinds import ModelSpec
    from ratchet.registry.pyfunc import ServedModel
    from ratchet.training import build

    manifest: Manifest = scans.ingest(image_size=32)
    spec = ModelSpec("convnet", manifest.input, manifest.target)
    assert spec.image.raw_dtype == "uint16"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build(spec).eval()
    raw = np.stack([scan(number) for number in (3, 4)])[..., None]
    packed = np.stack([shown(scans, f"healthy/000{number}.png") for number in (3, 4)])[..., None]
    with torch.inference_mode():
        expected = torch.softmax(model(torch.from_numpy(packed).permute(0, 3, 1, 2)), 1).numpy()
    served = ServedModel(model, spec)
    np.testing.assert_array_equal(served.predict(raw), expected)
    np.testing.assert_array_equal(served.predict(raw.astype(np.int64)), expected)
    with pytest.raises(MlflowException, match="whole numbers from 0 to 65535"):
        served.predict(raw.astype(np.int64) * 100)


def test_an_eight_bit_model_refuses_raw_values(place) -> None:
    from ratchet.kinds import image_spec
    from ratchet.registry.pyfunc import ServedModel
    from ratchet.training import build

    spec = image_spec("convnet", ("a", "b"), 1, 8, 8, (100.0,), (50.0,))
    with torch.random.fork_rng():
        served = ServedModel(build(spec).eval(), spec)
    with pytest.raises(MlflowException, match=r"values from 0 to 4095; allowed: .* from 0 to 255"):
        served.predict(scan(1, side=8)[None, ..., None])
    assert "depth" not in spec.to_json()["input"]
