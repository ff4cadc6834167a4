"""Memory of an ingest, measured in a separate process."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

MEASURE = """
import json, resource, sys
from pathlib import Path

import numpy as np

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform == "linux" else 1 << 20)

%s
print(json.dumps([before, peak()]))
"""

PAIRS = """
from ratchet.data.checks.near_duplicates import Signatures, similar_pairs

drawn = np.random.default_rng(0)
rows = 6_000
marks = drawn.integers(0, 1 << 63, rows).astype(np.uint64)
for part in range(4):  # like images on a plain background: few fingerprints, each shared by many images
    few = drawn.integers(0, 20, rows).astype(np.uint64) << np.uint64(16 * part)
    marks = (marks & ~np.uint64(0xFFFF << 16 * part)) | few
small = drawn.integers(0, 256, (rows, 8, 8), dtype=np.uint8)
before = peak()
similar_pairs(Signatures(marks, small))
"""

ABSENT = """
from ratchet.data.ingest import IngestTask, ingest
from ratchet.errors import DataError
from ratchet.settings.model import DataSettings

before = peak()
nowhere = Path("/nowhere/at/all")
try:
    settings = DataSettings(source="MNIST", path=str(nowhere), download=False)
    ingest(IngestTask(settings, packed=nowhere, quarantine=nowhere, root=nowhere))
except DataError as error:
    assert "the folder does not exist" in str(error)
"""

SET = """
from ratchet.data.ingest import IngestTask, ingest
from ratchet.settings.model import DataSettings

import torchvision.datasets

before = peak()
folder = Path(sys.argv[2])
settings = DataSettings(source="FashionMNIST", path=sys.argv[1], download=False, workers=2)
ingest(IngestTask(settings, packed=folder / "packed", quarantine=folder / "bad", root=folder))
"""


def grown(code: str, *arguments: str) -> float:
    """Return the MiB by which a process grows at its peak."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE % code, *arguments], capture_output=True, text=True, check=True
    )
    before, after = json.loads(done.stdout)
    return float(after - before)


def test_comparing_many_similar_images_takes_little_memory() -> None:
    """All pairs at once would take 600 MiB: 640 groups of 300 images are 29 million pairs."""
    assert grown(PAIRS) < 300


def test_a_missing_torchvision_set_takes_no_memory() -> None:
    """torch and torchvision alone take 650 MiB."""
    assert grown(ABSENT) < 60


def test_a_torchvision_set_takes_few_times_its_pixels(shared: Callable[[str], Path], tmp_path: Path) -> None:
    """A third of the set, 18 MiB. Its numbers as float32 would take 70 MiB more than it takes now."""
    raw = tmp_path / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for split, rows in (("train", 20_000), ("t10k", 3_000)):
        for name, start, size in (("images-idx3-ubyte", 16, 28 * 28), ("labels-idx1-ubyte", 8, 1)):
            content = (shared("FashionMNIST") / "FashionMNIST" / "raw" / f"{split}-{name}").read_bytes()
            number = rows.to_bytes(4, "big")
            (raw / f"{split}-{name}").write_bytes(content[:4] + number + content[8 : start + rows * size])
    assert grown(SET, str(tmp_path), str(tmp_path)) < 260
