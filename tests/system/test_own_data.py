"""A user's own Dataset through the whole pipeline: worker processes decode and crop photos one by one.

The photos are the hymenoptera set in RATCHET_DATASETS, or coloured noise that is generated here.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import psutil
import pytest
from PIL import Image
from waiting import until

from ratchet.data.manifest import Manifest
from ratchet.training.checkpoint import read_checkpoint

pytestmark = pytest.mark.slow

MODULE = '''
"""Photos read from disk one by one, with random crops for training."""

import hashlib
import random
import threading
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset

FOLDER = Path(__file__).parent / "data" / "raw" / "photos"
SIDE = 24


class Photos(Dataset):
    """The photos of one split, which a hash of the file's name decides."""

    def __init__(self, split):
        self.split = split
        self.classes = sorted(folder.name for folder in FOLDER.iterdir() if folder.is_dir())
        files = sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.jpg"))
        self.ids = [name for name in files if split_of(name) == split]

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        while (FOLDER.parent / "hang").exists():  # set by a test
            (FOLDER.parent / "hangs").touch()
            threading.Event().wait(0.1)
        path = FOLDER / self.ids[index]
        photo = Image.open(path).convert("RGB").resize((SIDE + 8, SIDE + 8))
        top, left = (random.randrange(9), random.randrange(9)) if self.split == "train" else (4, 4)
        pixels = np.asarray(photo)[top : top + SIDE, left : left + SIDE]
        image = torch.from_numpy(pixels.copy()).permute(2, 0, 1).float() / 255
        return (image - 0.45) / 0.22, self.classes.index(path.parent.name)


def split_of(name):
    number = hashlib.sha256(name.encode()).digest()[0]
    return "test" if number < 50 else "validation" if number < 100 else "train"


def photos(split):
    return Photos(split)
'''
SETTINGS = (
    "data.source=factory",
    "data.factory=photo_set:photos",
    "data.code=photo_set.py",
    "data.path=data/raw/photos",
    "data.workers=2",
    "data.max_bad_fraction=0.1",
    "training.workers=2",
    "training.batch_size=16",
    "training.checkpoint_steps=2",
    "gate.minimum=0.0",
)


def fill(folder: Path) -> None:
    """Write two classes of photos, and one file that is not a photo."""
    real = Path(os.environ.get("RATCHET_DATASETS", "")) / "hymenoptera" / "train"
    for label, name in enumerate(("ants", "bees")):
        (folder / name).mkdir(parents=True)
        if os.environ.get("RATCHET_DATASETS") and real.is_dir():
            for path in sorted((real / name).glob("*.jpg"))[:60]:
                (folder / name / path.name).write_bytes(path.read_bytes())
            continue
        for number in range(60):
            pixels = np.random.default_rng([label, number]).integers(0, 128, (40, 50, 3), dtype=np.uint8)
            pixels[..., label ^ (number % 6 == 0)] += (
                100  # a few look like the other class and cause errors for the report
            )
            Image.fromarray(pixels).save(folder / name / f"{number:03d}.jpg")
    (folder / "ants" / "broken.jpg").write_bytes(b"not a photo")


@pytest.fixture(scope="module")
def own(new_project: Callable[[str], Any]) -> Any:
    """A project with its own Dataset, after DVC has run all stages."""
    project = new_project("own-data")
    (project.root / "photo_set.py").write_text(MODULE)
    fill(project.root / "data" / "raw" / "photos")
    project.good("ratchet", "set", *SETTINGS)
    project.good("dvc", "repro")
    return project


def test_dvc_repro_registers_a_model_then_is_up_to_date(own: Any) -> None:
    manifest = Manifest.read(own.workspace.packed)
    assert (manifest.name, manifest.input.dtype, manifest.input.height) == ("photos", "float32", 24)
    assert manifest.quarantined_by_rule == {"raised": 1}
    assert not list(own.workspace.packed.rglob("images*"))
    assert "up to date" in own.good("dvc", "status")
    assert "data:image/png" in own.workspace.report.read_text()


def test_the_registered_model_takes_images_of_the_dataset(own: Any) -> None:
    script = f"""
import sys
import mlflow, numpy as np
sys.path.insert(0, {str(own.root)!r})
from photo_set import photos
mlflow.set_tracking_uri("sqlite:///mlruns/mlflow.db")
model = mlflow.pyfunc.load_model("models:/photos@champion")
images = np.stack([photos("test")[row][0].permute(1, 2, 0).numpy() for row in range(5)])
np.save("answers.npy", model.predict(images))
"""
    own.good(sys.executable, "-c", script)
    answers = np.load(own.root / "answers.npy")
    assert answers.shape == (5, 2)
    np.testing.assert_allclose(answers.sum(1), 1, rtol=1e-5)
    predictions = pl.read_parquet(own.workspace.reports / "predictions.parquet")
    assert {name.partition("/")[0] for name in predictions["id"]} == {"ants", "bees"}


def start(project: Any) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        project.stage("train"), cwd=project.root, env=project.environment, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip


def newest(project: Any) -> Path | None:
    """Return the newest checkpoint of the unfinished training."""
    return max((project.root / "data" / "running").glob("[!.]*/step-*.safetensors"), default=None)


def command_lines(processes: list[psutil.Process]) -> Iterator[str]:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended since it was listed
            yield " ".join(process.cmdline())


def assert_ended_cleanly(process: "subprocess.Popen[str]", family: list[psutil.Process]) -> None:
    """No traceback is printed, and no process is left."""
    output, _ = process.communicate()
    assert process.returncode == 1, output
    assert "train: stopped at step" in output
    assert "Traceback" not in output
    assert not psutil.wait_procs(family)[1]


def test_stopped_and_killed_trainings_resume_to_the_same_weights(own: Any) -> None:
    """SIGTERM to the process group, from Prefect's worker or a terminal, ends it cleanly. SIGKILL leaves no worker."""
    expected = own.digests("data/model", "data/checkpoints")

    def has_workers() -> bool:
        return any("forkserver" in line for line in command_lines(parent.children(recursive=True)))

    def has_more_steps() -> bool:
        return newest(own) != before

    for reached in (has_workers, has_more_steps):
        before = newest(own)
        process = start(own)
        parent = psutil.Process(process.pid)
        until(reached, process=process, pause=0.005)
        family = parent.children(recursive=True)
        os.killpg(process.pid, signal.SIGTERM)
        assert_ended_cleanly(process, family)

    before = newest(own)
    process = start(own)
    until(has_more_steps, process=process, pause=0.001)
    process.kill()
    process.communicate()  # until the last worker has ended too
    checkpoint = newest(own)
    assert checkpoint is not None
    assert read_checkpoint(checkpoint).step > 0
    assert "continues at step" in own.good(*own.stage("train"))
    assert own.digests("data/model", "data/checkpoints") == expected


def test_a_hanging_sample_can_be_stopped_and_times_out(own: Any) -> None:
    """It hangs in a worker process, and in the training's own."""
    expected = own.digests("data/model")
    hang = own.root / "data" / "raw" / "hang"
    hangs = hang.with_name("hangs")
    for workers in (2, 0):
        own.good("ratchet", "set", f"training.workers={workers}")
        before = newest(own)
        process = start(own)
        parent = psutil.Process(process.pid)
        until(lambda before=before: newest(own) != before, process=process, pause=0.001)
        hang.touch()
        until(hangs.exists, process=process)
        family = parent.children(recursive=True)
        process.terminate()
        assert_ended_cleanly(process, family)
        own.good("ratchet", "set", "training.sample_timeout=2.0")
        refused = own.refused(*own.stage("train"))
        # The run stopped where the first checkpoint was: the next sample may be one of validation.
        assert re.search(r"\.jpg of split (train|validation) was not read within 2 s \(", refused), refused
        assert ("(worker process" in refused) == (workers > 0)
        assert ("line 3" in refused and "of photo_set.py" in refused) == (workers == 0)
        hang.unlink()
        hangs.unlink()
        own.good("ratchet", "set", "training.sample_timeout=300.0", "training.workers=2")
    assert "continues at step" in own.good(*own.stage("train"))
    assert own.digests("data/model") == expected


def test_a_change_of_the_users_code_ingests_and_trains_again(own: Any) -> None:
    own.good("git", "add", "photo_set.py")
    (own.root / "photo_set.py").write_text(MODULE.replace("0.22", "0.25"))
    refused = own.refused(*own.stage("train"))
    assert "data.code: photo_set.py changed since the data was ingested" in refused
    status = own.good("dvc", "status")
    assert "modified:           photo_set.py" in status
    before = own.digests("data/model", "data/packed")
    own.good("dvc", "repro", "train")
    after = own.digests("data/model", "data/packed")
    assert after["data/packed/manifest.json"] != before["data/packed/manifest.json"]
    assert after["data/model/model.safetensors"] != before["data/model/model.safetensors"]
