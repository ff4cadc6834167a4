"""`ratchet preflight` on the command line: its findings, its output, and that it leaves no files."""

import signal
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from waiting import until

pytestmark = pytest.mark.slow

STEPS = ("ingest", "doctor", "train", "evaluate", "export", "register", "predict")
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
    """Return a project with a packed set, a model and its own MLflow store."""
    project = new_project("preflight")
    project.good(*project.stage("ingest"))
    project.good(*project.stage("train"))
    return project


@pytest.fixture
def project(shared_project: Any) -> Iterator[Any]:
    """Return the shared project, and restore its files afterwards."""
    yield shared_project
    shared_project.good("git", "checkout", "--quiet", ".")


@pytest.fixture
def temporary(project: Any, tmp_path: Path) -> Iterator[Path]:
    """Return the folder for temporary files. Afterwards it must be empty and the project unchanged."""
    before = everything(project.root)
    yield tmp_path
    assert everything(project.root) == before
    assert list(tmp_path.iterdir()) == []


def everything(root: Path) -> dict[str, str]:
    """Return every file with its digest and every folder with "", without .git and compiled code."""
    paths = [path for path in root.rglob("*") if not {".git", "__pycache__"}.intersection(path.relative_to(root).parts)]
    return {str(path): sha256(path.read_bytes()).hexdigest() if path.is_file() else "" for path in paths}


def use_model(project: Any, change: str) -> None:
    (project.root / "mynet.py").write_text(MODEL.replace("CHANGE", change))
    project.good("ratchet", "set", "model.factory=mynet:net", "model.code=mynet.py")


def marks(output: str) -> dict[str, str]:
    """Return the mark of each step, in order."""
    lines = [line.split() for line in output.splitlines() if line[:2] == "  " and line[2:3] in ("✓", "!", "✗")]
    return {name: mark for mark, name, *_ in lines}


def test_sound_project_passes_and_nothing_is_left(project: Any, temporary: Path) -> None:
    output = project.good("ratchet", "preflight", TMPDIR=str(temporary))
    assert marks(output) == dict.fromkeys(STEPS, "✓")
    assert "models:/digits/1, loaded by mlflow.pyfunc, predicts '" in output
    assert "Preflight passed" in output


def test_silent_bug_is_reported_with_fix_and_exit_code(project: Any, tmp_path: Path) -> None:
    use_model(project, "logits.softmax(1)")
    before = everything(project.root)
    output = project.refused("ratchet", "preflight", TMPDIR=str(tmp_path))
    assert marks(output) == {**dict.fromkeys(STEPS, "✓"), "doctor": "!"}
    assert "1. error: activation-before-loss" in output
    assert "Fix: return logits from forward(), without the softmax" in output
    assert "The pipeline runs, but the doctor has found errors" in output
    assert everything(project.root) == before
    assert list(tmp_path.iterdir()) == []


def test_failed_step_is_reported_and_ends_preflight(project: Any, tmp_path: Path) -> None:
    use_model(project, "logits if not self.training else logits[:, :3]")
    result = project.run("ratchet", "preflight", TMPDIR=str(tmp_path))
    assert result.returncode == 1
    assert marks(result.stdout) == {"ingest": "✓", "doctor": "!", "train": "✗"}
    assert "IndexError: Target" in result.stdout
    assert "1. error: step-fails" in result.stdout
    assert "The pipeline does not run yet" in result.stdout
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_downloaded(project: Any, tmp_path: Path) -> None:
    project.good("ratchet", "set", "data.source=FashionMNIST")
    output = project.refused("ratchet", "preflight", TMPDIR=str(tmp_path))
    assert "FashionMNIST is not in data/raw yet, and preflight downloads nothing" in output
    assert "python -m tasks.ingest" in output


def test_interrupted_it_leaves_nothing(project: Any, temporary: Path) -> None:
    log = project.home / "preflight.log"
    process = project.start("ratchet", "preflight", log=log, TMPDIR=str(temporary))
    until(lambda: list(temporary.glob("ratchet-preflight-*/running")), process=process, log=log, pause=0.01)
    process.send_signal(signal.SIGINT)
    code, output = process.wait(), log.read_text()
    assert code == 130, output
    assert "interrupted; nothing was left behind" in output
    assert "Traceback" not in output
