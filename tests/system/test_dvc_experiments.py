"""DVC runs the stages: `dvc repro`, and `dvc exp run --temp` in a folder that it deletes."""

from pathlib import Path
from typing import Any

import pytest

from ratchet import settings
from ratchet.registry.ledger import Ledger
from ratchet.registry.mlflow_store import connect

pytestmark = pytest.mark.system


def test_an_experiment_elsewhere_is_judged_and_kept_in_the_project(project: Any, tmp_path: Path) -> None:
    """The project is a subfolder of the repository of git and DVC. An alias that was moved is put back before."""
    repository = tmp_path / "repository"
    (repository / "models").mkdir(parents=True)
    project.root.rename(repository / "models" / "digits")
    project = type(project)(repository / "models" / "digits", project.home)
    for name in (".git", ".dvc", ".dvcignore"):
        (project.root / name).rename(repository / name)
    project.good("git", "add", "--all", str(repository))
    project.good("git", "commit", "--quiet", "--message=moved")
    project.good("dvc", "repro")
    project.good("git", "add", "--all")
    project.good("git", "commit", "--quiet", "--message=trained")
    params = settings.load(project.workspace.params)
    client = connect(project.workspace, params.tracking)
    client.delete_registered_model_alias("digits", "champion")
    assert_dvc_repro_refuses_before_the_training(project)
    project.good("ratchet", "audit", "--repair")
    project.good("dvc", "exp", "run", "--temp", "--set-param", "training.epochs=3")
    runs = client.search_runs([client.get_experiment_by_name(params.tracking.experiment).experiment_id])
    epochs = {run.info.run_id: run.data.params["training.epochs"] for run in runs}
    assert sorted(epochs.values()) == ["2", "3"]
    for run in runs:
        assert client.list_artifacts(run.info.run_id, "report")  # the files outlive the temporary folder
        assert Path(run.info.artifact_uri.removeprefix("file://")).is_relative_to(project.root / "mlruns")
    entries = Ledger.of(project.workspace, params).read().entries
    judged = [entry.content for entry in entries if entry.what == "judge"]
    assert [(epochs[content["run"]], content["over"]) for content in judged] == [("2", None), ("3", "1")]


def assert_dvc_repro_refuses_before_the_training(project: Any) -> None:
    """Ask for another training; afterwards the project is as committed."""
    project.good("ratchet", "set", "training.epochs=1")
    output = " ".join(project.refused("dvc", "repro").split())
    assert "the alias champion is on no version in MLflow, and on version 1 by the ledger" in output
    assert "`ratchet audit --repair` moves the aliases back" in output
    assert not list(project.workspace.running.glob("[!.]*"))  # no training has begun
    project.good("git", "checkout", "--quiet", "--", ".")
