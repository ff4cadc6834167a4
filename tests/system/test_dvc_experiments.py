"""`dvc exp run --temp` works in a folder that DVC deletes: what it registers is in the project's MLflow and ledger."""

import json
from pathlib import Path
from typing import Any

import pytest

from ratchet import settings
from ratchet.registry.ledger import Ledger
from ratchet.registry.mlflow_store import connect

pytestmark = pytest.mark.system


def test_an_experiment_elsewhere_is_judged_and_kept_in_the_project(project: Any) -> None:
    project.good("dvc", "repro")
    project.good("git", "add", "--all")
    project.good("git", "commit", "--quiet", "--message=trained")
    output = project.good("dvc", "exp", "run", "--temp", "--set-param", "training.epochs=3")
    assert "ratchet" not in output or "Traceback" not in output
    params = settings.load(project.workspace.params)
    client = connect(project.workspace, params.tracking)
    runs = client.search_runs([client.get_experiment_by_name(params.tracking.experiment).experiment_id])
    assert sorted(run.data.params["training.epochs"] for run in runs) == ["2", "3"]
    for run in runs:
        assert client.list_artifacts(run.info.run_id, "report")  # the files outlive the temporary folder
        assert Path(run.info.artifact_uri.removeprefix("file://")).is_relative_to(project.root / "mlruns")
    judged = [entry for entry in Ledger.of(project.workspace, params).read().entries if entry.what == "judge"]
    assert len(judged) == 2
    newest = next(run for run in runs if run.data.params["training.epochs"] == "3")
    verdict = json.dumps(newest.data.tags)
    assert "digits version 1" in verdict or newest.data.tags["ratchet.gate"].startswith(("passed", "refused"))
