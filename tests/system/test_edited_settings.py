"""params.yaml is edited while a run works: the run ends with the settings that it has read, and DVC and MLflow say so.

The edit is made by the model's own code, as the training builds its network: after the settings are read, and before
the stage is recorded.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ratchet import files, settings
from ratchet.registry.mlflow_store import connect

pytestmark = pytest.mark.system
STORED = ("params.yaml", "settings.json")
NET = """
import pathlib, subprocess, sys
from torch import nn


def net(*, classes, channels, height, width):
    edit = pathlib.Path("edit.txt")
    if edit.exists():
        command = [sys.executable, "-m", "commands", "set", *edit.read_text().split()]
        said = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
        edit.rename("edited.txt")
        pathlib.Path("said.txt").write_text(said)
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, classes))
"""


@pytest.fixture(scope="module")
def project(new_project: Callable[[str], Any], share_server: Callable[[Any], None]) -> Any:
    project = new_project("edited")
    share_server(project)
    (project.root / "nets").mkdir()
    (project.root / "nets" / "editing.py").write_text(NET)
    changes = {"model.factory": "nets.editing:net", "model.code": "nets", "training.doctor": "never"}
    settings.override(project.workspace.params, changes)
    return project


def stored_epochs(project: Any) -> list[int]:
    """The epochs in the settings that the newest run has stored."""
    tracking = settings.load(project.workspace.params).tracking
    client = connect(project.workspace, tracking)
    run = client.search_runs([client.get_experiment_by_name(tracking.experiment).experiment_id])[0].info.run_id
    stored = [client.download_artifacts(run, f"provenance/{name}") for name in STORED]
    return [files.read_yaml(Path(path))["training"]["epochs"] for path in stored]


@pytest.fixture(scope="module")
def edited(project: Any) -> tuple[Any, str]:
    """The project after a run during which its settings were edited, and what the edit printed."""
    (project.root / "edit.txt").write_text("training.epochs=1 gate.minimum=0.4 budget.wall_hours=9")
    project.good("ratchet", "train")
    return project, (project.root / "said.txt").read_text()


def test_run_works_on_the_settings_that_it_has_read(edited: tuple[Any, str]) -> None:
    project, message = edited
    lock = files.read_yaml(project.root / "dvc.lock")["stages"]
    now = settings.load(project.workspace.params)
    assert (now.training.epochs, now.gate.minimum) == (1, 0.4)  # the edit stays
    assert lock["train"]["params"]["data/settings.json"]["training"]["epochs"] == 2  # and DVC has what ran
    assert lock["register"]["params"]["data/settings.json"]["gate"]["minimum"] == 0.5
    client = connect(project.workspace, now.tracking)
    [run] = client.search_runs([client.get_experiment_by_name(now.tracking.experiment).experiment_id])
    assert (run.data.params["training.epochs"], run.info.status) == ("2", "FINISHED")
    assert stored_epochs(project) == [2, 2]
    assert "goes on with the settings that it has read" in message
    assert "ratchet train (process " in message
    assert not project.workspace.settings_as_read.exists()
    status = project.good("dvc", "status")
    assert "training" in status
    assert "ingest:" not in status


def test_dvc_repro_records_the_settings_that_ran(edited: tuple[Any, str]) -> None:
    """An edit during a stage is for the next run. A stage that begins after it is refused."""
    project, _ = edited
    (project.root / "edit.txt").write_text("training.epochs=3")
    project.good("dvc", "repro", "train")
    recorded = files.read_yaml(project.root / "dvc.lock")["stages"]["train"]["params"]["data/settings.json"]
    assert recorded["training"]["epochs"] == 1
    output = project.refused(*project.stage("train"), DVC_STAGE="train")  # as DVC starts it
    assert "params.yaml: training.epochs is 3, and was 1 when data/settings.json was written" in " ".join(
        output.split()
    )
    output = project.refused(*project.stage("register"), DVC_STAGE="register")  # it would record 3 for a training of 1
    assert "training.epochs is 3, and was 1 when data/settings.json was written" in " ".join(output.split())


def test_register_under_dvc_stores_the_settings_that_ran(edited: tuple[Any, str]) -> None:
    """The edit is made as the gate loads the model, before the settings are stored."""
    project, _ = edited
    project.good("ratchet", "set", "training.epochs=1", "seed=7")
    project.good("dvc", "repro", "export")
    (project.root / "edit.txt").write_text("training.epochs=4")
    project.good("dvc", "repro")
    assert settings.load(project.workspace.params).training.epochs == 4
    assert stored_epochs(project) == [1, 1]
