"""A workspace with a real MLflow database, and a real MLflow server over one, each made once for the room."""

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ratchet.params import Params, TrackingSettings
from ratchet.platform.processes import free_port
from ratchet.workspace import Workspace

SOURCE = Path(__file__).parents[2] / "src"


@dataclass
class Place:
    """A workspace and the settings that say where its runs are recorded."""

    workspace: Workspace
    params: Params

    @property
    def client(self) -> Any:
        from ratchet.registry.mlflow_store import connect

        return connect(self.workspace, self.params.tracking)

    def runs(self, uid: str) -> list[Any]:
        """Every MLflow run that bears the journal's name."""
        experiment = self.client.get_experiment_by_name(self.params.tracking.experiment)
        found: list[Any] = self.client.search_runs([experiment.experiment_id], f"tags.`ratchet.uid` = '{uid}'")
        return found

    def points(self, run_id: str, name: str) -> list[tuple[int, float]]:
        """(step, value) of every point that MLflow holds, repetitions included."""
        return sorted((one.step, one.value) for one in self.client.get_metric_history(run_id, name))


@dataclass
class Server:
    """A real MLflow server that can go away and come back at the same address."""

    root: Path
    port: int = field(default_factory=lambda: free_port("127.0.0.1"))
    _process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        program = [
            *(sys.executable, "-m", "ratchet.platform.mlflow_server", "--host", "127.0.0.1", "--port", str(self.port)),
            *("--backend", f"sqlite:///{self.root / 'mlflow.db'}", "--artifacts", (self.root / "artifacts").as_uri()),
        ]
        with (self.root / "server.log").open("ab") as log:
            environment = {**os.environ, "PYTHONPATH": str(SOURCE), "HOME": str(self.root)}
            self._process = subprocess.Popen(program, cwd=self.root, env=environment, stdout=log, stderr=log)
        while True:
            assert self._process.poll() is None, (self.root / "server.log").read_text()
            try:
                with urllib.request.urlopen(f"{self.uri}/health"):
                    return
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.1)

    def stop(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A workspace whose runs go into a SQLite database of its own, as shipped."""
    return Place(Workspace(tmp_path_factory.mktemp("sqlite").resolve()), Params())


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = Server(tmp_path_factory.mktemp("server").resolve())
    started.start()
    yield started
    started.stop()


@pytest.fixture
def served(server: Server, tmp_path: Path) -> Place:
    """A workspace whose runs go to the server."""
    return Place(Workspace(tmp_path), Params(tracking=TrackingSettings(uri=server.uri, experiment="served")))


@pytest.fixture(params=["sqlite", "server"])
def place(request: pytest.FixtureRequest) -> Place:
    """Both ways to MLflow, one after the other."""
    found: Place = request.getfixturevalue({"sqlite": "database", "server": "served"}[request.param])
    return found


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    """A training's name that no other test has."""
    return request.node.name.replace("[", "-").rstrip("]")


KilledAt = Callable[[Place, str, str], None]


@pytest.fixture
def killed_at() -> KilledAt:
    """Tell a run four points in another process, which is killed as it first calls a method of the journal."""

    def run(place: Place, key: str, method: str) -> None:
        program = """
import os, signal, sys
from pathlib import Path
from ratchet.registry import journal
from ratchet.registry.runs import Run
from ratchet.params import Params, TrackingSettings
from ratchet.workspace import Workspace
root, uri, experiment, key, method = sys.argv[1:]
run = Run(Workspace(Path(root)), Params(tracking=TrackingSettings(uri=uri, experiment=experiment)), key)
run.settings({"training.epochs": 4})
for step in range(4):
    run.metrics({"loss": step / 8}, step=step)
setattr(journal.Journal, method, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
run.send()
"""
        tracking = place.params.tracking
        done = subprocess.run(
            [sys.executable, "-c", program, str(place.workspace.root), tracking.uri, tracking.experiment, key, method],
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == -9, done.stderr

    return run
