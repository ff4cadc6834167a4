"""A project whose servers run, as `ratchet up` starts them, and questions to them."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from ports import reserved_port
from waiting import until

from flows.server.client import prefect_client
from ratchet import files
from ratchet.servers.http import read_json

HOST = "127.0.0.1"
OVER = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


@dataclass(frozen=True)
class Served:
    """A project whose servers are up."""

    project: Any
    prefect_port: int
    mlflow_port: int
    serving_port: int
    output: str  # of `ratchet up`

    @property
    def root(self) -> Path:
        root: Path = self.project.root
        return root

    def prefect(self, path: str, body: object = None) -> Any:
        """Read from Prefect's API, again if it does not answer: its server may start, or its database be busy."""
        url = f"http://{HOST}:{self.prefect_port}/api{path}"
        [answer] = until(lambda: [answer for answer in [read_json(url, body, timeout=30.0)] if answer is not None])
        return answer

    def change(self, method: str, path: str, body: object) -> Any:
        """Change something by Prefect's API."""
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

    def start(self, deployment: str, **parameters: object) -> dict[str, Any]:
        """Start a run as the deployment's page does."""
        deployed = self.prefect(f"/deployments/name/{deployment}")
        path = f"/deployments/{deployed['id']}/create_flow_run"
        run: dict[str, Any] = self.change("POST", path, {"parameters": parameters})
        return run

    def ended(self, run: dict[str, Any]) -> dict[str, Any]:
        """Wait until the run is over, and return it."""
        until(lambda: self.prefect(f"/flow_runs/{run['id']}")["state"]["type"] in OVER, pause=1.0)
        again: dict[str, Any] = self.prefect(f"/flow_runs/{run['id']}")
        return again

    def run(self, deployment: str, **parameters: object) -> dict[str, Any]:
        """Start a run, and return it when it is over."""
        return self.ended(self.start(deployment, **parameters))

    def retry(self, run: dict[str, Any]) -> None:
        """`prefect flow-run retry`; return when the run has begun again."""
        output = self.shell("flow-run", "retry", run["id"])
        assert "scheduled for retry" in output
        until(lambda: self.prefect(f"/flow_runs/{run['id']}")["run_count"] > run["run_count"], pause=1.0)

    def kill(self, part: str) -> None:
        """Kill the first process of a service; return when its supervisor has started it again."""
        before = self.parts()[part]
        psutil.Process(before["pid"]).kill()
        until(lambda: self.parts()[part]["restarts"] > before["restarts"] and self.parts()[part]["pid"])

    def wait_for_checkpoint(self, running: str = "data/running") -> Path:
        """Wait until a training writes a checkpoint; return the folder of its checkpoints."""

        def checkpoints() -> set[Path]:
            return set((self.root / running).glob("[!.]*/step-*.safetensors"))  # beside .finished

        before = checkpoints()
        until(lambda: checkpoints() - before, pause=0.05)
        [folder] = {path.parent for path in checkpoints()}
        return folder

    def runs(self) -> list[dict[str, Any]]:
        """Flow runs by hand, the newest first."""
        runs = self.prefect("/flow_runs/filter", {"sort": "EXPECTED_START_TIME_DESC"})
        return [run for run in runs if not run["auto_scheduled"]]

    def runs_of(self, deployment: str) -> list[dict[str, Any]]:
        """Return all runs of a deployment, the newest first."""
        deployed = self.prefect(f"/deployments/name/{deployment}")
        body = {"deployments": {"id": {"any_": [deployed["id"]]}}, "sort": "EXPECTED_START_TIME_DESC"}
        runs: list[dict[str, Any]] = self.prefect("/flow_runs/filter", body)
        return runs

    def begun(self, deployment: str) -> list[dict[str, Any]]:
        """Return the runs that a worker has taken."""
        return [run for run in self.runs_of(deployment) if run["state"]["type"] != "SCHEDULED"]

    def settled(self, run: dict[str, Any]) -> dict[str, str]:
        """The state of each of the run's tasks, by name; of a task that was repeated, the last."""
        tasks = sorted(self.of_run("task_runs", run), key=lambda task: str(task["start_time"]))
        return {task["name"]: task["state"]["name"] for task in tasks}

    def of_run(self, what: str, run: dict[str, Any], **more: object) -> list[dict[str, Any]]:
        objects: list[dict[str, Any]] = self.prefect(
            f"/{what}/filter", {"flow_runs": {"id": {"any_": [run["id"]]}}, **more}
        )
        return objects

    def log(self, run: dict[str, Any]) -> list[str]:
        """The run's log, in order."""
        body = {"logs": {"flow_run_id": {"any_": [run["id"]]}}, "sort": "TIMESTAMP_ASC"}
        return [line["message"] for line in self.prefect("/logs/filter", body)]

    def aliases(self, model: str = "digits") -> dict[str, str]:
        """The version of each alias."""
        listed = self.mlflow(f"/registered-models/get?name={model}")["registered_model"]["aliases"]
        return {alias["alias"]: alias["version"] for alias in listed}

    def answering(self) -> dict[str, Any]:
        """The state of the model server."""
        state: dict[str, Any] = read_json(f"http://{HOST}:{self.serving_port}/health")
        return state

    def parts(self) -> dict[str, dict[str, Any]]:
        """The processes that `up` has started, by name."""
        return {part["name"]: part for part in files.read_json(self.root / ".ratchet" / "servers.json")["services"]}


@contextmanager
def servers_up(project: Any, **variables: str) -> Iterator[Served]:
    """Start the servers of a project on reserved ports, and stop them at the end."""
    ports = reserved_port(HOST), reserved_port(HOST), reserved_port(HOST)
    names = ("platform.prefect_port", "platform.mlflow_port", "serving.port")
    project.good("ratchet", "set", *(f"{name}={port}" for name, port in zip(names, ports, strict=True)))
    output = project.good("ratchet", "up", **variables)
    try:
        yield Served(project, *ports, output)
    finally:
        project.good("ratchet", "down")
