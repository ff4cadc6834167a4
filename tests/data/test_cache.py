"""Ingest again after a change: only changes are decoded, and the output equals that of a fresh ingest."""

import itertools
import os
import random
import shutil
from collections import Counter

import numpy as np
import polars as pl
import pytest

from ratchet import files
from ratchet.code.closure import closure
from ratchet.data import image_set
from ratchet.data.image_rules import FACTS
from ratchet.data.image_set import deciding_code
from ratchet.data.reading import images, storage
from ratchet.data.reading.cache import FactCache, write
from ratchet.errors import DataError, StorageUnavailable


@pytest.fixture
def counted(two_classes, monkeypatch):
    """80 images that were ingested with a cache; `counts` has later calls as `read` and `decoded`."""
    monkeypatch.setattr(storage, "_FRESH", 0)  # stamps of new files are trusted too
    counts = Counter()
    to_pixels, opened = images.to_pixels, storage.LocalFolder.read

    def counting_pixels(*args, **kwargs):
        counts["decoded"] += 1
        return to_pixels(*args, **kwargs)

    def counting_open(self, name):
        counts["read"] += 1
        return opened(self, name)

    monkeypatch.setattr(images, "to_pixels", counting_pixels)
    monkeypatch.setattr(storage.LocalFolder, "read", counting_open)
    two_classes.cache = two_classes.root / "cache.parquet"
    two_classes.ingest()
    assert counts["decoded"] == 80
    counts.clear()
    two_classes.counts = counts
    return two_classes


def test_unchanged_input_is_not_read_and_output_not_touched(counted, monkeypatch) -> None:
    before, inode = counted.bytes(), os.stat(counted.packed).st_ino
    manifest = counted.ingest(workers=3)
    assert counted.counts == {}
    assert os.stat(counted.packed).st_ino == inode
    assert counted.bytes() == before
    assert sum(split.rows for split in manifest.splits.values()) == 80
    assert counted.progress[-1] == (80, 80)


def test_a_lack_of_memory_marks_no_image_as_bad(two_classes, monkeypatch) -> None:
    to_pixels, calls = images.to_pixels, itertools.count()

    def short_of_memory(*args, **kwargs):
        if next(calls) == 40:
            raise MemoryError
        return to_pixels(*args, **kwargs)

    monkeypatch.setattr(storage, "_FRESH", 0)  # stamps of new files are trusted too
    monkeypatch.setattr(images, "to_pixels", short_of_memory)
    two_classes.cache = two_classes.root / "cache.parquet"
    with pytest.raises(StorageUnavailable, match=r"\.png: cannot be read now \(MemoryError\); it may be good\. Fix: "):
        two_classes.ingest()
    two_classes.ingest()
    assert two_classes.bad() == {}
    assert two_classes.index().height == 80


def test_images_that_may_be_good_are_decoded_again(tmp_path) -> None:
    """Pillow's message says no more: its memory may not have sufficed."""
    problems = {"again": "out of memory error when reading image file", "bad": "image file is truncated", "good": None}
    rows = [
        {"id": name, "stamp": name, "content": name, "readable": not problem, "problem": problem, "pixels": pixels}
        for (name, problem), pixels in zip(problems.items(), (None, None, "digest"), strict=True)
    ]
    samples = pl.DataFrame(rows, schema={"id": pl.String, "stamp": pl.String, **FACTS})
    write(tmp_path / "cache.parquet", samples, shape=(8, 8, 3), inputs="", outputs="")
    assert FactCache(tmp_path / "cache.parquet").facts(shape=(8, 8, 3))["id"].to_list() == ["bad", "good"]


def test_only_added_files_are_decoded(counted) -> None:
    counted.fill("cat", 7, first=5000)
    counted.ingest()
    assert counted.index().height == 87
    assert counted.counts["decoded"] == 7
    assert counted.counts["read"] <= 7 + 64  # a preview of some decides the packed shape


@pytest.mark.parametrize("act", ["rename", "move", "touch"])
def test_renamed_moved_and_touched_files_are_not_decoded_again(counted, act: str) -> None:
    cat = counted.root / "images" / "cat"
    for path in sorted(cat.iterdir())[:9]:
        if act == "rename":
            path.rename(cat / f"new-{path.name}")
        elif act == "move":
            path.rename(counted.root / "images" / "dog" / f"moved-{path.name}")
        else:
            os.utime(path, (1, 1))
    counted.ingest()
    assert counted.counts["decoded"] == 0
    assert counted.index().height == 80


def test_removing_files_decodes_nothing(counted) -> None:
    for path in sorted((counted.root / "images" / "dog").iterdir())[::3]:
        path.unlink()
    counted.ingest()
    assert counted.counts["decoded"] == 0
    assert counted.index().filter(pl.col("class") == "dog").height == 26


def test_an_altered_file_of_equal_size_and_time_is_noticed(counted) -> None:
    path = sorted((counted.root / "images" / "cat").iterdir())[0]
    times = os.stat(path)
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    counted.ingest(max_bad_fraction=0.1)
    assert counted.bad() == {"cat/0000.png": {"unreadable"}}


def test_random_edits_give_the_bytes_of_a_fresh_ingest(counted) -> None:
    """Of the contents that stay, few move to another split: those at the borders between two splits."""
    drawn = random.Random(0)
    folder = counted.root / "images"
    places, moved = dict(counted.index().select("content", "split").rows()), 0
    for turn in range(6):
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        for path in drawn.sample(files, 8):
            match drawn.choice(["remove", "rename", "break", "copy", "swap"]):
                case "remove":
                    path.unlink()
                case "rename":
                    path.rename(path.with_name(f"{turn}-{path.name}"))
                case "break":
                    path.write_bytes(path.read_bytes()[: drawn.randrange(200)])
                case "copy":
                    shutil.copy(path, folder / "dog" / f"copy-{turn}-{path.name}")
                case "swap":
                    counted.image(drawn.randrange(10**6)).save(path)
        counted.fill("cat", 3, first=7000 + 10 * turn)
        counted.ingest(max_bad_fraction=0.9)
        with_cache = counted.bytes()
        counted.cache.unlink()
        counted.ingest(max_bad_fraction=0.9)
        assert counted.bytes() == with_cache
        for content, name in counted.index().select("content", "split").rows():
            moved += places.get(content, name) != name
            places[content] = name
    assert moved <= 6 * 8


@pytest.mark.parametrize("damage", ["gone", "cut", "other decoders", "other scaling", "other shape"])
def test_an_unusable_cache_is_ignored(counted, monkeypatch, damage: str) -> None:
    expected = counted.bytes()
    if damage == "gone":
        counted.cache.unlink()
    elif damage == "cut":
        counted.cache.write_bytes(counted.cache.read_bytes()[:200])
    elif damage == "other decoders":
        monkeypatch.setattr("ratchet.data.reading.cache.version", lambda name: "0")
    elif damage == "other scaling":
        monkeypatch.setattr("ratchet.data.reading.cache.closure", lambda *_, **__: {})
    else:
        counted.ingest(image_size=16)
        counted.counts.clear()
    counted.fill("cat", 1, first=0)  # the same image again with another stamp
    counted.ingest()
    assert counted.counts["decoded"] == 80
    assert counted.bytes() == expected


@pytest.mark.parametrize("part", ["version", "closure"])
def test_unchanged_images_are_decoded_again_by_another_decoder(counted, monkeypatch, part: str) -> None:
    monkeypatch.setattr(f"ratchet.data.reading.cache.{part}", lambda *_, **__: "other")
    counted.ingest()
    assert counted.counts["decoded"] == 80


def test_unchanged_images_are_packed_again_by_other_code(counted, monkeypatch) -> None:
    inode = os.stat(counted.packed).st_ino
    monkeypatch.setattr("ratchet.data.image_set.deciding_code", dict)
    counted.ingest()
    assert counted.counts["decoded"] == 0
    assert os.stat(counted.packed).st_ino != inode


def test_an_ingest_beside_deletes_no_temporary_files(counted, monkeypatch) -> None:
    """Another one begins in the same folder, and ends early."""
    fill, folders = image_set._Ingest._fill, []

    def interrupted(ingest, draft, folder):
        with pytest.raises(KeyboardInterrupt), files.draft_directory(counted.packed):
            raise KeyboardInterrupt
        folders.append(folder)
        return fill(ingest, draft, folder)

    monkeypatch.setattr(image_set._Ingest, "_fill", interrupted)
    counted.fill("cat", 1, first=6000)
    counted.ingest()
    assert [folder.exists() for folder in folders] == [False]
    assert list(counted.packed.parent.glob(".draft-*")) == []


def test_all_code_that_makes_pixels_decides_packed_images() -> None:
    decoders = {"kinds/image/depth.py", "data/reading/images.py", "data/reading/pixels.py", "data/reading/identify.py"}
    assert {f"src/ratchet/{name}" for name in decoders} <= deciding_code().keys()
    of_worker = closure(["ratchet.data.reading.worker"], stage="ingest", choice={"kind": "image"})
    assert {f"src/ratchet/{name}" for name in decoders} <= of_worker.keys()


def test_an_altered_packed_set_is_refused(counted) -> None:
    """Its images are not copied into the next version."""
    shard = counted.packed / "train" / "images-00000.npy"
    content = np.load(shard)
    content[5] = 0
    np.save(shard, content)
    counted.fill("cat", 1, first=5000)
    with pytest.raises(DataError, match=r"data/packed was altered .* remove the folder, then ingest again"):
        counted.ingest()


def test_a_quarantined_duplicate_is_packed_once_the_other_is_removed(place, monkeypatch) -> None:
    monkeypatch.setattr(storage, "_FRESH", 0)
    for split, first in (("train", 0), ("val", 3000), ("test", 5000)):
        place.fill(f"{split}/cat", 10, first=first)
        place.fill(f"{split}/dog", 10, first=first + 1000)
    twin = place.root / "images/test/cat/5000.png"
    shutil.copy(twin, place.root / "images/train/cat/copy.png")
    place.cache = place.root / "cache.parquet"
    place.ingest()
    assert place.bad() == {"train/cat/copy.png": {"duplicate-across-splits"}}
    twin.unlink()
    place.ingest()
    assert place.bad() == {}
    assert "train/cat/copy.png" in place.index()["id"].to_list()
