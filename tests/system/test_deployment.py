"""The servers as a person uses them: `ratchet up`, a deployment run from another shell, a worker that is killed.

Everything is started once, in a project of its own. What happened is asked of Prefect's and MLflow's servers, never of
the stages. The tests stand in the order of one working day; the last one puts the lights out.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import psutil
import pytest
from PIL import Image
from ports import reserved_port
from waiting import until

from flows.server.client import prefect_client
from ratchet import files
from ratchet.errors import PlatformError
from ratchet.servers.http import answers, read_json
from ratchet.servers.ports import port_holder
from ratchet.servers.supervisor import marked

pytestmark = pytest.mark.system

HOST = "127.0.0.1"
STAGES = ["ingest", "version", "train", "evaluate", "export", "register"]
LOG_EVERY = 5  # steps, as conftest.py shrinks it
EPOCHS = 25  # of the training whose worker is killed
OVER = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


@dataclass(frozen=True)
class Served:
    """A project whose servers are up."""

    project: Any
    prefect_port: int
    mlflow_port: int
    serving_port: int

    @property
    def root(self) -> Path:
        root: Path = self.project.root
        return root

    def prefect(self, path: str, body: object = None) -> Any:
        return self.request("GET" if body is None else "POST", path, body)

    def change(self, path: str, body: object) -> None:
        self.request("PATCH", path, body)

    def request(self, method: str, path: str, body: object) -> Any:
        """Send one request to Prefect's API. Its client retries while the server's database is busy."""
        with prefect_client(f"http://{HOST}:{self.prefect_port}/api") as client:
            answer = client.request(method, path, json=body)  # type: ignore[arg-type]
            return answer.json() if answer.content else None

    def mlflow(self, path: str, body: object = None) -> Any:
        return read_json(f"http://{HOST}:{self.mlflow_port}/api/2.0/mlflow{path}", body, timeout=30.0)

    def shell(self, *command: str) -> str:
        """One of Prefect's commands from a shell that knows nothing of us; what it printed."""
        program = str(Path(sys.executable).with_name("prefect"))
        done = subprocess.run(
            [program, *command],
            cwd=self.root,
            env={"PATH": "/usr/bin:/bin", "HOME": str(self.project.home), "LC_ALL": "C.UTF-8"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.stdout

    def deploy(self, *options: str, **overrides: object) -> dict[str, Any]:
        """`prefect deployment run`; the newest run as Prefect has it."""
        parameter = ["--param", f"overrides={json.dumps(overrides)}"] if overrides else []
        output = self.shell("deployment", "run", "train-flow/local", *parameter, *options)
        runs = self.runs()
        assert runs, output
        return runs[0]

    def train(self, **overrides: object) -> dict[str, Any]:
        """The same, waiting for the run's end."""
        return self.deploy("--watch", "--watch-interval", "1", **overrides)

    def retried(self, run: dict[str, Any]) -> dict[str, Any]:
        """`prefect flow-run retry`; the run when it is over again."""
        output = self.shell("flow-run", "retry", run["id"])
        assert "scheduled for retry" in output
        until(lambda: self.prefect(f"/flow_runs/{run['id']}")["run_count"] > run["run_count"])
        until(lambda: self.prefect(f"/flow_runs/{run['id']}")["state"]["type"] in OVER)
        again: dict[str, Any] = self.prefect(f"/flow_runs/{run['id']}")
        return again

    def approve(self, **parameters: object) -> dict[str, Any]:
        """Start approve-flow/local as its page does; return the run when it has ended."""
        deployment = self.prefect("/deployments/name/approve-flow/local")
        created = self.prefect(f"/deployments/{deployment['id']}/create_flow_run", {"parameters": parameters})
        until(
            lambda: self.prefect(f"/flow_runs/{created['id']}")["state"]["type"] in ("COMPLETED", "FAILED", "CRASHED")
        )
        run: dict[str, Any] = self.prefect(f"/flow_runs/{created['id']}")
        return run

    def runs(self) -> list[dict[str, Any]]:
        """Flow runs by hand, the newest first."""
        runs = self.prefect("/flow_runs/filter", {"sort": "EXPECTED_START_TIME_DESC"})
        return [run for run in runs if not run["auto_scheduled"]]

    def runs_of(self, deployment: str, *, ended: bool = True) -> list[dict[str, Any]]:
        """The runs of a deployment that are over, or all that were made, the newest first."""
        deployed = self.prefect(f"/deployments/name/{deployment}")
        body = {"deployments": {"id": {"any_": [deployed["id"]]}}, "sort": "EXPECTED_START_TIME_DESC"}
        return [run for run in self.prefect("/flow_runs/filter", body) if not ended or run["state"]["type"] in OVER]

    def settled(self, run: dict[str, Any]) -> dict[str, str]:
        """The state of each of the run's tasks, by name."""
        return {task["name"]: task["state"]["name"] for task in self.of_run("task_runs", run)}

    def of_run(self, what: str, run: dict[str, Any], **more: object) -> list[dict[str, Any]]:
        objects: list[dict[str, Any]] = self.prefect(
            f"/{what}/filter", {"flow_runs": {"id": {"any_": [run["id"]]}}, **more}
        )
        return objects

    def log(self, run: dict[str, Any]) -> list[str]:
        """The run's log, in order."""
        body = {"logs": {"flow_run_id": {"any_": [run["id"]]}}, "sort": "TIMESTAMP_ASC"}
        return [line["message"] for line in self.prefect("/logs/filter", body)]

    def aliases(self) -> dict[str, str]:
        """The version of each alias."""
        listed = self.mlflow("/registered-models/get?name=digits")["registered_model"]["aliases"]
        return {alias["alias"]: alias["version"] for alias in listed}

    def answering(self) -> dict[str, Any]:
        """The state of the model server."""
        state: dict[str, Any] = read_json(f"http://{HOST}:{self.serving_port}/health")
        return state

    def parts(self) -> dict[str, dict[str, Any]]:
        """The processes that `up` has started, by name."""
        return {part["name"]: part for part in files.read_json(self.root / ".ratchet" / "servers.json")["services"]}


@pytest.fixture(scope="session")
def served(new_project: Callable[[str], Any]) -> Iterator[Served]:
    project = new_project("served on a größere machine")
    ports = reserved_port(HOST), reserved_port(HOST), reserved_port(HOST)
    names = ("platform.prefect_port", "platform.mlflow_port", "serving.port")
    project.good("ratchet", "set", *(f"{name}={port}" for name, port in zip(names, ports, strict=True)))
    project.good("ratchet", "up")
    try:
        yield Served(project, *ports)
    finally:
        project.good("ratchet", "down")


@pytest.fixture(scope="session")
def first(served: Served) -> dict[str, Any]:
    return served.train()


@pytest.fixture(scope="session")
def committed(served: Served, first: dict[str, Any]) -> None:
    """The record of that run is committed, as README.md asks."""
    served.project.good("git", "add", "dvc.lock")
    served.project.good("git", "commit", "--quiet", "--message=trained")


def test_a_deployment_run_completes_with_a_task_for_every_stage(served: Served, first: dict[str, Any]) -> None:
    assert first["state"]["type"] == "COMPLETED", served.log(first)
    tasks = sorted(served.of_run("task_runs", first), key=lambda task: task["start_time"])
    assert [task["name"] for task in tasks] == STAGES
    assert {task["state_type"] for task in tasks} == {"COMPLETED"}
    assert (served.root / "dvc.lock").is_file()
    assert not any("Traceback" in line for line in served.log(first))


def test_report_and_metrics_are_artifacts_of_the_run(served: Served, first: dict[str, Any]) -> None:
    artifacts = {artifact["key"]: artifact for artifact in served.of_run("artifacts", first)}
    assert {"report", "classes", "confusion", "report-page"} <= set(artifacts)
    registration = files.read_json(served.root / "data" / "registration.json")
    assert first["state"]["message"] == registration["summary"]
    report = artifacts["report"]["data"]
    assert report.startswith("# Passed" if registration["passed"] else "# Refused")
    assert registration["run_id"] in report
    assert "`training.epochs`" in report  # a setting that is not the default is named
    rows = json.loads(artifacts["classes"]["data"])
    assert [row["class"] for row in rows] == [str(digit) for digit in range(10)]
    assert artifacts["confusion"]["data"].startswith("data:image/png;base64,")


def test_links_to_mlflow_open_the_run_and_its_report(served: Served, first: dict[str, Any]) -> None:
    artifacts = {artifact["key"]: artifact["data"] for artifact in served.of_run("artifacts", first)}
    link = re.search(r"\((http\S+?)/#/experiments/(\w+)/runs/(\w+)/artifacts/([\w./]+)", artifacts["report-page"])
    assert link, artifacts["report-page"]
    server, experiment, run_id, report = link.groups()
    assert served.mlflow(f"/runs/get?run_id={run_id}")["run"]["info"]["experiment_id"] == experiment
    assert answers(f"{server}/get-artifact?path={report}&run_uuid={run_id}", timeout=30.0)


def scored(served: Served, *parameters: str) -> dict[str, Any]:
    """Run score-flow/local as a user does, and return the run when it has ended."""
    options = [option for parameter in parameters for option in ("--param", parameter)]
    output = served.shell("deployment", "run", "score-flow/local", *options, "--watch", "--watch-interval", "1")
    runs = served.runs_of("score-flow/local")
    assert runs, output
    return runs[0]


def test_score_flow_writes_shards_and_an_artifact(served: Served, first: dict[str, Any], tmp_path: Path) -> None:
    from sklearn.datasets import load_digits

    folder, out = tmp_path / "digits", tmp_path / "answers"
    folder.mkdir()
    for number, pixels in enumerate(load_digits().images[:300]):
        Image.fromarray((pixels * 15).astype("uint8")).save(folder / f"{number:03}.png")
    (folder / "300.png").write_bytes(b"\x89PNG")
    parameters = [f"inputs={folder}", f"output={out}", "shard_rows=100"]
    run = scored(served, *parameters)
    assert run["state"]["type"] == "COMPLETED", served.log(run)
    assert run["state"]["message"].startswith("300 of 301 rows answered by digits version 1, 1 refused; 4 shards in ")
    answers = pl.read_parquet(sorted(out.glob("shard-*.parquet")))
    assert (answers.height, answers["refused"].count()) == (301, 1)
    assert answers["class"][:300].cast(pl.Int64).eq(pl.Series(load_digits().target[:300])).mean() > 0.5
    [artifact] = [artifact["data"] for artifact in served.of_run("artifacts", run) if artifact["key"] == "scores"]
    for line in ("| rows | 301 |", "| refused | 1 |", "| version | digits/1 |", "| seconds | "):
        assert line in artifact
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    (out / "shard-000003.parquet").unlink()
    again = scored(served, *parameters)
    assert "3 of them earlier" in again["state"]["message"]
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    refused = scored(served, *parameters[:2], "shard_rows=50")
    assert refused["state"]["type"] == "FAILED"
    assert "shard rows was 100, is 50" in refused["state"]["message"]
    assert not [line for line in served.log(refused) if "Traceback" in line]


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ({"training": {"epochs": 0}}, "'overrides.training.epochs'. Failure reason: 0 is less than the minimum of 1"),
        ({"training": {"epoch": 3}}, r"'overrides.training'. .*\('epoch' was unexpected\)"),
        ({"training": {"optimizer": "adagrad"}}, "'overrides.training.optimizer'. .* is not one of"),
        ({"model": "convnet"}, "'overrides.model'. .* is not of type 'object'"),
    ],
)
def test_wrong_values_in_the_run_form_create_no_run(served: Served, overrides: dict[str, Any], reason: str) -> None:
    deployment = served.prefect("/deployments/name/train-flow/local")
    before = len(served.runs())
    with pytest.raises(PlatformError, match=rf"\(409\).*{reason}"):
        served.prefect(f"/deployments/{deployment['id']}/create_flow_run", {"parameters": {"overrides": overrides}})
    assert len(served.runs()) == before


def test_a_training_whose_worker_was_killed_continues_from_its_checkpoint(
    served: Served, first: dict[str, Any]
) -> None:
    before = served.project.workspace.params.read_bytes()
    served.deploy(training={"epochs": EPOCHS})
    until(lambda: list((served.root / "data" / "running").glob("[!.]*/step-*.safetensors")), pause=0.05)
    assert served.project.workspace.params.read_bytes() != before
    worker = served.parts()["worker"]
    # The worker itself; its supervisor restarts it, and the new worker first corrects the state of its runs.
    psutil.Process(worker["pid"]).kill()
    until(lambda: served.runs()[0]["state"]["type"] not in ("RUNNING", "PENDING"))
    until(lambda: served.project.run("ratchet", "status").returncode == 0)
    [folder] = (served.root / "data" / "running").glob("[!.]*/")  # beside .finished
    assert list(folder.glob("step-*.safetensors"))
    assert (served.parts()["worker"]["mark"], served.parts()["worker"]["restarts"]) == (worker["mark"], 1)
    cut_off = served.runs()[0]
    assert cut_off["state"]["type"] in ("CRASHED", "FAILED"), cut_off["state"]
    until(lambda: served.project.workspace.params.read_bytes() == before)  # by the worker, before anything runs

    again = served.train(training={"epochs": EPOCHS})
    assert again["state"]["type"] == "COMPLETED", served.log(again)
    assert any(re.search(r"continues at step \d+ of", line) for line in served.log(again)), served.log(again)
    assert not folder.exists()

    run = _run_of(served, folder.name)
    assert run["info"]["status"] == "FINISHED"
    steps = int(files.read_json(served.root / "data" / "model" / "model.json")["training"]["steps"])
    assert _points(served, run, "step/loss") == list(range(LOG_EVERY, steps + 1, LOG_EVERY))
    assert _points(served, run, "validation/accuracy") == list(range(1, EPOCHS + 1))


def test_a_cancelled_run_names_its_step_and_a_retry_continues(served: Served, first: dict[str, Any]) -> None:
    """Read when Prefect's worker has written its own message over the run's state."""
    before = served.project.workspace.params.read_bytes()
    served.deploy(training={"epochs": EPOCHS}, seed=2)
    until(lambda: list((served.root / "data" / "running").glob("[!.]*/step-*.safetensors")), pause=0.05)
    run = served.runs()[0]
    worker = psutil.Process(served.parts()["worker"]["pid"])
    processes = worker.children(recursive=True)
    served.shell("flow-run", "cancel", run["id"])
    psutil.wait_procs(processes)
    until(lambda: "successfully" in (served.prefect(f"/flow_runs/{run['id']}")["state"]["message"] or ""))
    cancelled = served.runs()[0]
    assert (cancelled["id"], cancelled["state"]["type"]) == (run["id"], "CANCELLED")
    stopped = re.compile(r"stopped at step \d+ of [\d,]+: the same command continues there")
    [artifact] = [
        artifact["data"] for artifact in served.of_run("artifacts", cancelled) if artifact["key"] == "stopped"
    ]
    assert stopped.search(artifact)
    assert f"`prefect flow-run retry {run['id']}`" in artifact
    assert any(stopped.match(line) for line in served.log(cancelled)), served.log(cancelled)
    [task] = [task for task in served.of_run("task_runs", cancelled) if task["name"] == "train"]
    assert task["state"]["name"] == "Cancelled"
    assert stopped.fullmatch(task["state"]["message"])
    assert served.project.workspace.params.read_bytes() == before
    assert not [line for line in served.log(cancelled) if "Traceback" in line]
    [folder] = (served.root / "data" / "running").glob("[!.]*/")  # beside .finished
    assert _run_of(served, folder.name)["info"]["status"] == "KILLED"

    again = served.retried(cancelled)
    assert again["state"]["type"] == "COMPLETED", served.log(again)
    assert any(re.search(r"continues at step \d+ of", line) for line in served.log(again)), served.log(again)
    assert _run_of(served, folder.name)["info"]["status"] == "FINISHED"
    served.project.good("ratchet", "set", "seed=0")


def test_prefects_server_may_be_started_again_in_mid_run(served: Served, first: dict[str, Any]) -> None:
    served.deploy(training={"epochs": EPOCHS}, seed=4)
    until(lambda: list((served.root / "data" / "running").glob("[!.]*/step-*.safetensors")), pause=0.05)
    run = served.runs()[0]
    psutil.Process(served.parts()["prefect"]["pid"]).kill()
    until(lambda: served.project.run("ratchet", "status").returncode == 0)
    until(lambda: served.prefect(f"/flow_runs/{run['id']}")["state"]["type"] != "RUNNING", pause=1.0)
    done = served.prefect(f"/flow_runs/{run['id']}")
    assert done["state"]["type"] == "COMPLETED", served.log(done)
    assert served.settled(done)["train"] == "Completed"
    served.project.good("ratchet", "set", "seed=0")


def test_a_user_error_is_logged_without_a_traceback(served: Served, first: dict[str, Any]) -> None:
    before = served.project.workspace.params.read_bytes()
    run = served.train(data={"source": "image-folder", "path": "data/nowhere"})
    assert (run["state"]["type"], run["state"]["name"]) == ("FAILED", "DataLoadFailed")
    assert run["state"]["message"].startswith("data.path: ")
    assert "data/nowhere" in run["state"]["message"]
    assert served.project.workspace.params.read_bytes() == before
    assert not [line for line in served.log(run) if "Traceback" in line or "NoneType" in line]


def test_an_approval_in_the_run_form_enters_the_ledger(served: Served, first: dict[str, Any]) -> None:
    served.project.good("ratchet", "set", "registry.promotion=manual", "access.approvers=[ann]")
    gate = {"champion": "not-worse", "tolerance": 0.99, "slice_tolerance": 0.99, "latency_factor": 0.0}
    trained = served.train(seed=1, gate=gate)
    assert trained["state"]["type"] == "COMPLETED", served.log(trained)
    registration = files.read_json(served.root / "data" / "registration.json")
    number = registration["version"]
    assert registration["aliases"] == ["challenger"]
    champion = served.aliases()["champion"]
    until(lambda: served.answering()["version"] == f"digits version {champion}")  # without another command

    refused = served.approve(version="digits@challenger", who="bob", why="I like it")
    assert refused["state"]["type"] == "FAILED"
    assert refused["state"]["message"].startswith(
        "bob may not approve digits: params.yaml: access.approvers allows ann"
    )
    assert not [line for line in served.log(refused) if "Traceback" in line]
    deployment = served.prefect("/deployments/name/approve-flow/local")
    for nonsense in ({"version": "digits@challenger", "who": "ann"}, {"version": "", "who": "ann", "why": "x"}):
        with pytest.raises(PlatformError, match=r"\(4(09|22)\)"):
            served.prefect(f"/deployments/{deployment['id']}/create_flow_run", {"parameters": nonsense})

    approved = served.approve(version="digits@challenger", who="ann", why="looked at the errors", promote=False)
    assert approved["state"]["message"] == f"digits version {number}: approved by ann"
    served.project.good("ratchet", "down")  # an approval waits in the ledger, not in a paused run
    served.project.good("ratchet", "up")
    output = served.approve(version=f"digits/{number}", who="ann", why="as agreed")
    assert output["state"]["message"] == f"digits version {number}: approved by ann, and champion"
    until(lambda: served.answering()["version"] == f"digits version {number}")
    assert served.aliases() == {"champion": number}
    listed = served.project.good("ratchet", "ledger", "digits")
    assert f"ann: approve digits version {number}: looked at the errors" in listed
    assert f"ann: promote digits version {number}: as agreed" in listed
    assert "OK: the ledger's hash chain" in served.project.good("ratchet", "audit")


UNCHANGED = {
    "version": "Completed",
    **dict.fromkeys(("ingest", "train", "evaluate", "export", "register"), "Unchanged"),
}


def test_the_run_form_explains_every_field_and_refuses_nonsense(served: Served) -> None:
    deployments = [served.prefect(f"/deployments/name/train-flow/{name}") for name in ("local", "nightly", "on-drift")]
    for deployment in deployments:
        fields = deployment["parameter_openapi_schema"]["properties"]
        assert set(fields) == {"overrides", "revision"}
        assert "empty" in fields["overrides"]["description"]
        assert "A branch, tag or commit" in fields["revision"]["description"]
        for nonsense in ({"revision": None}, {"revision": 3}, {"revision": ["main"]}):
            with pytest.raises(PlatformError, match=r"\(4(09|22)\).*revis"):
                served.prefect(f"/deployments/{deployment['id']}/create_flow_run", {"parameters": nonsense})
    assert [deployment["parameters"] for deployment in deployments] == [{}, {"revision": "HEAD"}, {"revision": "HEAD"}]
    limits = [deployment["global_concurrency_limit"] for deployment in deployments]
    assert [limit and limit["limit"] for limit in limits] == [None, 1, 1]


def test_a_drift_event_starts_one_run_of_the_commit(served: Served, committed: None) -> None:
    mine = (served.root / "params.yaml").read_bytes()
    for _ in range(3):  # the same drift is reported several times
        served.shell("event", "emit", "ratchet.drift.detected", "--resource-id", "ratchet.model.digits")
    until(lambda: served.runs_of("train-flow/on-drift"), pause=1.0)
    [run] = served.runs_of("train-flow/on-drift", ended=False)
    assert run["state"]["type"] == "COMPLETED", served.log(run)
    assert run["created_by"]["type"] == "AUTOMATION"
    assert served.settled(run) == UNCHANGED
    assert (served.root / "params.yaml").read_bytes() == mine  # which is not what is committed
    assert not [line for line in served.log(run) if "Traceback" in line]


def test_a_night_trains_only_what_changed_since(served: Served, committed: None) -> None:
    deployment = served.prefect("/deployments/name/train-flow/nightly")
    [schedule] = deployment["schedules"]
    assert (schedule["schedule"]["cron"], schedule["active"]) == ("0 2 * * *", True)
    place = f"/deployments/{deployment['id']}/schedules/{schedule['id']}"
    served.change(place, {"schedule": {"cron": "* * * * *", "timezone": "UTC"}, "active": True})
    try:
        until(lambda: served.runs_of("train-flow/nightly"), pause=1.0)
        quiet = served.runs_of("train-flow/nightly")[-1]
        assert quiet["auto_scheduled"]
        assert served.settled(quiet) == UNCHANGED, served.log(quiet)
        commit_new_data(served.project)
        until(lambda: any(served.settled(run) != UNCHANGED for run in served.runs_of("train-flow/nightly")), pause=1.0)
    finally:
        served.change(place, {"active": False})
    busy = next(run for run in served.runs_of("train-flow/nightly") if served.settled(run) != UNCHANGED)
    assert busy["state"]["type"] == "COMPLETED", served.log(busy)
    assert served.settled(busy) == dict.fromkeys(STAGES, "Completed")
    production = served.root / ".ratchet" / "production"
    provenance = files.read_json(production / "data" / "reports" / "provenance.json")
    head = served.project.good("git", "rev-parse", "HEAD").strip()
    assert (provenance["git_commit"], provenance["git_uncommitted"]) == (head, None)
    assert _run_of(served, files.read_json(production / "data" / "model" / "model.json")["training"]["key"])
    assert not (production / "mlruns" / "mlflow.db").exists()
    stages = ("ingest", "train", "evaluate", "export", "register")
    assert "in sync" in served.project.good("dvc", "--cd", str(production), "status", "--cloud", *stages)


def commit_new_data(project: Any) -> None:
    """Two classes of small images, kept by DVC; the copy in the project folder is gone."""
    import numpy as np
    from PIL import Image

    generator = np.random.default_rng(0)
    for shade, name in ((0, "dark"), (128, "bright")):
        folder = project.root / "data" / "raw" / "shades" / name
        folder.mkdir(parents=True)
        for index in range(40):
            pixels = generator.integers(shade, shade + 128, (12, 12, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{index}.png")
    project.good("dvc", "add", "data/raw/shades")
    project.good("git", "add", "data/raw")
    commit_settings(project, "data.source=image-folder", "data.path=data/raw/shades")
    shutil.rmtree(project.root / "data" / "raw" / "shades")


def commit_settings(project: Any, *changes: str) -> None:
    """These, changed in what is committed and not in what lies in the project folder."""
    mine = project.workspace.params.read_bytes()
    project.good("git", "checkout", "--quiet", "HEAD", "--", "params.yaml")
    project.good("ratchet", "set", *changes)
    project.good("git", "add", "params.yaml")
    project.good("git", "commit", "--quiet", "--message=other settings")
    project.workspace.params.write_bytes(mine)


def test_a_killed_nightly_run_continues_when_prefect_retries_it(served: Served, committed: None) -> None:
    commit_settings(served.project, f"training.epochs={8 * EPOCHS}", "training.batch_size=8", "seed=3")
    run = served.deploy("--param", "revision=HEAD")
    running = served.root / ".ratchet" / "production" / "data" / "running"
    until(lambda: list(running.glob("[!.]*/step-*.safetensors")), pause=0.05)
    psutil.Process(served.parts()["worker"]["pid"]).kill()
    until(lambda: served.prefect(f"/flow_runs/{run['id']}")["state"]["type"] not in ("RUNNING", "PENDING"))
    assert served.runs()[0]["state"]["type"] == "CRASHED", served.runs()[0]["state"]
    [folder] = running.glob("[!.]*/")

    again = served.retried(served.prefect(f"/flow_runs/{run['id']}"))
    assert (again["state"]["type"], again["run_count"]) == ("COMPLETED", 2), served.log(again)
    assert any(re.search(r"continues at step \d+ of", line) for line in served.log(again)), served.log(again)
    assert _run_of(served, folder.name)["info"]["status"] == "FINISHED"


def test_a_revision_that_is_not_there_is_the_runs_message(served: Served) -> None:
    run = served.deploy("--watch", "--watch-interval", "1", "--param", "revision=nowhere")
    assert run["state"]["type"] == "FAILED"
    assert "has no branch, tag or commit nowhere" in run["state"]["message"]
    assert not [line for line in served.log(run) if "Traceback" in line]


def test_down_leaves_no_process_and_no_open_port(served: Served) -> None:
    marks = [part["mark"] for part in served.parts().values()]
    assert all(marked(mark) for mark in marks)
    served.project.good("ratchet", "down")
    assert not [pid for mark in marks for pid in marked(mark)]
    assert [port_holder(HOST, port) for port in (served.prefect_port, served.mlflow_port, served.serving_port)] == [
        None
    ] * 3
    assert not (served.root / "prefect.toml").exists()


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
