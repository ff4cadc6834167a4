"""The whole path, by both ways: the flow and `dvc repro` do the same work and leave the same hashes.

One story in two clones, step by step because each run costs seconds. What a step did is taken from DVC's output,
from the flow's own record in Prefect's database and from MLflow, never from the stages' claims.
"""

import html
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from flow_states import newest_states
from ruamel.yaml import YAML

from ratchet import settings
from ratchet.registry.mlflow_store import connect

pytestmark = pytest.mark.system

SAME_BY_BOTH_WAYS = (
    "data/checkpoints",
    "data/model",
    "data/packed",
    "data/quarantine.parquet",
    "data/reports/explanations.safetensors",
    "data/reports/evaluation.json",
    "data/reports/metrics.json",
    "data/reports/predictions.parquet",
)
NAME = "digits"


@dataclass(frozen=True)
class RunRecord:
    """One run of train-flow as it left the workspace."""

    output: str
    registration: dict[str, Any]
    hashes: dict[str, str]
    flow_state: str
    task_states: dict[str, str]


def hashes(project: Any) -> dict[str, str]:
    """Path -> DVC hash of every output in dvc.lock."""
    lock = YAML(typ="safe").load((project.root / "dvc.lock").read_text())
    return {out["path"]: out["md5"] for stage in lock["stages"].values() for out in stage["outs"]}


def train(project: Any, *assignments: str, server: Path | None = None) -> RunRecord:
    options = [part for assignment in assignments for part in ("--set", assignment)]
    output = project.good("ratchet", "train", *options)
    registration = json.loads((project.root / "data" / "registration.json").read_text())
    return RunRecord(output, registration, hashes(project), *newest_states(server or project.root, last="register"))


def mlflow_client(project: Any) -> Any:
    return connect(project.workspace, settings.load(project.workspace.params).tracking)


@pytest.fixture(scope="module")
def clone(new_project: Callable[[str], Any]) -> Any:
    """The clone in which the flow is first."""
    return new_project("flow-first")


@pytest.fixture(scope="module")
def first(clone: Any) -> RunRecord:
    """The flow with a Prefect server of its own."""
    return train(clone)


@pytest.fixture(scope="module")
def other_clone(clone: Any, first: RunRecord) -> Any:
    """The clone in which `dvc repro` is first."""
    project = clone.clone(clone.root.with_name("dvc-first"))
    project.good("dvc", "repro")
    return project


@pytest.fixture(scope="module")
def crippled(clone: Any, first: RunRecord, shared_server: Any, share_server: Callable[[Any], None]) -> RunRecord:
    """The flow with a training of one step, on a server that other runs use, too."""
    share_server(clone)
    return train(clone, "training.max_steps=1", server=shared_server.folder)


def test_one_command_ends_with_a_registered_champion(clone: Any, first: RunRecord) -> None:
    assert first.flow_state == "Completed"
    assert first.task_states == dict.fromkeys(
        ("ingest", "version", "train", "evaluate", "export", "register"), "Completed"
    )
    assert (first.registration["version"], first.registration["aliases"]) == ("1", ["champion"])
    champion = mlflow_client(clone).get_model_version_by_alias(NAME, "champion")
    assert (str(champion.version), champion.run_id) == ("1", first.registration["run_id"])
    for word in ("digits version 1 (champion)", "report.html", "step-", first.registration["run_id"], "Next:"):
        assert word in first.output
    assert "Traceback" not in first.output


def test_after_the_flow_dvc_has_nothing_to_do(clone: Any, first: RunRecord) -> None:
    repeated = clone.good("dvc", "repro")
    assert "Running stage" not in repeated
    assert "up to date" in repeated
    assert hashes(clone) == first.hashes


def test_a_second_run_says_there_is_nothing_to_do(clone: Any, first: RunRecord) -> None:
    database = clone.root / ".ratchet" / "prefect" / "prefect.db"
    before = database.stat().st_mtime_ns
    output = clone.good("ratchet", "train")
    assert "Nothing to do" in output
    assert "digits version 1 (champion)" in output
    assert database.stat().st_mtime_ns == before  # no server was started for it


def test_a_lost_model_comes_back_from_the_cache_without_training(clone: Any, first: RunRecord) -> None:
    before = clone.digests("data/model")
    shutil.rmtree(clone.root / "data" / "model")
    output = clone.good("dvc", "repro")
    assert "Running stage" not in output
    assert clone.digests("data/model") == before
    assert "up to date" in clone.good("dvc", "status")


def test_every_output_is_in_the_remote(clone: Any, first: RunRecord) -> None:
    assert "Cache and remote 'local' are in sync" in clone.good("dvc", "status", "--cloud")


def test_mlflow_has_one_run_with_curves_data_and_report(clone: Any, first: RunRecord) -> None:
    client = mlflow_client(clone)
    [run] = client.search_runs([client.get_experiment_by_name("ratchet").experiment_id])
    assert (run.info.run_id, run.info.status) == (first.registration["run_id"], "FINISHED")
    assert (run.data.params["training.epochs"], run.data.params["data.source"]) == ("2", "digits")
    [data] = run.inputs.dataset_inputs
    assert (data.dataset.name, data.dataset.digest) == ("digits", first.hashes["data/packed"])
    curve = client.get_metric_history(run.info.run_id, "validation/accuracy")
    assert [point.step for point in curve] == [1, 2]
    metrics = json.loads((clone.root / "data" / "reports" / "metrics.json").read_text())
    assert run.data.metrics["test/accuracy"] == metrics["accuracy"]
    reported = {file.path for file in client.list_artifacts(run.info.run_id, "report")}
    assert {"report/report.html", "report/predictions.parquet"} <= reported
    described = {file.path for file in client.list_artifacts(run.info.run_id, "data")}
    assert described == {"data/profile.json", "data/data.html"}


def test_a_version_has_a_card_an_sbom_and_its_cost(clone: Any, first: RunRecord) -> None:
    client, run_id = mlflow_client(clone), first.registration["run_id"]
    version = client.get_model_version(NAME, "1")
    run = client.get_run(run_id)
    card = Path(run.info.artifact_uri.removeprefix("file://")) / "card"
    assert f"model card  {(card / 'card.html').as_uri()}\n" in first.output
    assert {path.name for path in card.iterdir()} == {"card.md", "card.html", "sbom.cdx.json"}
    text = (card / "card.md").read_text()
    assert text.startswith(f"# {NAME}, version 1\n\nClassifies images into 10 classes: 0, 1, 2, 3,")
    assert version.description.split("\n\n")[:3] == text.split("\n\n")[1:4]
    bill = json.loads((card / "sbom.cdx.json").read_text())
    (logged,) = run.outputs.model_outputs
    stored = Path(client.get_logged_model(logged.model_id).artifact_location.removeprefix("file://")) / "data" / "model"
    weights = sha256((stored / "model.safetensors").read_bytes()).hexdigest()
    assert bill["metadata"]["component"]["hashes"] == [{"alg": "SHA-256", "content": weights}]
    assert weights in text
    assert first.registration["provenance"] in text
    (data,) = [component for component in bill["components"] if component["type"] == "data"]
    assert data["version"] == first.hashes["data/packed"]
    cost = {name: value for name, value in run.data.metrics.items() if name.startswith("cost/")}
    assert {"cost/wall_hours", "cost/cpu_hours", "cost/gpu_hours"} <= cost.keys()
    assert cost["cost/wall_hours"] > 0
    assert " s wall, " in first.output


def test_dvc_shows_metrics_plots_and_experiments(clone: Any, first: RunRecord) -> None:
    shown = json.loads(clone.good("dvc", "metrics", "show", "--json"))
    metrics = json.loads((clone.root / "data" / "reports" / "metrics.json").read_text())
    assert shown[""]["data"]["data/reports/metrics.json"]["data"] == metrics
    clone.good("dvc", "plots", "show", "--out", "dvc_plots")
    page = (clone.root / "dvc_plots" / "index.html").read_text()
    assert "validation/loss" in page
    assert "confusion" in page
    shutil.rmtree(clone.root / "dvc_plots")
    [commit] = json.loads(clone.good("dvc", "exp", "show", "--json", "--no-pager"))[:1]
    assert commit["data"]["params"]["params.yaml"]["data"]["training"]["epochs"] == 2


def test_dvc_repro_leaves_the_hashes_that_the_flow_leaves(other_clone: Any, first: RunRecord) -> None:
    theirs = hashes(other_clone)
    assert {path: theirs[path] for path in SAME_BY_BOTH_WAYS} == {
        path: first.hashes[path] for path in SAME_BY_BOTH_WAYS
    }
    assert theirs.keys() == first.hashes.keys()


def test_after_dvc_repro_the_flow_has_nothing_to_do(other_clone: Any) -> None:
    before = hashes(other_clone)
    assert "Nothing to do" in other_clone.good("ratchet", "train")
    assert hashes(other_clone) == before


def test_an_edit_of_the_training_leaves_the_data_alone(crippled: RunRecord, first: RunRecord) -> None:
    assert crippled.task_states == {
        "ingest": "Unchanged",
        "version": "Completed",
        "train": "Completed",
        "evaluate": "Completed",
        "export": "Completed",
        "register": "Completed",
    }
    assert crippled.hashes["data/packed"] == first.hashes["data/packed"]
    assert crippled.hashes["data/model"] != first.hashes["data/model"]


def test_a_worse_model_is_refused_and_the_champion_stays(clone: Any, crippled: RunRecord) -> None:
    assert crippled.flow_state == "Completed"
    assert not crippled.registration["passed"]
    assert (crippled.registration["version"], crippled.registration["aliases"]) == (None, [])
    summary = crippled.registration["summary"]
    assert summary.startswith("Refused, ")
    assert "minimum 50 %. Fix: train a better model, or lower gate.minimum" in summary
    results = {result["name"]: result for result in crippled.registration["verdict"]["rules"]}
    assert results["champion"]["champion"] == "digits version 1"
    assert summary in crippled.output
    assert "gate  REFUSED (" in crippled.output
    assert "digits: not registered, the gate refused it" in crippled.output
    client = mlflow_client(clone)
    assert str(client.get_model_version_by_alias(NAME, "champion").version) == "1"
    assert not client.search_model_versions(f"run_id = '{crippled.registration['run_id']}'")
    run = client.get_run(crippled.registration["run_id"])
    assert (run.data.tags["ratchet.gate"], run.data.tags["mlflow.note.content"]) == ("refused", summary)
    assert run.info.run_name.startswith("digits convnet ")
    assert run.info.run_name.endswith(" % refused")
    result, _, trivial = run.data.tags["ratchet.result"].partition("; always answering ")
    assert result == f"accuracy {run.info.run_name.split()[2]} %"
    assert re.fullmatch(r"'\d': accuracy \d+\.\d %", trivial)
    page = html.unescape((clone.root / "data" / "reports" / "report.html").read_text())
    assert summary in page


def test_a_refusal_is_a_result_that_is_not_made_twice(clone: Any, crippled: RunRecord) -> None:
    assert "up to date" in clone.good("dvc", "status")
    assert "Nothing to do" in clone.good("ratchet", "train")


def test_an_earlier_setting_brings_its_model_back_without_training(
    clone: Any, crippled: RunRecord, first: RunRecord, shared_server: Any
) -> None:
    again = train(clone, "training.max_steps=0", server=shared_server.folder)
    assert again.task_states == dict.fromkeys(("ingest", "train", "evaluate", "export", "register"), "Unchanged") | {
        "version": "Completed"
    }
    assert again.hashes == first.hashes
    assert again.registration == first.registration
