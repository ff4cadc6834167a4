"""Tables, texts and plain text through the whole pipeline: `dvc repro`, a kill in the training, the registered model.

The data are real: penguins, a part of rt-polarity and of tinyshakespeare, from the folder RATCHET_DATASETS.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ratchet.evaluation.metrics import read_metrics

pytestmark = pytest.mark.system

DATASETS = Path(os.environ.get("RATCHET_DATASETS", "/nowhere"))
COMMON = ("gate.minimum_metric=none", "gate.calibration_error=1", "training.checkpoint_steps=1", "training.log_every=1")
NETWORK = {"table": "tabm", "text": "bag", "tokens": "decoder"}


def penguins(folder: Path) -> tuple[str, ...]:
    lines = (DATASETS / "tabular" / "penguins.csv").read_text(encoding="utf-8").splitlines()
    (folder / "penguins.csv").write_text("\n".join(lines))
    return "data.kind=table", "data.path=data/raw/penguins.csv", "data.label_column=species", "training.epochs=8"


def reviews(folder: Path) -> tuple[str, ...]:
    place = folder / "reviews"
    place.mkdir()
    for file in sorted((DATASETS / "text" / "rt-polarity").iterdir()):
        lines = file.read_text(encoding="utf-8").splitlines()[:400]
        (place / file.name).write_text("\n".join(lines), encoding="utf-8")
    return "data.kind=text", "data.path=data/raw/reviews", "training.epochs=4"


def plays(folder: Path) -> tuple[str, ...]:
    text = (DATASETS / "tinyshakespeare.txt").read_text(encoding="utf-8")[:60_000]
    (folder / "plays.txt").write_text(text, encoding="utf-8")
    return "data.kind=tokens", "data.path=data/raw/plays.txt", "model.context=32", "training.epochs=1"


SOURCES: dict[str, Callable[[Path], tuple[str, ...]]] = {"table": penguins, "text": reviews, "tokens": plays}


@pytest.fixture(params=list(SOURCES))
def kind(request: pytest.FixtureRequest) -> str:
    if not DATASETS.is_dir():
        pytest.skip("RATCHET_DATASETS names no folder with penguins, rt-polarity and tinyshakespeare")
    name: str = request.param
    return name


def set_up(project: Any, kind: str) -> None:
    settings = SOURCES[kind](project.root / "data" / "raw")
    project.good("ratchet", "set", *settings, *COMMON)


def kill_in_training(project: Any) -> None:
    """Start `dvc repro train` and kill its process group after its third checkpoint."""
    running = project.root / "data" / "running"
    process = subprocess.Popen(
        ("dvc", "repro", "train"), cwd=project.root, env=project.environment, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    while process.poll() is None:
        steps = [int(path.stem.removeprefix("step-")) for path in running.glob("*/step-*.safetensors")]
        if max(steps, default=0) >= 3:
            os.killpg(process.pid, signal.SIGKILL)
            break
        time.sleep(0.01)
    process.wait()
    assert process.returncode == -signal.SIGKILL, "the training ended before it was killed"


def test_each_kind_becomes_a_registered_model(kind: str, project: Any, new_project: Callable[[str], Any]) -> None:
    set_up(project, kind)
    kill_in_training(project)
    project.good("dvc", "repro")
    undisturbed = new_project(f"undisturbed-{kind}")
    set_up(undisturbed, kind)
    undisturbed.good("dvc", "repro", "train")
    assert project.digests("data/model", "data/baseline") == undisturbed.digests("data/model", "data/baseline")

    assert "up to date" in project.good("dvc", "repro")
    metrics = read_metrics(project.workspace.reports)
    assert metrics.baseline is not None
    assert metrics.baseline.name
    report = project.workspace.report.read_text(encoding="utf-8")
    assert "baseline" in report
    name = project.workspace.registration.read_text(encoding="utf-8")
    assert '"version": "1"' in name, name
    trace = project.good("ratchet", "trace", "models:/" + MODELS[kind] + "/1")
    assert "test " in trace
    if kind == "tokens":
        written = project.good("ratchet", "generate", "data/model", "--prompt", "First", "--max-tokens", "20")
        assert written.startswith("First")
        registered = f"models:/{MODELS[kind]}/1"
        assert project.good("ratchet", "generate", registered, "--prompt", "First", "--max-tokens", "20") == written


MODELS = {"table": "penguins", "text": "reviews", "tokens": "plays"}
