"""A user's own Dataset through the whole pipeline: photos decoded and cut out one by one, by worker processes.

The photos are the hymenoptera that RATCHET_DATASETS holds, or coloured noise that is made here.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import psutil
import pytest
from PIL import Image

from ratchet.data.manifest import Manifest
from ratchet.training.checkpoint import read_checkpoint

pytestmark = pytest.mark.slow

MODULE = '''
"""Photos read from disk one by one, cut out at random for training."""

import hashlib
import random
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset

FOLDER = Path(__file__).parent / "data" / "raw" / "photos"
SIDE = 24


class Photos(Dataset):
    """The photos of one split: a file's name decides which, for ever."""

    def __init__(self, split):
        self.split = split
        self.classes = sorted(folder.name for folder in FOLDER.iterdir() if folder.is_dir())
        files = sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.jpg"))
        self.ids = [name for name in files if split_of(name) == split]

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        while (FOLDER.parent / "hang").exists():  # a test's wish
            time.sleep(0.1)
        path = FOLDER / self.ids[index]
        picture = Image.open(path).convert("RGB").resize((SIDE + 8, SIDE + 8))
        top, left = (random.randrange(9), random.randrange(9)) if self.split == "train" else (4, 4)
        pixels = np.asarray(picture)[top : top + SIDE, left : left + SIDE]
        image = torch.from_numpy(pixels.copy()).permute(2, 0, 1).float() / 255
        return (image - 0.45) / 0.22, self.classes.index(path.parent.name)


def split_of(name):
    place = hashlib.sha256(name.encode()).digest()[0]
    return "test" if place < 50 else "validation" if place < 100 else "train"


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
    "gate.minimum_accuracy=0.0",
)


def fill(folder: Path) -> None:
    """Two classes of photos, and one file that is not a photo."""
    real = Path(os.environ.get("RATCHET_DATASETS", "")) / "hymenoptera" / "train"
    for label, name in enumerate(("ants", "bees")):
        (folder / name).mkdir(parents=True)
        if os.environ.get("RATCHET_DATASETS") and real.is_dir():
            for path in sorted((real / name).glob("*.jpg"))[:60]:
                (folder / name / path.name).write_bytes(path.read_bytes())
            continue
        for number in range(60):
            pixels = np.random.default_rng([label, number]).integers(0, 128, (40, 50, 3), dtype=np.uint8)
            pixels[..., label ^ (number % 6 == 0)] += 100  # a few look like the other class: errors for the report
            Image.fromarray(pixels).save(folder / name / f"{number:03d}.jpg")
    (folder / "ants" / "broken.jpg").write_bytes(b"not a photo")


@pytest.fixture(scope="module")
def own(new_project: Callable[[str], Any]) -> Any:
    """A project with a Dataset of its own, settings and photos in place, and all stages run by DVC."""
    project = new_project("own-data")
    (project.root / "photo_set.py").write_text(MODULE)
    fill(project.root / "data" / "raw" / "photos")
    project.good("ratchet", "set", *SETTINGS)
    project.good("dvc", "repro")
    return project


def test_dvc_repro_takes_it_to_a_registered_model_and_then_has_nothing_to_do(own: Any) -> None:
    manifest = Manifest.read(own.workspace.packed)
    assert (manifest.name, manifest.dtype, manifest.height) == ("photos", "float32", 24)
    assert manifest.quarantined_by_rule == {"raised": 1}
    assert not list(own.workspace.packed.rglob("images*"))
    assert "up to date" in own.good("dvc", "status")
    assert "data:image/png" in own.workspace.report.read_text()


def test_the_registered_model_answers_what_the_dataset_gives(own: Any) -> None:
    asked = f"""
import sys
import mlflow, numpy as np
sys.path.insert(0, {str(own.root)!r})
from photo_set import photos
mlflow.set_tracking_uri("sqlite:///mlruns/mlflow.db")
model = mlflow.pyfunc.load_model("models:/photos@champion")
images = np.stack([photos("test")[row][0].permute(1, 2, 0).numpy() for row in range(5)])
np.save("answers.npy", model.predict(images))
"""
    own.good("python", "-c", asked)
    answers = np.load(own.root / "answers.npy")
    assert answers.shape == (5, 2)
    np.testing.assert_allclose(answers.sum(1), 1, rtol=1e-5)
    predictions = pl.read_parquet(own.workspace.reports / "predictions.parquet")
    assert {name.partition("/")[0] for name in predictions["id"]} == {"ants", "bees"}


def test_killed_in_an_epoch_it_goes_on_to_the_same_weights_and_no_worker_is_left(own: Any) -> None:
    expected = own.digests("data/model", "data/checkpoints")
    running = own.root / "data" / "running"
    process = subprocess.Popen(
        own.stage("train"), cwd=own.root, env=own.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    while process.poll() is None and not any(running.glob("*/step-*.safetensors")):
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    assert process.stdout is not None
    process.stdout.read()  # until the last worker has ended too
    process.stdout.close()
    process.wait()
    newest = max(running.glob("*/step-*.safetensors"))
    assert read_checkpoint(newest).step > 0
    assert "continues at step" in own.good(*own.stage("train"))
    assert own.digests("data/model", "data/checkpoints") == expected


@pytest.mark.parametrize("moment", ["the workers start", "in an epoch"])
def test_told_to_go_as_a_whole_group_it_leaves_in_good_order(own: Any, moment: str) -> None:
    """As a cancelled run is told by Prefect's worker, and a command by the terminal."""
    expected = own.digests("data/model", "data/checkpoints")
    running = own.root / "data" / "running"
    process = subprocess.Popen(
        own.stage("train"), cwd=own.root, env=own.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True,
    )  # fmt: skip
    mine = psutil.Process(process.pid)

    def comes() -> bool:
        if moment == "in an epoch":
            return any(running.glob("*/step-*.safetensors"))
        return any("forkserver" in " ".join(child.cmdline()) for child in mine.children(recursive=True))

    while process.poll() is None and not comes():
        time.sleep(0.001)
    family = mine.children(recursive=True)
    os.killpg(process.pid, signal.SIGTERM)
    said, _ = process.communicate()
    assert process.returncode == 1, said
    assert "train: stopped at step" in said
    assert "Traceback" not in said
    _, left = psutil.wait_procs(family)
    assert not left
    own.good(*own.stage("train"))
    assert own.digests("data/model", "data/checkpoints") == expected


@pytest.mark.parametrize("workers", [0, 2])
def test_while_a_sample_hangs_a_request_to_stop_is_answered_and_the_time_is_limited(own: Any, workers: int) -> None:
    expected = own.digests("data/model")
    running, hang = own.root / "data" / "running", own.root / "data" / "raw" / "hang"
    own.good("ratchet", "set", f"training.workers={workers}")
    process = subprocess.Popen(
        own.stage("train"), cwd=own.root, env=own.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip
    family = psutil.Process(process.pid)
    while process.poll() is None and not any(running.glob("*/step-*.safetensors")):
        time.sleep(0.001)
    hang.touch()
    time.sleep(1)
    family_of_workers = family.children(recursive=True)
    process.terminate()
    said, _ = process.communicate()
    assert process.returncode == 1, said
    assert "train: stopped at step" in said
    assert "Traceback" not in said
    assert not psutil.wait_procs(family_of_workers)[1]
    own.good("ratchet", "set", "training.sample_timeout=2.0")
    refused = own.refused(*own.stage("train"))
    assert ".jpg of split train was not read within 2 s (" in refused
    assert ("(worker process" in refused) == (workers > 0)
    assert ("line 3" in refused and "of photo_set.py" in refused) == (workers == 0)
    hang.unlink()
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
