"""The split of a sample depends on the sample, and on its place in its class."""

import hashlib
import io
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, PngImagePlugin

from ratchet.data import split
from ratchet.data.reading.pixels import full_digest, jpeg_digest
from ratchet.settings.model import DataSettings

POSITIONS = [0.5374976153371496, 0.39531814126529186]
KEYS = [1367487835992287293, 15159650975114868542]
DIGITS = [1257, 270, 270]  # rows of train, validation and test
DIGITS_DIGEST = "2bc49419c09ca5b4"
NAMES = st.lists(st.text(max_size=12), max_size=40)
FRACTION = st.floats(0.0, 0.49)
USUAL = DataSettings(validation_fraction=0.15, test_fraction=0.15)


def _shares(validation: float, test: float, **folds: int) -> DataSettings:
    return DataSettings(validation_fraction=validation, test_fraction=test, **folds)


def _assign(names: list[str], validation: float = 0.15, test: float = 0.15) -> dict[str, str]:
    chosen = split.assign(names, [None] * len(names), _shares(validation, test), declared=())
    return dict(zip(names, chosen, strict=True))


@given(NAMES, NAMES, FRACTION, FRACTION)
def test_adding_samples_moves_no_old_one(old: list[str], new: list[str], validation: float, test: float) -> None:
    before = _assign(old, validation, test)
    after = _assign([*new, *old], validation, test)
    assert {name: after[name] for name in old} == before


@given(st.text(), FRACTION, FRACTION, FRACTION)
def test_a_larger_test_fraction_removes_no_test_sample(name: str, validation: float, low: float, high: float) -> None:
    low, high = sorted((low, high))
    if _assign([name], validation, low)[name] == "test":
        assert _assign([name], validation, high)[name] == "test"


@given(st.lists(st.tuples(st.text(), st.sampled_from(["validation", "test"])), min_size=1))
def test_given_splits_are_kept(samples: list[tuple[str, str]]) -> None:
    names, splits = zip(*samples, strict=True)
    chosen = split.assign(names, splits, _shares(0.4, 0.4), declared={"validation", "test"})
    assert chosen == list(splits)


def test_declared_splits_are_not_drawn_too() -> None:
    names = [str(number) for number in range(2000)]
    chosen = split.assign(names, ["train"] * 2000, _shares(0.2, 0.2), declared={"test"})
    assert set(chosen) == {"train", "validation"}
    assert chosen.count("validation") == pytest.approx(400, abs=4 * (2000 * 0.2 * 0.8) ** 0.5)


@given(NAMES, st.integers(2, 12), FRACTION)
def test_each_sample_outside_test_is_validation_in_one_fold(names: list[str], folds: int, test: float) -> None:
    """It is in train in all other folds."""
    rounds = [
        split.assign(names, [None] * len(names), _shares(0.3, test, folds=folds, fold=fold), declared=())
        for fold in range(folds)
    ]
    for splits in zip(*rounds, strict=True):
        assert sorted(splits) == ["test"] * folds or sorted(splits) == ["train"] * (folds - 1) + ["validation"]


def test_folds_have_similar_sizes_and_move_no_test_sample() -> None:
    names = [str(number) for number in range(4000)]
    plain = _assign(names)
    for fold in range(5):
        chosen = split.assign(names, [None] * 4000, _shares(0.15, 0.15, folds=5, fold=fold), declared=())
        assert chosen.count("validation") == pytest.approx(680, abs=4 * (4000 * 0.17 * 0.83) ** 0.5)
        assert [name == "test" for name in chosen] == [plain[name] == "test" for name in names]


def _by_class(sizes: dict[str, int], shares: DataSettings = USUAL) -> dict[str, dict[str, str]]:
    """Return the split of each sample by class."""
    names = [(label, f"{label}/{number}") for label, size in sizes.items() for number in range(size)]
    labels = pl.Series([label for label, _ in names])
    chosen = split.assign([name for _, name in names], [None] * len(names), shares, declared=(), classes=labels)
    by_class: dict[str, dict[str, str]] = {label: {} for label in sizes}
    for (label, name), of_split in zip(names, chosen, strict=True):
        by_class[label][name] = of_split
    return by_class


@given(st.dictionaries(st.text(max_size=3), st.integers(1, 60), min_size=1, max_size=5), FRACTION, FRACTION)
def test_each_class_has_equal_shares_in_each_split(sizes: dict[str, int], validation: float, test: float) -> None:
    for label, splits in _by_class(sizes, _shares(validation, test)).items():
        chosen = list(splits.values())
        assert abs(chosen.count("test") - test * sizes[label]) < 1
        assert abs(chosen.count("test") + chosen.count("validation") - (test + validation) * sizes[label]) < 1


def test_two_classes_of_photos_have_equal_test_shares() -> None:
    chosen = _by_class({"ants": 123, "bees": 121})
    assert [[list(splits.values()).count(name) for name in split.SPLITS] for splits in chosen.values()] == [
        [86, 19, 18], [85, 18, 18],
    ]  # fmt: skip


def test_folds_have_equal_shares_of_each_class() -> None:
    for fold in range(5):
        chosen = list(_by_class({"a": 200, "b": 40}, _shares(0.15, 0.15, folds=5, fold=fold))["b"].values())
        assert chosen.count("test") == 6
        assert 6 <= chosen.count("validation") <= 7


@given(st.integers(1, 80), st.integers(1, 80))
def test_a_new_sample_moves_one_neighbour_at_each_border(before: int, other: int) -> None:
    old, new = _by_class({"a": before, "b": other}), _by_class({"a": before + 1, "b": other})
    assert new["b"] == old["b"]
    assert sum(new["a"][name] != of_split for name, of_split in old["a"].items()) <= 2


def test_many_small_classes_get_their_share_of_test() -> None:
    """Rounding each class alone would give none of them a test sample."""
    chosen = [name for splits in _by_class({f"class {n}": 3 for n in range(400)}).values() for name in splits.values()]
    assert chosen.count("test") == pytest.approx(180, abs=40)


def test_groups_and_copies_stay_together_in_equal_shares() -> None:
    names = [f"group {number // 4}" for number in range(800)] + ["copy"] * 8
    labels = pl.Series([("a", "b")[number // 4 % 2] for number in range(800)] + ["a"] * 5 + ["b"] * 3)
    chosen = split.assign(names, [None] * len(names), USUAL, declared=(), classes=labels)
    table = pl.DataFrame({"name": names, "split": chosen, "label": labels})
    assert table.group_by("name").agg(pl.col("split").n_unique())["split"].unique().to_list() == [1]
    for _, rows in table.group_by("label"):
        assert rows["split"].to_list().count("test") == pytest.approx(60, abs=8)


def test_only_drawn_samples_share_out_a_class() -> None:
    """Given test samples are no part of the class that validation is drawn from."""
    names = [str(number) for number in range(300)]
    given_splits = ["test"] * 100 + ["train"] * 200
    classes = pl.Series(["a"] * 300)
    chosen = split.assign(names, given_splits, _shares(0.2, 0.2), declared={"test"}, classes=classes)
    assert chosen[:100] == ["test"] * 100
    assert chosen.count("validation") == 40


def test_positions_and_keys_never_change() -> None:
    """Other values would move samples of every data set. These numbers are part of the format."""
    assert [split.position(name) for name in ("", "a")] == POSITIONS
    assert split.keys(["", "a"]).tolist() == KEYS
    assert split.keys([]).dtype == np.uint64


def test_renaming_images_and_a_new_class_move_no_image(two_classes) -> None:
    two_classes.ingest()
    before = dict(two_classes.index().select("content", "split").rows())
    for number, path in enumerate(sorted((two_classes.root / "images" / "cat").iterdir())):
        path.rename(path.with_name(f"renamed-{97 * number % 40}.png"))
    two_classes.fill("emu", 30, first=3000)
    two_classes.ingest()
    index = two_classes.index()
    after = dict(index.select("content", "split").rows())
    assert len(after) == 110
    assert {content: after[content] for content in before} == before
    shares = dict(index.filter(pl.col("split") == "test").group_by("class").len().rows())
    assert shares == {"cat": 6, "dog": 6, "emu": shares["emu"]}
    assert shares["emu"] in (4, 5)


def test_output_does_not_depend_on_workers_or_file_order(make_place) -> None:
    written = []
    for name, workers, backwards in (("serial", 1, False), ("three", 3, True), ("again", 0, True)):
        place = make_place(name)
        numbers = [*range(30), *range(1000, 1030)]
        for number in reversed(numbers) if backwards else numbers:
            place.fill("cat" if number < 1000 else "dog", 1, first=number)
        (place.root / "images" / "dog" / "zero.png").write_bytes(b"")
        (place.root / "images" / "dog" / "cut.png").write_bytes(b"\x89PNG")
        place.ingest(workers=workers, max_bad_fraction=0.1)
        written.append(place.bytes())
    assert written[0] == written[1] == written[2]
    assert len(written[0]) == 13


def test_ingesting_again_writes_the_same_bytes(two_classes) -> None:
    two_classes.ingest()
    first = two_classes.bytes()
    two_classes.ingest(workers=3)
    assert two_classes.bytes() == first
    assert pl.read_parquet(two_classes.quarantine).height == 0


def _smooth(number: int, size: tuple[int, int]) -> Image.Image:
    """Return an image with large shapes, like a photo."""
    small = np.random.default_rng(number).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    return Image.fromarray(small).resize(size, Image.Resampling.BICUBIC)


def _save_copies(folder: Path, number: int) -> None:
    """Write an image as two JPEGs that are packed from a smaller scale, and the same pixels in eight other files."""
    folder.mkdir(parents=True, exist_ok=True)
    name = str(folder / f"{number:03d}")
    content = io.BytesIO()
    image = _smooth(number, (260, 200))
    if number % 3 == 0:
        image = image.convert("L")
    image.save(content, "JPEG", quality=90)
    Path(f"{name}.jpg").write_bytes(content.getvalue())
    comment = b"\xff\xfe\x00\x07hello"
    Path(f"{name}-comment.jpg").write_bytes(content.getvalue()[:2] + comment + content.getvalue()[2:])
    pixels = Image.open(content)
    pixels.load()
    text = PngImagePlugin.PngInfo()
    text.add_text("author", "somebody")
    pixels.save(f"{name}.png", pnginfo=text)
    pixels.save(f"{name}-plain.png", compress_level=0)
    pixels.save(f"{name}.bmp")
    pixels.save(f"{name}.tiff", compression="tiff_lzw")
    pixels.save(f"{name}.webp", lossless=True)
    pixels.convert("RGB").save(f"{name}-colour.png")
    pixels.convert("RGBA").save(f"{name}-opaque.png")
    turned = Image.Exif()
    turned[0x0112] = 6
    pixels.transpose(Image.Transpose.ROTATE_90).save(f"{name}-turned.png", exif=turned)


@pytest.mark.system
def test_copies_without_loss_share_a_split(place) -> None:
    for number in range(8):
        _save_copies(place.root / "images" / "cat", number)
        _save_copies(place.root / "images" / "dog", 100 + number)
    place.ingest(image_size=32)
    assert place.bad() == {}
    index = place.index().with_columns(
        image=pl.col("id").str.extract(r"/(\d+)"), jpeg=pl.col("id").str.ends_with("jpg")
    )
    assert index.height == 2 * 8 * 10
    assert index.group_by("image", "jpeg").agg(pl.col("split").n_unique())["split"].to_list() == [1] * 32
    assert set(index["split"]) == set(split.SPLITS)


@pytest.mark.system
def test_another_image_size_moves_no_sample(place) -> None:
    for number in range(16):
        _save_copies(place.root / "images" / "ab"[number % 2], number)
    for path in place.root.rglob("*.*"):  # unscaled, a JPEG and its lossless copies are duplicates across splits
        if (int(path.name[:3]) // 2 % 2 == 0) == (path.suffix == ".jpg"):
            path.unlink()
    seen = []
    for size in (16, 48, 128):
        place.ingest(image_size=size)
        seen.append(dict(place.index().select("id", "split").rows()))
    assert seen[0] == seen[1] == seen[2]


def test_new_metadata_moves_no_sample(two_classes) -> None:
    two_classes.cache = two_classes.root / "cache.parquet"
    two_classes.ingest()
    before = dict(two_classes.index().select("id", "split").rows())
    for path in (two_classes.root / "images").rglob("*.png"):
        text = PngImagePlugin.PngInfo()
        text.add_text("edited", "today")
        Image.open(path).save(path, pnginfo=text)
    two_classes.ingest()
    assert dict(two_classes.index().select("id", "split").rows()) == before


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"optimize": True, "subsampling": 0}])
def test_metadata_are_no_part_of_a_jpeg_digest(options) -> None:
    content, described = io.BytesIO(), io.BytesIO()
    image, preview = _smooth(1, (260, 200)), Image.Exif()
    preview[0x010E] = "one \xff\xd9 two"
    image.save(content, "JPEG", **options)
    image.save(described, "JPEG", exif=preview, comment="hello", icc_profile=b"\xff\xd9" * 90_000, **options)
    plain = _jpeg_digest(content.getvalue())
    assert _jpeg_digest(described.getvalue() + b"a film that a telephone adds") == plain
    image.save(two := io.BytesIO(), "MPO", save_all=True, append_images=[_smooth(3, (26, 20))], **options)
    assert _jpeg_digest(two.getvalue()) == plain


@pytest.mark.parametrize("orientation", [0, 1, 9])
def test_undefined_orientation_is_upright(orientation: int) -> None:
    plain, turned, exif = io.BytesIO(), io.BytesIO(), Image.Exif()
    exif[0x0112] = orientation
    _smooth(1, (260, 200)).save(plain, "JPEG")
    _smooth(1, (260, 200)).save(turned, "JPEG", exif=exif)
    assert _jpeg_digest(turned.getvalue()) == _jpeg_digest(plain.getvalue())


def test_jpeg_with_a_megabyte_of_fill_bytes_is_read_once() -> None:
    file = io.BytesIO()
    _smooth(1, (260, 200)).save(file, "JPEG")
    erased = b"\xff" * (1 << 20) + b"\0"  # a search from each of them would take hours
    assert _jpeg_digest(file.getvalue()[:-2] + erased + b"\xff\xd9") != _jpeg_digest(file.getvalue())


def test_jpegs_that_look_different_have_different_digests() -> None:
    turned = Image.Exif()
    turned[0x0112] = 6
    saved = {}
    for name, image, options in (
        ("plain", _smooth(1, (260, 200)), {}),
        ("turned", _smooth(1, (260, 200)), {"exif": turned}),
        ("other pixels", _smooth(2, (260, 200)), {}),
        ("other quality", _smooth(1, (260, 200)), {"quality": 60}),
        ("grey", _smooth(1, (260, 200)).convert("L"), {}),
    ):
        file = io.BytesIO()
        image.save(file, "JPEG", **options)
        saved[name] = _jpeg_digest(file.getvalue())
    changed = bytearray(file.getvalue())
    changed[-40] ^= 1  # one bit of the coded pixels
    saved["one bit"] = _jpeg_digest(bytes(changed))
    assert len(set(saved.values())) == len(saved)


def _jpeg_digest(content: bytes) -> str:
    return jpeg_digest(Image.open(io.BytesIO(content)), content)


def test_equal_sixteen_bit_values_share_a_digest(place) -> None:
    """16-bit images are digested by their values. Images that are equal only with 8 bits are different."""
    folder = place.fill("cat", 20)
    values = np.arange(24 * 20, dtype=np.uint16).reshape(20, 24) * 100
    for name, pixels in (("deep", values), ("deeper", values + 1)):
        Image.fromarray(pixels).save(folder / f"{name}.png")
        Image.fromarray(pixels).save(folder / f"{name}.tiff")
    digests = {name: full_digest(Image.open(folder / name)) for name in ("deep.png", "deep.tiff", "deeper.png")}
    assert digests["deep.png"] == digests["deep.tiff"] != digests["deeper.png"]


def test_a_large_image_has_the_digest_of_all_its_pixels() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (1030, 1100, 3), dtype=np.uint8)
    whole = hashlib.sha256(b"1100 1030 " + pixels.tobytes()).hexdigest()
    assert full_digest(Image.fromarray(pixels)) == whole


def test_the_digits_stay_in_their_splits(place) -> None:
    """Arrays are split by the digest of their pixels; these digests must never change."""
    place.ingest(source="digits")
    classes = place.index().group_by("class").agg(test=(pl.col("split") == "test").mean())
    assert classes["test"].is_between(0.14, 0.16).all()
    splits = place.index().sort("id")["split"].to_list()
    assert [splits.count(name) for name in split.SPLITS] == DIGITS
    assert hashlib.sha256("".join(splits).encode()).hexdigest()[:16] == DIGITS_DIGEST
