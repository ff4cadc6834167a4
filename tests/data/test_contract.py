"""Every kind of bad file is named and quarantined. Too many of them stop the run without damage."""

import os
import resource
import struct
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from PIL import Image

from ratchet.data import pack
from ratchet.data.reading.images import ImageDecoder
from ratchet.data.reading.storage import LocalFolder
from ratchet.errors import DataError, WorkspaceError


def _png_header_only(width: int, height: int) -> bytes:
    """A PNG whose header has a huge size, without content."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.fixture
def bad_files(two_classes):
    """Nine bad files, one for each rule that a file can break, beside 80 good ones."""
    cat = two_classes.root / "images" / "cat"
    good = (cat / "0001.png").read_bytes()
    (cat / "empty.png").write_bytes(b"")
    (cat / "cut.png").write_bytes(good[: len(good) // 2])
    (cat / "noise.jpg").write_bytes(bytes(range(256)) * 4)
    two_classes.image(7001).save(cat / "stray.gif")
    two_classes.image(7002).save(cat / "really.png", format="JPEG")
    two_classes.image(7003).save(
        cat / "film.webp", save_all=True, append_images=[two_classes.image(7004)], lossless=True
    )
    two_classes.image(7005, size=(3, 9)).save(cat / "tiny.png")
    two_classes.image(7006, size=(400, 8)).save(cat / "strip.png")
    (cat / "bomb.png").write_bytes(_png_header_only(60_000, 60_000))
    return two_classes


def test_each_kind_of_bad_file_is_quarantined_by_its_rule(bad_files) -> None:
    manifest = bad_files.ingest(max_bad_fraction=0.5)
    assert bad_files.bad() == {
        "cat/empty.png": {"empty-file"},
        "cat/cut.png": {"unreadable"},
        "cat/noise.jpg": {"unreadable"},
        "cat/stray.gif": {"format-not-allowed"},
        "cat/really.png": {"format-mismatch"},
        "cat/film.webp": {"animated"},
        "cat/tiny.png": {"too-small"},
        "cat/strip.png": {"bad-aspect"},
        "cat/bomb.png": {"too-large"},
    }
    assert manifest.quarantined == 9
    assert manifest.quarantined_by_rule["unreadable"] == 2
    table = pl.read_parquet(bad_files.quarantine)
    assert table.columns == ["source", "row", "rule", "value", "hint", "content", "thumbnail"]
    drawn = table.filter(table["thumbnail"].is_not_null())["source"]
    assert set(drawn) == {"cat/stray.gif", "cat/really.png", "cat/tiny.png", "cat/strip.png"}
    assert table.filter(table["source"] == "cat/bomb.png")["value"].item() == "60000 x 60000 pixels"
    assert table["hint"].str.len_chars().min() > 10
    index = bad_files.index()
    assert index.height == 80
    assert not set(index["source"]) & set(table["source"])
    assert sum(len(bad_files.images(split)) for split in manifest.splits) == 80
    assert str(bad_files.root) not in "".join(table["value"])


def test_too_many_bad_files_stop_the_run(two_classes) -> None:
    """The old packed set is unchanged, and the quarantine table is written."""
    two_classes.ingest()
    before = two_classes.bytes()
    for number in range(10):
        (two_classes.root / "images" / "dog" / f"bad{number}.png").write_bytes(b"")
    with pytest.raises(DataError) as refusal:
        two_classes.ingest()
    assert "10 of 90 samples are bad" in str(refusal.value)
    assert "empty-file 10" in str(refusal.value)
    assert str(two_classes.quarantine) in str(refusal.value)
    assert len(two_classes.bad()) == 10
    after = two_classes.bytes()
    assert {k: v for k, v in after.items() if k.startswith("packed/")} == {
        k: v for k, v in before.items() if k.startswith("packed/")
    }
    assert set(after) == set(before)


def test_a_set_of_only_bad_files_is_always_refused(place) -> None:
    for name in ("cat", "dog"):
        folder = place.root / "images" / name
        folder.mkdir(parents=True)
        (folder / "a.png").write_bytes(b"")
        (folder / "b.png").write_bytes(b"not an image")
    with pytest.raises(DataError, match=r"4 of 4 samples are bad.*empty-file 2, unreadable 2"):
        place.ingest(max_bad_fraction=1.0)
    assert len(place.bad()) == 4
    assert not place.packed.exists()


def test_drafts_of_a_killed_ingest_are_removed(two_classes) -> None:
    """A kill may come while the quarantine table is written."""
    name = two_classes.quarantine.name
    draft, other = (two_classes.quarantine.with_name(f".draft-{of}.a1b2") for of in (name, "request.parquet"))
    draft.parent.mkdir()
    for file in (draft, other):
        file.write_bytes(b"half")
    two_classes.ingest()
    assert two_classes.quarantine.exists()
    assert not draft.exists()
    assert other.exists(), "a draft of another file stays"


def test_a_class_with_too_few_examples_is_named(two_classes) -> None:
    two_classes.fill("emu", 1, first=9000)
    with pytest.raises(DataError, match=r"'emu' has [01]; data.min_per_class requires 2"):
        two_classes.ingest()
    assert not two_classes.packed.exists()


def test_an_empty_split_is_named_with_its_setting(two_classes) -> None:
    with pytest.raises(DataError, match=r"split test is empty.*data.test_fraction"):
        two_classes.ingest(test_fraction=0.0)


def test_identical_pixels_never_span_splits(place) -> None:
    for split, first in (("train", 0), ("val", 3000), ("test", 5000)):
        place.fill(f"{split}/cat", 20, first=first)
        place.fill(f"{split}/dog", 20, first=first + 1000)
    Image.open(place.root / "images/test/cat/5000.png").save(place.root / "images/train/cat/copy.bmp")
    Image.open(place.root / "images/test/cat/5001.png").save(place.root / "images/val/cat/copy.tiff")
    Image.open(place.root / "images/val/dog/4000.png").save(place.root / "images/train/dog/copy.bmp")
    Image.open(place.root / "images/train/dog/1000.png").save(place.root / "images/train/dog/twin.bmp")
    place.ingest()
    rule = {"duplicate-across-splits"}
    assert place.bad() == {"train/cat/copy.bmp": rule, "val/cat/copy.tiff": rule, "train/dog/copy.bmp": rule}
    seen = [{image.tobytes() for image in place.images(split)} for split in ("train", "validation", "test")]
    assert not seen[0] & seen[1]
    assert not seen[0] & seen[2]
    assert not seen[1] & seen[2]


def test_same_pixels_under_two_labels_are_reported_and_kept(two_classes) -> None:
    images = two_classes.root / "images"
    (images / "dog" / "0000.png").write_bytes((images / "cat" / "0000.png").read_bytes())
    two_classes.ingest()
    profile = pl.read_json(two_classes.packed / "profile.json")
    conflicts = profile["label_conflicts"].item()
    assert conflicts["groups"] == 1
    assert conflicts["first"] == [{"ids": ["cat/0000.png", "dog/0000.png"], "classes": ["cat", "dog"]}]
    assert two_classes.bad() == {}


def test_a_broken_file_does_not_decide_the_packed_shape(place) -> None:
    place.fill("cat", 30, size=(16, 16), mode="L")
    folder = place.fill("dog", 30, first=1000, size=(16, 16), mode="L")
    place.image(1, size=(300, 200)).save(folder / "cut.png")
    content = (folder / "cut.png").read_bytes()
    (folder / "cut.png").write_bytes(content[: len(content) // 2])
    manifest = place.ingest()
    assert (manifest.input.height, manifest.input.channels) == (16, 1)
    assert place.bad() == {"dog/cut.png": {"unreadable"}}
    assert not list(place.packed.rglob("scratch"))
    assert place.progress == sorted(place.progress)
    assert place.progress[-1] == (61, 61)


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="file permissions as POSIX has them")
def test_a_file_without_read_permission_is_a_fact() -> None:
    """It is not an error, so that it can be quarantined."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.png"
        Image.new("L", (8, 8)).save(path)
        path.chmod(0)
        os.chmod(folder, 0o755)
        with _as_nobody():
            (facts,), _ = ImageDecoder((8, 1), 100).read_all(LocalFolder(Path(folder)).read, ["a.png"])
    assert facts.permitted is False
    assert facts.readable is None


@contextmanager
def _as_nobody() -> Iterator[None]:
    """Drop the rights of the superuser, who may read everything, while the file is opened."""
    me = os.geteuid()
    if me == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(me)


def test_a_full_disk_is_reported_and_the_old_set_kept(two_classes) -> None:
    """A limit on file size interrupts a write, as a full disk does."""
    two_classes.ingest()
    before = two_classes.bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(WorkspaceError) as refusal:
            two_classes.ingest(image_size=128)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(two_classes.packed) in str(refusal.value)
    assert two_classes.bytes() == before
    assert not [path for path in two_classes.packed.parent.iterdir() if path.name.startswith(".")]


def test_a_data_folder_that_cannot_be_created_is_reported(two_classes) -> None:
    (two_classes.root / "data").write_text("a file")
    with pytest.raises(WorkspaceError, match="data"):
        two_classes.ingest()


def test_shards_hold_at_most_their_size(place, monkeypatch) -> None:
    monkeypatch.setattr(pack, "_SHARD_MIB", 1)
    for number, name in enumerate(("cat", "dog")):
        place.fill(name, 40, first=1000 * number, size=(8, 8))
    manifest = place.ingest(image_size=160)
    shards = manifest.splits["train"].arrays["images"]
    assert len(shards) > 3
    assert all((place.packed / shard.file).stat().st_size <= 1 << 20 for shard in shards)
    assert sum(shard.rows for shard in shards) == manifest.splits["train"].rows
    stored = np.load(place.packed / shards[0].file, mmap_mode="r")
    assert stored.shape == (shards[0].rows, 160, 160, 3)
    assert stored.dtype == np.uint8
