"""`ratchet train --folds`: fold by fold, killed and repeated, on digits, a table by time, texts and an own kind.

The truth is an undisturbed cross-validation with the same settings in a copy of its own.
"""

import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from waiting import until

from ratchet import settings
from ratchet.evaluation.cross_validation import CrossValidation

pytestmark = pytest.mark.system

DATASETS = Path(os.environ.get("RATCHET_DATASETS", "/nowhere"))
PAGE = Path(__file__).parents[2] / "docs" / "your-own-kind.md"
FAST = {
    "training.epochs": 2, "training.batch_size": 128, "training.checkpoint_steps": 1, "training.log_every": 1,
    "training.precision": "fp32", "training.device": "cpu",
}  # fmt: skip


@pytest.fixture(scope="module")
def digits(new_project, use_small_net) -> Any:
    project = new_project("folds")
    use_small_net(project)
    settings.override(project.workspace.params, FAST)
    return project


@pytest.fixture(scope="module")
def undisturbed(digits, new_project) -> tuple[Any, str]:
    project = new_project("undisturbed", of=digits)
    return project, project.good("ratchet", "train", "--folds", "3")


def result(project: Any) -> CrossValidation:
    return CrossValidation.read(project.workspace.reports / "folds.json")


def metrics(project: Any) -> list[tuple[int, str, dict[str, int], dict[str, float]]]:
    return [(fold.number, fold.key, fold.rows, fold.metrics) for fold in result(project).folds]


def runs(project: Any) -> list[Any]:
    client = MlflowClient(f"sqlite:///{project.root}/mlruns/mlflow.db")
    return [run for each in client.search_experiments() for run in client.search_runs([each.experiment_id])]


def test_folds_are_children_of_one_run_without_version(undisturbed) -> None:
    project, output = undisturbed
    validated = result(project)
    assert len({fold.key for fold in validated.folds}) == 3
    assert len({fold.rows["test"] for fold in validated.folds}) == 1
    by_id = {run.info.run_id: run for run in runs(project)}
    assert by_id.keys() == {validated.run_id, *(fold.run_id for fold in validated.folds)}
    assert {run.info.status for run in by_id.values()} == {"FINISHED"}
    parent = by_id[validated.run_id]
    for name, interval in validated.intervals.items():
        short = name.removeprefix("validation/")
        shown = {end: parent.data.metrics[f"folds/{short}{end}"] for end in ("", "_low", "_high")}
        assert shown == {"": interval.value, "_low": interval.low, "_high": interval.high}
        line = f"mean  {short} {interval.value:.4f} (95 % CI {interval.low:.4f} to {interval.high:.4f})"
        assert line in output.splitlines()
        for fold in validated.folds:
            child = by_id[fold.run_id]
            assert child.data.tags["mlflow.parentRunId"] == validated.run_id
            assert child.data.metrics[f"folds/{short}"] == fold.metrics[name]
            assert f"{short} {fold.metrics[name]:.4f}" in next(
                line for line in output.splitlines() if line.startswith(f"fold {fold.number} of 3  ")
            )
    assert not MlflowClient(f"sqlite:///{project.root}/mlruns/mlflow.db").search_registered_models()
    assert not project.workspace.registration.exists()


def test_an_equal_repetition_trains_no_fold(undisturbed) -> None:
    project, _ = undisturbed
    before = (metrics(project), sorted(run.info.end_time for run in runs(project) if "ratchet.fold" in run.data.tags))
    again = project.good("ratchet", "train", "--folds", "3")
    assert "Nothing to do" in again
    assert "steps" not in again
    after = (metrics(project), sorted(run.info.end_time for run in runs(project) if "ratchet.fold" in run.data.tags))
    assert after == before


def test_killed_folds_continue_and_end_with_equal_metrics(undisturbed, digits, new_project) -> None:
    project = new_project("killed", of=digits)
    log = project.home / "killed.log"
    process = project.start("ratchet", "train", "--folds", "3", log=log)

    def is_inside_second() -> bool:
        return any(project.root.glob(".ratchet/folds/*/fold-1.json")) and any(
            project.root.glob(".ratchet/folds/*/running/[!.]*/step-*.safetensors")
        )

    until(is_inside_second, process=process, pause=0.002)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert not (project.workspace.reports / "folds.json").exists()
    output = project.good("ratchet", "train", "--folds", "3")
    assert "Nothing to do" not in output
    assert re.search(r"fold 2 of 3: continues at step \d+ of", output)
    assert metrics(project) == metrics(undisturbed[0])
    assert len(runs(project)) == 4
    assert {run.info.status for run in runs(project)} == {"FINISHED"}


def test_python_gives_the_same_folds(undisturbed) -> None:
    project, _ = undisturbed
    before = metrics(project)
    program = "import ratchet; print(ratchet.open().cross_validate(3))"
    printed = project.good(sys.executable, "-c", program)
    assert "fold 3 of 3  " in printed
    assert metrics(project) == before
    assert f"MLflow run {result(project).run_id}; nothing is registered" in printed


def test_only_what_decides_the_weights_begins_other_folds(undisturbed) -> None:
    project, _ = undisturbed
    assert "Nothing to do" in project.good("ratchet", "train", "--folds", "3", "--set", "serving.port=8999")
    assert "Nothing to do" not in project.good("ratchet", "train", "--folds", "2", "--set", "training.epochs=1")
    assert len(result(project).folds) == 2
    project.good("ratchet", "set", "training.epochs=2")


def test_folds_that_cannot_be_made_are_refused(project) -> None:
    rows = [f"{row % 17},{row % 7},{('a', 'b')[row % 2]},{('train', 'val')[row % 3 == 0]}" for row in range(90)]
    table = project.root / "data" / "raw" / "rows.csv"
    table.write_text("\n".join(["size,count,label,split", *rows]), encoding="utf-8")
    settings.override(project.workspace.params, {**FAST, "data.kind": "table", "data.path": "data/raw/rows.csv"})
    refused = project.refused("ratchet", "train", "--folds", "2")
    assert "--folds: found 2, but data/raw/rows.csv gives the validation samples" in refused
    assert "Traceback" not in refused
    table.write_text(table.read_text(encoding="utf-8").replace(",val", ",train"), encoding="utf-8")  # the fix
    assert "mean  accuracy" in project.good("ratchet", "train", "--folds", "2")
    refused = project.refused("ratchet", "train", "--folds", "60")
    assert re.search(r"fold \d+ of 60: .*With fewer --folds each fold has more samples", refused)
    assert "Invalid value for '--folds'" in project.refused("ratchet", "train", "--folds", "1")
    project.good("ratchet", "set", "training.nodes=2", "training.rendezvous=127.0.0.1:29400", "training.pieces=2")
    refused = project.refused("ratchet", "train", "--folds", "2")
    assert "training.nodes: found 2, and --folds trains on this machine alone" in refused
    project.good("ratchet", "set", "training.nodes=1")
    assert "mean  accuracy" in project.good("ratchet", "train", "--folds", "2")


def rentals(folder: Path) -> dict[str, object]:
    lines = (DATASETS / "tabular" / "bike-sharing" / "hour.csv").read_text(encoding="utf-8").splitlines()
    (folder / "hour.csv").write_text("\n".join(lines[:2001]), encoding="utf-8")
    return {
        "data.kind": "table", "data.path": "data/raw/hour.csv", "data.label_column": "cnt", "data.order_by": "instant",
        "data.group_column": "dteday", "data.gap": 24, "data.drop": ["casual", "registered"], "model.name": "baseline",
    }  # fmt: skip


def reviews(folder: Path) -> dict[str, object]:
    for path in sorted((DATASETS / "text" / "rt-polarity").iterdir()):
        if path.suffix in (".neg", ".pos"):
            lines = path.read_text(encoding="latin-1").splitlines()[:150]
            (folder / "reviews").mkdir(exist_ok=True)
            (folder / "reviews" / f"{path.suffix[1:]}.txt").write_text("\n".join(lines), encoding="utf-8")
    return {"data.kind": "text", "data.path": "data/raw/reviews", "model.name": "bag"}


def windows(folder: Path) -> dict[str, object]:
    rentals(folder)
    page = PAGE.read_text(encoding="utf-8")
    for name in ("bike_windows", "bike_net"):
        [code] = re.findall(rf"```python\n(# {name}\.py\n.*?)```", page, re.DOTALL)
        (folder.parents[1] / f"{name}.py").write_text(code)
    commands = re.findall(r"^\$ ratchet set (?!.*clips)(.*)$", page, re.MULTILINE)
    assignments = [assignment for command in commands for assignment in command.split()]
    return {**settings.parse_assignments(assignments)}


@pytest.mark.parametrize("source", [rentals, reviews, windows])
def test_each_kind_of_data_has_folds(project, source) -> None:
    if not DATASETS.is_dir():
        pytest.skip("RATCHET_DATASETS names no folder with bike-sharing and rt-polarity")
    settings.override(project.workspace.params, {**FAST, **source(project.root / "data" / "raw")})
    output = project.good("ratchet", "train", "--folds", "2")
    validated = result(project)
    assert len({json.dumps(fold.metrics) for fold in validated.folds}) == 2
    assert len(re.findall(r"^mean  ", output, re.MULTILINE)) == len(validated.intervals) > 0
    if source is rentals:
        assert validated.folds[0].rows["train"] < validated.folds[1].rows["train"]
