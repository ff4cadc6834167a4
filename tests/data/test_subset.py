"""A subset of the samples: enough of each class, from all over the source. Other samples are not read."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ratchet.data.ingest import IngestTask, ingest
from ratchet.data.manifest import Manifest
from ratchet.data.reading.storage import LocalFolder
from ratchet.data.reading.subset import PER_CLASS, evenly_spaced, subset
from ratchet.data.sources.image_folder import ImageFolder
from ratchet.settings.model import DataSettings

OWN = """
import numpy as np

class Counting:
    packed = False

    def __init__(self, path):
        pass

    def __len__(self):
        return 3_000_000

    def __getitem__(self, place):
        if place % 6_000:
            raise ValueError("read unnecessarily")
        return {"value": place // 6_000, "label": place // 6_000 % 2}

    @staticmethod
    def arrays(value):
        return {"count": np.array([value])}
"""


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A folder with a common class and a rare one."""
    for name, count in (("common", 200), ("rare", 35)):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(count):
            pixels = np.random.default_rng([number, count]).integers(0, 256, (12, 12, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / name / f"{number:03d}.png")
    return tmp_path / "images"


def take(settings: DataSettings, root: Path) -> Manifest:
    return ingest(IngestTask(settings, packed=root / "packed", quarantine=root / "bad.parquet", root=root, sample=True))


def test_each_class_is_sampled_evenly(images: Path) -> None:
    chosen = subset(ImageFolder(LocalFolder(images)).listing, classes=2)
    assert Counter(chosen["label"]) == {0: PER_CLASS, 1: PER_CLASS}
    ids = chosen["id"].to_list()
    assert ids == sorted(ids)
    assert ids[0] == "common/000.png"
    assert ids[PER_CLASS - 1] > "common/190"


def test_other_samples_are_not_read(images: Path) -> None:
    kept = set(subset(ImageFolder(LocalFolder(images)).listing, classes=2)["id"])
    for path in images.rglob("*.png"):
        if path.relative_to(images).as_posix() not in kept:
            path.write_bytes(b"not an image")
    manifest = take(DataSettings(source="image-folder", path=str(images), workers=1), images.parent)
    assert manifest.quarantined == 0
    assert sum(split.rows for split in manifest.splits.values()) == 2 * PER_CLASS


def test_few_samples_of_an_own_kind_are_read(tmp_path: Path) -> None:
    (tmp_path / "counting.py").write_text(OWN)
    manifest = take(DataSettings(kind="counting:Counting", code="counting.py", path=".", workers=1), tmp_path)
    assert manifest.quarantined_by_rule == {}
    assert sum(split.rows for split in manifest.splits.values()) == 500


@pytest.mark.parametrize(("classes", "each"), [(2, 30), (100, 30), (1000, 3), (10**6, 2)])
def test_with_many_classes_there_are_fewer_samples_of_each(classes: int, each: int) -> None:
    assert len(evenly_spaced(10**7, classes=1, of=classes)) == each
    assert len(evenly_spaced(1, classes=1, of=classes)) == 1
    assert list(evenly_spaced(100, classes=2, of=50))[:3] == [0, 1, 3]
