"""Two kinds of data through the whole pipeline: `dvc repro`, a kill in the training of one, the registered model.

The data are real: parts of tinyshakespeare and of bike-sharing, from the folder RATCHET_DATASETS. The class and the
settings of the own kind are those of docs/your-own-kind.md. test_goldens.py has the stages of all kinds.
"""

import os
import re
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from waiting import until

from ratchet.evaluation.problems import read_metrics

pytestmark = pytest.mark.system

DATASETS = Path(os.environ.get("RATCHET_DATASETS", "/nowhere"))
COMMON = ("gate.minimum_metric=none", "gate.calibration_error=1", "training.checkpoint_steps=1", "training.log_every=1")
PAGE = Path(__file__).parents[2] / "docs" / "your-own-kind.md"
HOURS = 1000  # of bike-sharing


def plays(folder: Path) -> tuple[str, ...]:
    text = (DATASETS / "tinyshakespeare.txt").read_text(encoding="utf-8")[:40_000]
    (folder / "plays.txt").write_text(text, encoding="utf-8")
    return "data.kind=tokens", "data.path=data/raw/plays.txt", "model.context=32", "training.epochs=1"


def rentals(folder: Path) -> tuple[str, ...]:
    lines = (DATASETS / "tabular" / "bike-sharing" / "hour.csv").read_text(encoding="utf-8").splitlines()
    (folder / "hour.csv").write_text("\n".join(lines[: HOURS + 1]))
    page = PAGE.read_text(encoding="utf-8")
    for name in ("bike_windows", "bike_net"):
        [code] = re.findall(rf"```python\n(# {name}\.py\n.*?)```", page, re.DOTALL)
        (folder.parents[1] / f"{name}.py").write_text(code)
    commands = re.findall(r"^\$ ratchet set (?!.*clips)(.*)$", page, re.MULTILINE)
    settings = [setting for command in commands for setting in command.split()]
    return *settings, "training.batch_size=128", "training.epochs=3"


SOURCES: dict[str, Callable[[Path], tuple[str, ...]]] = {"tokens": plays, "own": rentals}


@pytest.fixture(params=list(SOURCES))
def kind(request: pytest.FixtureRequest) -> str:
    if not DATASETS.is_dir():
        pytest.skip("RATCHET_DATASETS names no folder with bike-sharing and tinyshakespeare")
    name: str = request.param
    return name


def kill_in_training(project: Any) -> None:
    """Train again from the start, and kill the process after its third checkpoint."""
    running = project.root / "data" / "running"
    process = project.start(*project.stage("train"), log=project.home / "killed.log")

    def step() -> int:
        return max(
            (int(path.stem.removeprefix("step-")) for path in running.glob("[!.]*/step-*.safetensors")), default=0
        )

    until(lambda: step() >= 3, process=process, pause=0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL, "the training ended before it was killed"


def test_each_kind_becomes_a_registered_model(kind: str, project: Any) -> None:
    assignments = (*SOURCES[kind](project.root / "data" / "raw"), *COMMON)
    project.good(
        "ratchet", "set", *{each.partition("=")[0]: each for each in assignments}.values()
    )  # the last one wins
    project.good("dvc", "repro")
    if kind == "own":  # tests/training/test_streams.py resumes trainings of tokens
        undisturbed = project.digests("data/model", "data/baseline")
        kill_in_training(project)
        assert "continues at step" in project.good(*project.stage("train"))
        assert project.digests("data/model", "data/baseline") == undisturbed

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

    if kind == "own":
        own_kind_is_served(project, project.root.with_name("elsewhere"))


MODELS = {"tokens": "plays", "own": "bikewindows"}

SERVE = """
import importlib.util, os, sys
os.chdir(sys.argv[2])
import mlflow, numpy as np, pandas as pd

mlflow.set_tracking_uri(sys.argv[1])
model = mlflow.pyfunc.load_model("models:/bikewindows/1")
spec = importlib.util.spec_from_file_location("read", sys.argv[3])
read = importlib.util.module_from_spec(spec)
spec.loader.exec_module(read)
windows = read.BikeWindows(sys.argv[4])
values = [windows[place]["value"] for place in (len(windows) - 1, 5)]
answers = model.predict(values)
plain = [{name: np.asarray(part).tolist() for name, part in value.items()} for value in values]  # as JSON has it
assert np.array_equal(model.predict(plain), answers)
assert np.array_equal(model.predict(pd.DataFrame({"value": values})), answers)
arrays = [read.BikeWindows.arrays(value) for value in values]
named = {name: np.stack([array[name] for array in arrays]) for name in arrays[0]}
assert np.array_equal(model.predict(named), answers)
changed = [[*values, {**values[0], "hour": hour}] for hour in (-1, 99)]
for wrong in (*changed, {"hour": named["hour"]}, {**named, "hour": named["hour"][:1]}):
    try:
        model.predict(wrong)
    except mlflow.exceptions.MlflowException as error:
        print("refused:", error.message)
print(sys.modules["bike_windows"].__file__)
print(windows[len(windows) - 1]["id"])
print(answers[0, 0])
"""


def own_kind_is_served(project: Any, elsewhere: Path) -> None:
    """The registered model answers raw values as the evaluation did, in a process without the project's code."""
    elsewhere.mkdir()
    shutil.copytree(project.root / "src", elsewhere / "src")
    table, reader = project.root / "data" / "raw" / "hour.csv", project.root / "bike_windows.py"
    uri = f"sqlite:///{project.root}/mlruns/mlflow.db"
    written = project.good(
        sys.executable, "-c", SERVE, uri, str(elsewhere), str(reader), str(table), PYTHONPATH=str(elsewhere / "src")
    )
    *refused, code, name, answer = written.splitlines()[-7:]
    assert refused == [
        "refused: input: value 2: ValueError: hour: found -1; allowed: 0 to 23 (line 36 of bike_windows.py)",
        "refused: input: value 2: ValueError: hour: found 99; allowed: 0 to 23 (line 36 of bike_windows.py)",
        "refused: input: found hour; "
        "allowed: arrays hour, float32 (24); rentals, float32 (48); weather, float32 (48, 3)",
        "refused: input: hour has shape (1, 24); allowed: (n, 24), with one n for all arrays",
    ]
    assert not Path(code).is_relative_to(elsewhere)
    assert "bike_windows.py" not in {path.name for path in (elsewhere / "src").rglob("*.py")}
    predictions = pl.read_parquet(project.workspace.reports / "predictions.parquet")
    [evaluated] = predictions.filter(id=name)["predicted rentals"]
    assert float(answer) == pytest.approx(evaluated, rel=1e-5)
