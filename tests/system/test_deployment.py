"""The servers as a person uses them: `ratchet up`, a deployment run from another shell, a worker that is killed.

Everything is started once, in a project of its own. What happened is asked of Prefect's and MLflow's servers, never of
the stages. The tests stand in the order of one working day.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import polars as pl
import psutil
import pytest
from PIL import Image
from served import HOST, OVER, Served, servers_up
from waiting import until

from ratchet import files
from ratchet.errors import PlatformError
from ratchet.servers.http import answers

pytestmark = pytest.mark.system

STAGES = ["ingest", "version", "train", "evaluate", "export", "register"]
LOG_EVERY = 5  # steps, as conftest.py shrinks it
EPOCHS = 30  # of a training that is interrupted


@pytest.fixture(scope="session")
def served(new_project: Callable[[str], Any]) -> Iterator[Served]:
    project = new_project("served on a größere machine")
    assert project.run("ratchet", "status").returncode == 3
    dead = "http://127.0.0.1:9"  # a proxy that does not answer: no server here may be reached through one
    with servers_up(project, PREFECT_API_URL=f"{dead}/api", HTTP_PROXY=dead, http_proxy=dead) as served:
        yield served


@pytest.fixture(scope="session")
def first(served: Served) -> dict[str, Any]:
    output = served.shell("deployment", "run", "train-flow/local", "--watch", "--watch-interval", "1")
    runs = served.runs()
    assert runs, output
    return runs[0]


@pytest.fixture(scope="session")
def committed(served: Served, first: dict[str, Any]) -> None:
    """The record of that run is committed, as README.md asks."""
    served.project.good("git", "add", "dvc.lock")
    served.project.good("git", "commit", "--quiet", "--message=trained")


def test_up_and_status_name_what_runs(served: Served) -> None:
    first, *rest = [line for line in served.output.splitlines() if not line.startswith("warning")]
    assert first.startswith("starting Prefect server, MLflow server, worker, model server; runs can begin after")
    page = f"MLflow server: http://{HOST}:{served.mlflow_port}/#/experiments?workflowType="
    assert any(line.startswith(page) for line in rest)
    trains = "train-flow/local, train-flow/nightly, train-flow/on-drift"
    others = (
        "approve-flow/local, monitor-flow/hourly, score-flow/local, search-flow/local, search-worker-flow/local, "
        "shard-worker-flow/local"
    )
    assert f"deployments: {others}, {trains}" in served.output
    status = served.project.run("ratchet", "status")
    *lines, serving = status.stdout.splitlines()
    assert [line.partition(": up for ")[0] for line in lines] == ["Prefect server", "MLflow server", "worker"]
    assert serving.startswith("model server: not ready at ")
    assert "serving.model: found auto, and there are no packed data" in serving
    assert status.returncode == 1
    assert "'train-flow/nothing' not found" in served.project.run("ratchet", "run", "train-flow/nothing").stdout


def test_a_deployment_run_completes_with_a_task_for_every_stage(served: Served, first: dict[str, Any]) -> None:
    assert first["state"]["type"] == "COMPLETED", served.log(first)
    tasks = sorted(served.of_run("task_runs", first), key=lambda task: task["start_time"])
    assert [task["name"] for task in tasks] == STAGES
    assert {task["state_type"] for task in tasks} == {"COMPLETED"}
    assert (served.root / "dvc.lock").is_file()
    assert not any("Traceback" in line for line in served.log(first))


def test_report_and_metrics_are_artifacts_of_the_run(served: Served, first: dict[str, Any]) -> None:
    artifacts = {artifact["key"]: artifact for artifact in served.of_run("artifacts", first)}
    assert {"report", "classes", "report-page"} <= set(artifacts)
    registration = files.read_json(served.root / "data" / "registration.json")
    assert first["state"]["message"] == registration["summary"]
    report = artifacts["report"]["data"]
    assert report.startswith("# Passed" if registration["passed"] else "# Refused")
    assert registration["run_id"] in report
    assert "`training.epochs`" in report  # a setting that is not the default is named
    rows = json.loads(artifacts["classes"]["data"])
    assert [row["class"] for row in rows] == [str(digit) for digit in range(10)]


def test_links_to_mlflow_open_the_run_and_its_report(served: Served, first: dict[str, Any]) -> None:
    artifacts = {artifact["key"]: artifact["data"] for artifact in served.of_run("artifacts", first)}
    link = re.search(r"\((http\S+?)/#/experiments/(\w+)/runs/(\w+)/artifacts/([\w./]+)", artifacts["report-page"])
    assert link, artifacts["report-page"]
    server, experiment, run_id, report = link.groups()
    assert served.mlflow(f"/runs/get?run_id={run_id}")["run"]["info"]["experiment_id"] == experiment
    assert answers(f"{server}/get-artifact?path={report}&run_uuid={run_id}", timeout=30.0)


def test_score_flow_writes_shards_and_an_artifact(served: Served, first: dict[str, Any], tmp_path: Path) -> None:
    from sklearn.datasets import load_digits

    folder, out = tmp_path / "digits", tmp_path / "answers"
    folder.mkdir()
    for number, pixels in enumerate(load_digits().images[:300]):
        Image.fromarray((pixels * 15).astype("uint8")).save(folder / f"{number:03}.png")
    (folder / "300.png").write_bytes(b"\x89PNG")
    run = served.run("score-flow/local", inputs=str(folder), output=str(out), shard_rows=100)
    assert run["state"]["type"] == "COMPLETED", served.log(run)
    version = served.aliases()["champion"]
    summary = f"300 of 301 rows answered by digits version {version}, 1 refused; 4 shards in "
    assert run["state"]["message"].startswith(summary)
    answers = pl.read_parquet(sorted(out.glob("shard-*.parquet")))
    assert (answers.height, answers["refused"].count()) == (301, 1)
    assert answers["class"][:300].cast(pl.Int64).eq(pl.Series(load_digits().target[:300])).mean() > 0.5
    [artifact] = [artifact["data"] for artifact in served.of_run("artifacts", run) if artifact["key"] == "scores"]
    for line in ("| rows | 301 |", "| refused | 1 |", f"| version | digits/{version} |", "| seconds | "):
        assert line in artifact


@dataclass(frozen=True)
class Interrupted:
    """One training that was cancelled, and whose Prefect server was killed when it was retried.

    Attributes:
        key: of the training.
        cancelled: the run when it was cancelled, with its tasks, its log and the status in MLflow at that time.
        ended: the run when its retry was over.
    """

    key: str
    params: list[bytes]
    cancelled: dict[str, Any]
    tasks: dict[str, dict[str, Any]]
    log: list[str]
    status: str
    ended: dict[str, Any]
    registration: dict[str, Any]


@pytest.fixture(scope="session")
def interrupted(served: Served, first: dict[str, Any]) -> Interrupted:
    served.project.good("ratchet", "set", "registry.promotion=manual", "access.approvers=[ann]")
    params = [served.project.workspace.params.read_bytes()]
    gate = {"champion": "not-worse", "tolerance": 0.99, "slice_tolerance": 0.99, "latency_factor": 0.0}
    run = served.start("train-flow/local", overrides={"training": {"epochs": EPOCHS}, "seed": 2, "gate": gate})
    folder = served.wait_for_checkpoint()
    assert served.project.workspace.params.read_bytes() != params[0]
    processes = psutil.Process(served.parts()["worker"]["pid"]).children(recursive=True)
    served.change("POST", f"/flow_runs/{run['id']}/set_state", {"state": {"type": "CANCELLING"}})
    psutil.wait_procs(processes)
    # Read when Prefect's worker has written its own message over the run's state.
    until(lambda: "successfully" in (served.prefect(f"/flow_runs/{run['id']}")["state"]["message"] or ""), pause=1.0)
    params.append(served.project.workspace.params.read_bytes())
    cancelled = served.prefect(f"/flow_runs/{run['id']}")
    tasks = {task["name"]: task["state"] for task in served.of_run("task_runs", run)}
    log, status = served.log(run), _run_of(served, folder.name)["info"]["status"]

    served.retry(cancelled)
    assert served.wait_for_checkpoint() == folder
    served.kill("prefect")
    until(lambda: answers(f"http://{HOST}:{served.prefect_port}/api/health"))
    ended = served.ended(run)
    registration = files.read_json(served.root / "data" / "registration.json")
    return Interrupted(folder.name, params, cancelled, tasks, log, status, ended, registration)


def test_a_cancelled_run_names_its_step_and_restores_the_settings(served: Served, interrupted: Interrupted) -> None:
    run, log = interrupted.cancelled, interrupted.log
    assert run["state"]["type"] == "CANCELLED"
    stopped = re.compile(r"stopped at step \d+ of [\d,]+: the same command continues there")
    [artifact] = [artifact["data"] for artifact in served.of_run("artifacts", run) if artifact["key"] == "stopped"]
    assert stopped.search(artifact)
    assert f"`prefect flow-run retry {run['id']}`" in artifact
    assert any(stopped.match(line) for line in log), log
    assert interrupted.tasks["train"]["name"] == "Cancelled"
    assert stopped.fullmatch(interrupted.tasks["train"]["message"])
    assert interrupted.params[1] == interrupted.params[0]
    assert not [line for line in log if "Traceback" in line]
    assert interrupted.status == "KILLED"


def test_its_retry_continues_though_prefects_server_restarts(served: Served, interrupted: Interrupted) -> None:
    later = served.log(interrupted.ended)[len(interrupted.log) :]
    assert interrupted.ended["state"]["type"] == "COMPLETED", later
    assert served.settled(interrupted.ended)["train"] == "Completed"
    assert any(re.search(r"continues at step \d+ of", line) for line in later), later
    assert not (served.root / "data" / "running" / interrupted.key).exists()
    run = _run_of(served, interrupted.key)
    assert run["info"]["status"] == "FINISHED"
    steps = int(files.read_json(served.root / "data" / "model" / "model.json")["training"]["steps"])
    assert _points(served, run, "step/loss") == list(range(LOG_EVERY, steps + 1, LOG_EVERY))
    assert _points(served, run, "validation/accuracy") == list(range(1, EPOCHS + 1))


def test_a_user_error_is_logged_without_a_traceback(served: Served, first: dict[str, Any]) -> None:
    before = served.project.workspace.params.read_bytes()
    run = served.run("train-flow/local", overrides={"data": {"source": "image-folder", "path": "data/nowhere"}})
    assert (run["state"]["type"], run["state"]["name"]) == ("FAILED", "DataLoadFailed")
    assert run["state"]["message"].startswith("data.path: ")
    assert "data/nowhere" in run["state"]["message"]
    assert served.project.workspace.params.read_bytes() == before
    assert not [line for line in served.log(run) if "Traceback" in line or "NoneType" in line]


def test_an_approval_in_the_run_form_enters_the_ledger(served: Served, interrupted: Interrupted) -> None:
    number = interrupted.registration["version"]
    assert interrupted.registration["aliases"] == ["challenger"]
    champion = served.aliases()["champion"]
    until(lambda: served.answering()["version"] == f"digits version {champion}")  # without another command

    for nonsense in ({"version": "digits@challenger", "who": "ann"}, {"version": "", "who": "ann", "why": "x"}):
        with pytest.raises(PlatformError, match=r"\(4(09|22)\)"):
            served.start("approve-flow/local", **nonsense)

    approved = served.run("approve-flow/local", version=f"digits/{number}", who="ann", why="as agreed")
    assert approved["state"]["message"] == f"digits version {number}: approved by ann, and champion"
    assert {run["state"]["type"] for run in served.runs()} <= set(OVER)  # no paused run waits for an approval
    until(lambda: served.answering()["version"] == f"digits version {number}")
    assert served.aliases() == {"champion": number}
    listed = served.project.good("ratchet", "ledger", "digits")
    assert f"ann: approve digits version {number}: as agreed" in listed
    assert f"ann: promote digits version {number}: as agreed" in listed
    assert "OK: the ledger's hash chain" in served.project.good("ratchet", "audit")


@pytest.fixture(scope="session")
def drifted(served: Served, committed: None) -> list[dict[str, Any]]:
    """The runs that follow when the same drift is reported three times."""
    mine, named = served.project.workspace.params.read_bytes(), ("ratchet.drift.detected", "ratchet.model.digits")
    served.shell("event", "emit", named[0], "--resource-id", named[1])
    for _ in range(2):
        now = datetime.now(UTC).isoformat()
        event = {"id": str(uuid4()), "occurred": now, "event": named[0], "resource": {"prefect.resource.id": named[1]}}
        served.change("POST", "/events", [event])
    [run] = until(lambda: served.begun("train-flow/on-drift"), pause=1.0)
    served.ended(run)
    assert served.project.workspace.params.read_bytes() == mine  # which is not what is committed
    return served.runs_of("train-flow/on-drift")


def test_a_drift_event_starts_one_run_that_asks_for_labels(served: Served, drifted: list[dict[str, Any]]) -> None:
    [run] = drifted
    assert (run["state"]["type"], run["state"]["name"]) == ("COMPLETED", "LabelsNeeded"), served.log(run)
    assert run["created_by"]["type"] == "AUTOMATION"
    assert served.settled(run) == {"ingest": "Unchanged"}
    assert not [line for line in served.log(run) if "Traceback" in line]


@dataclass(frozen=True)
class Night:
    """A scheduled run of new data whose worker was killed, and which was retried.

    Attributes:
        key: of its training.
        crashed: the run after the kill, with the state of each task by name.
    """

    key: str
    crashed: dict[str, Any]
    tasks: dict[str, str]
    ended: dict[str, Any]


@pytest.fixture(scope="session")
def night(served: Served, drifted: list[dict[str, Any]]) -> Night:
    commit_new_data(served.project)
    place = f"/deployments/{served.prefect('/deployments/name/train-flow/nightly')['id']}"
    # Prefect plans the runs of a changed deployment within 5 s.
    soon = (datetime.now(UTC) + timedelta(seconds=10)).isoformat()
    schedule = {"interval": 60.0, "anchor_date": soon, "timezone": "UTC"}
    served.change("PATCH", place, {"schedules": [{"schedule": schedule, "active": True}]})
    try:
        [run] = until(lambda: served.begun("train-flow/nightly"), pause=1.0)
    finally:  # before another run is due
        served.change("PATCH", place, {"schedules": [{"schedule": schedule, "active": False}]})
    folder = served.wait_for_checkpoint(".ratchet/production/data/running")
    served.kill("worker")
    crashed = served.ended(run)
    tasks = served.settled(crashed)
    served.retry(crashed)
    return Night(folder.name, crashed, tasks, served.ended(crashed))


def test_a_night_trains_what_changed_since(served: Served, night: Night) -> None:
    """A run of a commit in which nothing changed is that of the drift."""
    assert night.ended["auto_scheduled"]
    assert night.ended["state"]["type"] == "COMPLETED", served.log(night.ended)
    assert (night.tasks["ingest"], night.tasks["version"]) == ("Completed", "Completed")
    assert served.settled(night.ended) == dict.fromkeys(STAGES, "Completed") | {"ingest": "Unchanged"}
    production = served.root / ".ratchet" / "production"
    provenance = files.read_json(production / "data" / "reports" / "provenance.json")
    head = served.project.good("git", "rev-parse", "HEAD").strip()
    assert (provenance["git_commit"], provenance["git_uncommitted"]) == (head, None)
    assert files.read_json(production / "data" / "model" / "model.json")["training"]["key"] == night.key
    assert not (production / "mlruns" / "mlflow.db").exists()
    stages = ("ingest", "train", "evaluate", "export", "register")
    assert "in sync" in served.project.good("dvc", "--cd", str(production), "status", "--cloud", *stages)


def test_a_killed_nightly_run_continues_when_prefect_retries_it(served: Served, night: Night) -> None:
    assert night.crashed["state"]["type"] == "CRASHED", night.crashed["state"]
    assert (night.ended["state"]["type"], night.ended["run_count"]) == ("COMPLETED", 2), served.log(night.ended)
    log = served.log(night.ended)
    assert any(re.search(r"continues at step \d+ of", line) for line in log), log
    assert _run_of(served, night.key)["info"]["status"] == "FINISHED"


def commit_new_data(project: Any) -> None:
    """Commit two classes of small images, kept by DVC, and settings for them; the project folder is as before."""
    generator, mine = np.random.default_rng(0), project.workspace.params.read_bytes()
    for shade, name in ((0, "dark"), (128, "bright")):
        folder = project.root / "data" / "raw" / "shades" / name
        folder.mkdir(parents=True)
        for index in range(40):
            pixels = generator.integers(shade, shade + 128, (12, 12, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{index}.png")
    project.good("dvc", "add", "data/raw/shades")
    project.good("git", "checkout", "--quiet", "HEAD", "--", "params.yaml")
    training = (f"training.epochs={2 * EPOCHS}", "training.batch_size=8")
    project.good("ratchet", "set", "data.source=image-folder", "data.path=data/raw/shades", *training)
    project.good("git", "add", "data/raw", "params.yaml")
    project.good("git", "commit", "--quiet", "--message=new data")
    project.workspace.params.write_bytes(mine)
    shutil.rmtree(project.root / "data" / "raw" / "shades")


def _run_of(served: Served, key: str) -> dict[str, Any]:
    """The one MLflow run of a training."""
    experiments = served.mlflow("/experiments/search", {"max_results": 10})["experiments"]
    [experiment] = [experiment["experiment_id"] for experiment in experiments if experiment["name"] == "ratchet"]
    body = {"experiment_ids": [experiment], "filter": f"tags.`ratchet.key` = '{key}'"}
    runs: list[dict[str, Any]] = served.mlflow("/runs/search", body)["runs"]
    [run] = runs
    return run


def _points(served: Served, run: dict[str, Any], metric: str) -> list[int]:
    """The steps of every point MLflow has of a metric, repetitions included."""
    query = f"run_id={run['info']['run_id']}&metric_key={metric}&max_results=10000"
    return sorted(int(point["step"]) for point in served.mlflow(f"/metrics/get-history?{query}")["metrics"])
