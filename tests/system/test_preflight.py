"""`ratchet preflight` as a person runs it: what it finds, what it says, and that nothing of it stays."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

STEPS = ("ingest", "doctor", "train", "evaluate", "register", "predict")
MODEL = """
from torch import nn

class Net(nn.Module):
    def __init__(self, inside, classes):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(inside, 32), nn.ReLU(), nn.Linear(32, classes))

    def forward(self, images):
        logits = self.layers(images)
        return CHANGE

def net(*, classes, channels, height, width):
    return Net(channels * height * width, classes)
"""


@pytest.fixture(scope="module")
def shared_project(new_project: Callable[[str], Any]) -> Any:
    """A project with a packed set, a model and an MLflow store of its own."""
    project = new_project("preflight")
    project.good(*project.stage("ingest"))
    project.good(*project.stage("train"))
    return project


@pytest.fixture
def project(shared_project: Any) -> Iterator[Any]:
    """The same, whose settings are put back."""
    yield shared_project
    shared_project.good("git", "checkout", "--quiet", ".")


@pytest.fixture
def temporary(project: Any, tmp_path: Path) -> Iterator[Path]:
    """The folder for temporary files; fails a test after which anything in it or in the project is not as it was."""
    before = everything(project.root)
    yield tmp_path
    assert everything(project.root) == before
    assert list(tmp_path.iterdir()) == []


def everything(root: Path) -> dict[str, str]:
    """Every file in the project with its digest, git's own and compiled code left out; folders with an empty one."""
    paths = [path for path in root.rglob("*") if not {".git", "__pycache__"}.intersection(path.relative_to(root).parts)]
    return {str(path): sha256(path.read_bytes()).hexdigest() if path.is_file() else "" for path in paths}


def use_model(project: Any, change: str) -> None:
    (project.root / "mynet.py").write_text(MODEL.replace("CHANGE", change))
    project.good("ratchet", "set", "model.factory=mynet:net", "model.code=mynet.py")


def marks(told: str) -> dict[str, str]:
    """The mark that each step got, in order."""
    lines = [line.split() for line in told.splitlines() if line[:2] == "  " and line[2:3] in ("✓", "!", "✗")]
    return {words[1]: words[0] for words in lines}


def test_a_sound_project_passes_every_step_and_nothing_of_it_stays(project: Any, temporary: Path) -> None:
    told = project.good("ratchet", "preflight", TMPDIR=str(temporary))
    assert marks(told) == dict.fromkeys(STEPS, "✓")
    assert "models:/digits/1, loaded by mlflow.pyfunc, sees '" in told
    assert "All is well" in told


def test_a_silent_bug_is_named_with_its_way_out_and_the_exit_code_says_so(project: Any, tmp_path: Path) -> None:
    use_model(project, "logits.softmax(1)")
    before = everything(project.root)
    told = project.refused("ratchet", "preflight", TMPDIR=str(tmp_path))
    assert marks(told) == {**dict.fromkeys(STEPS, "✓"), "doctor": "!"}
    assert "1. softmax before the loss" in told
    assert "-> let forward() return logits, without the softmax" in told
    assert "something is wrong all the same" in told
    assert everything(project.root) == before
    assert list(tmp_path.iterdir()) == []


def test_a_step_that_fails_is_told_and_ends_it(project: Any, tmp_path: Path) -> None:
    use_model(project, "logits if not self.training else logits[:, :3]")
    told = project.run("ratchet", "preflight", TMPDIR=str(tmp_path))
    assert told.returncode == 1
    assert marks(told.stdout) == {"ingest": "✓", "doctor": "!", "train": "✗"}
    assert "IndexError: Target" in told.stdout
    assert "1. one step" in told.stdout
    assert "The pipeline does not work yet" in told.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_is_not_there_is_told_in_one_sentence(project: Any, tmp_path: Path) -> None:
    project.good("ratchet", "set", "model.name=convnett")
    told = project.refused("ratchet", "preflight", TMPDIR=str(tmp_path))
    assert marks(told) == {"ingest": "✓", "doctor": "✗"}
    assert "no model is called 'convnett'" in told
    assert "The pipeline does not work yet" in told
    assert list(tmp_path.iterdir()) == []


def test_a_set_that_would_have_to_be_downloaded_is_not(project: Any, tmp_path: Path) -> None:
    project.good("ratchet", "set", "data.source=FashionMNIST")
    told = project.refused("ratchet", "preflight", TMPDIR=str(tmp_path))
    assert "FashionMNIST is not in data/raw yet, and preflight downloads nothing" in told
    assert "python -m tasks.ingest" in told


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("params.yaml", signal.SIGINT),
        ("running", signal.SIGINT),
        ("running", signal.SIGTERM),
        ("reports", signal.SIGINT),
    ],
)
def test_cut_off_anywhere_it_leaves_nothing(project: Any, temporary: Path, moment: str, number: signal.Signals) -> None:
    process = subprocess.Popen(
        ("ratchet", "preflight"),
        cwd=project.root,
        env=project.environment | {"TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    while process.poll() is None and not list(temporary.glob(f"ratchet-preflight-*/{moment}")):
        time.sleep(0.01)
    process.send_signal(number)
    told, _ = process.communicate()
    assert process.returncode == 130, told
    assert "interrupted; nothing was left behind" in told
    assert "Traceback" not in told


@pytest.mark.parametrize(
    ("source", "path", "model"), [("CIFAR10", ".", "convnet"), ("image-folder", "hymenoptera", "resnet")]
)
def test_real_sets_are_tried_where_they_lie(project: Any, temporary: Path, source: str, path: str, model: str) -> None:
    named = os.environ.get("RATCHET_DATASETS")
    if not named:
        pytest.skip("RATCHET_DATASETS is not set: no shared data sets")
    place = Path(named) / path
    if not (place / "cifar-10-batches-py" if source == "CIFAR10" else place).is_dir():
        pytest.skip(f"RATCHET_DATASETS has no {source} in {place}")
    listed = sorted(one.name for one in place.iterdir())
    project.good("ratchet", "set", f"data.source={source}", f"data.path={place}", f"model.name={model}")
    told = project.good("ratchet", "preflight", TMPDIR=str(temporary))
    project.good("git", "checkout", "--quiet", ".")
    assert marks(told) == dict.fromkeys(STEPS, "✓")
    assert sorted(one.name for one in place.iterdir()) == listed
