"""Ingest killed at random moments: the last version stays complete, and the next run finishes the new one."""

import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from waiting import let_run

from ratchet.data.manifest import Manifest

pytestmark = pytest.mark.slow

FILES, ADDED = 1_020, 100  # enough that worker processes read them
KILLS = 2
CLASSES = ("cat", "dog")


def _fill(folder: Path, numbers: range) -> None:
    for number in numbers:
        path = folder / CLASSES[number % 2] / f"{number:05d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)


@pytest.fixture
def photos(project):
    folder = project.root / "photos"
    _fill(folder, range(FILES))
    (folder / "cat" / "cut.png").write_bytes((folder / "cat" / "00000.png").read_bytes()[:100])
    project.good("ratchet", "set", "data.source=image-folder", "data.path=photos", "data.workers=2")
    return project


def _written(project) -> tuple[dict[str, str], bytes]:
    return project.digests("data/packed"), project.workspace.quarantine.read_bytes()


def _ingest(project):
    return project.start(*project.stage("ingest"), log=project.home / "ingest.log")


def test_a_killed_ingest_leaves_the_last_version_complete(photos) -> None:
    """The next run finishes the new version."""
    photos.good(*photos.stage("ingest"))
    cache, packed = photos.workspace.state / "ingest.parquet", photos.workspace.packed
    before, first_cache = _written(photos), cache.read_bytes()
    _fill(photos.root / "photos", range(FILES, FILES + ADDED))
    start = time.monotonic()
    assert _ingest(photos).wait() == 0
    taken = time.monotonic() - start
    after = _written(photos)
    assert after != before
    assert Manifest.read(photos.workspace.packed).quarantined == 1

    drawn, cut = random.Random(0), 0
    for number in range(KILLS):
        # Go back to the first version with its own cache, which is quick. The killed run has no cache.
        cache.write_bytes(first_cache)
        _move(photos.root / "photos", away=True)
        photos.good(*photos.stage("ingest"))
        assert _written(photos) == before
        cache.unlink()
        _move(photos.root / "photos", away=False)
        process = _ingest(photos)
        let_run(process, taken * drawn.uniform(0.2, 1.0))
        process.send_signal(signal.SIGKILL)
        cut += process.wait() != 0
        Manifest.read(packed)
        assert photos.digests("data/packed") in (before[0], after[0]), number
        photos.good(*photos.stage("ingest"))
        assert _written(photos) == after
    assert cut
    assert not [path.name for path in packed.parent.iterdir() if path.name.startswith(".draft")]


def _move(folder: Path, *, away: bool) -> None:
    """Move the added files out of the folder or back into it."""
    aside = folder.parent / "aside"
    start, end = (folder, aside) if away else (aside, folder)
    for number in range(FILES, FILES + ADDED):
        name = Path(CLASSES[number % 2], f"{number:05d}.png")
        (end / name).parent.mkdir(parents=True, exist_ok=True)
        (start / name).rename(end / name)
