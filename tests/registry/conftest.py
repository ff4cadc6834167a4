"""A workspace with a real MLflow database and a real MLflow server, each created once for these tests."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import fork_server
import pytest
import torch
from ports import reserved_port
from waiting import until

from ratchet.kinds import image_spec
from ratchet.registry import audit as auditing
from ratchet.registry.models import ModelRegistry
from ratchet.registry.promotion import Promotions
from ratchet.registry.provenance_record import Hardware, Provenance
from ratchet.registry.runs import Run
from ratchet.registry.versions import Version
from ratchet.servers.http import answers
from ratchet.settings.model import Params, RegistrySettings, TrackingSettings
from ratchet.typed_json import to_plain
from ratchet.workspace import Workspace

SOURCE = Path(__file__).parents[2] / "src"
SPEC = image_spec("convnet", ("ant", "bee", "cat"), 1, 8, 8, (0.5,), (0.25,))
WITHOUT_PROGRAM = RegistrySettings(export="none")  # an export takes seconds, so tests that need one ask for it
RECORD = Provenance(
    id="0123456789abcdef",
    git_commit="4" * 40,
    git_origin=None,
    git_uncommitted=None,
    git_left_out=(),
    dvc={"data/packed": "0" * 32 + ".dir"},
    dvc_inputs={},
    inputs=None,
    settings="2" * 64,
    lock="3" * 64,
    seed=0,
    python="3.11.0",
    packages={"torch": "2.0"},
    hardware=Hardware("x86_64", "Linux", "processor", "AVX2", 1, None, None, (), None),
    prefect_flow_run="a32c837f-ee97-4130-ba27-bf8fc9a9be4c",
    weights="1" * 64,
    training="0f47a1c9e665453c",
)


@pytest.fixture(scope="session")
def record() -> Provenance:
    """A complete provenance record."""
    return RECORD


@dataclass
class Place:
    """A workspace, and the settings with the address of its MLflow."""

    workspace: Workspace
    params: Params

    @property
    def client(self) -> Any:
        from ratchet.registry.mlflow_store import connect

        return connect(self.workspace, self.params.tracking)

    def runs(self, uid: str) -> list[Any]:
        """Return every MLflow run with the journal's id."""
        experiment = self.client.get_experiment_by_name(self.params.tracking.experiment)
        runs: list[Any] = self.client.search_runs([experiment.experiment_id], f"tags.`ratchet.uid` = '{uid}'")
        return runs

    def points(self, run_id: str, name: str) -> list[tuple[int, float]]:
        """Return (step, value) of every point in MLflow, repetitions included."""
        return sorted((point.step, point.value) for point in self.client.get_metric_history(run_id, name))


@dataclass
class Server:
    """A real MLflow server that can be stopped and started again at the same address."""

    root: Path
    port: int = field(default_factory=lambda: reserved_port("127.0.0.1"))
    _process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        program = [
            *(sys.executable, "-m", "ratchet.servers.mlflow_server", "--host", "127.0.0.1", "--port", str(self.port)),
            *("--backend", f"sqlite:///{self.root / 'mlflow.db'}", "--artifacts", (self.root / "artifacts").as_uri()),
            *("--origins", self.uri),
        ]
        with (self.root / "server.log").open("ab") as log:
            environment = {**os.environ, "PYTHONPATH": str(SOURCE), "HOME": str(self.root)}
            self._process = subprocess.Popen(program, cwd=self.root, env=environment, stdout=log, stderr=log)
        until(lambda: answers(f"{self.uri}/health"), process=self._process, log=self.root / "server.log", pause=0.1)

    def stop(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A workspace with a SQLite database of its own, as shipped."""
    return Place(Workspace(tmp_path_factory.mktemp("sqlite").resolve()), Params(registry=WITHOUT_PROGRAM))


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = Server(tmp_path_factory.mktemp("server").resolve())
    started.start()
    yield started
    started.stop()


@pytest.fixture
def served(server: Server, tmp_path: Path) -> Place:
    """A workspace whose runs go to the server."""
    tracking = TrackingSettings(uri=server.uri, experiment="served")
    return Place(Workspace(tmp_path), Params(registry=WITHOUT_PROGRAM, tracking=tracking))


@pytest.fixture(params=["sqlite", "server"])
def place(request: pytest.FixtureRequest) -> Place:
    """Each way to MLflow, one after the other."""
    place: Place = request.getfixturevalue({"sqlite": "database", "server": "served"}[request.param])
    return place


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    """A training's key that no other test uses."""
    return request.node.name.replace("[", "-").rstrip("]")


@dataclass
class Snapshots:
    """Copies of a workspace and its databases after the first steps of a test: many tests begin with the same ones.

    `taken` has the name of each snapshot and the version that its last step returned, by settings and steps.
    """

    root: Path  # of the workspace, with the ledger
    folder: Path
    taken: dict[tuple[str, tuple[str, ...]], tuple[str, Version]] = field(default_factory=dict)

    def take(self, name: str) -> None:
        """Copy the present state. SQLite copies its databases itself, as they may be open."""
        shutil.copytree(self.root, self.folder / name, ignore=shutil.ignore_patterns("*.db"))
        for path in self.root.rglob("*.db"):
            self._copy_database(path, self.folder / name / path.relative_to(self.root))

    def restore(self, name: str) -> None:
        """Make the workspace as it was when the snapshot was taken."""
        source = self.folder / name
        for path in sorted(self.root.rglob("*"), reverse=True):
            is_kept = (source / path.relative_to(self.root)).is_dir() or path.name == "mlflow.db"  # MLflow has it open
            if path.is_dir() and not is_kept:
                path.rmdir()
            elif not path.is_dir() and not is_kept:
                path.unlink()
        shutil.copytree(source, self.root, ignore=shutil.ignore_patterns("*.db"), dirs_exist_ok=True)
        for path in source.rglob("*.db"):
            self._copy_database(path, self.root / path.relative_to(source))

    def digest(self) -> str:
        """Return a digest of the present state: the databases' content, and name, size and time of other files."""
        digest = sha256()
        for path in sorted(self.root.rglob("*")):
            state = path.stat()
            content = path.read_bytes() if path.suffix == ".db" else f"{state.st_size} {state.st_mtime_ns}".encode()
            digest.update(str(path).encode() + (b"" if path.is_dir() else content))
        return digest.hexdigest()

    @staticmethod
    def _copy_database(source: Path, target: Path) -> None:
        with closing(sqlite3.connect(source)) as read, closing(sqlite3.connect(target)) as written:
            read.backup(written)


@dataclass
class Line:
    """A model with a ledger of its own, and a way to create versions of it without training."""

    place: Any
    name: str
    folder: Path
    untrained: Path
    params: Params
    snapshots: Snapshots | None = None
    count: int = 0
    steps: tuple[str, ...] = ()
    seen: str = ""  # digest of the state before the first step, and after each

    def under(self, **changes: object) -> Promotions:
        """Return the model's promotions with other settings."""
        return Promotions(self.place.workspace, self.params.model_copy(update=changes), self.name)

    @property
    def promotions(self) -> Promotions:
        return self.under()

    def run(self) -> tuple[str, str]:
        """Log a run with its model, report and provenance; return its id and its model's address."""
        self.count += 1
        run = Run(self.place.workspace, self.params, f"{self.name}-{self.count}")
        run.settings({"seed": 0})
        run_id = run.send()
        run.journal.close()
        registry = ModelRegistry(self.place.workspace, self.params)
        report, record = self.folder / "report.html", self.folder / "provenance.json"
        report.write_text(f"report of {run_id}")
        record.write_text(json.dumps(to_plain(RECORD)))
        registry.log_files(run_id, {report: "report", record: "provenance"})
        return run_id, registry.log_model(run_id, self.untrained, SPEC)

    def version(self) -> Version:
        """Register a version without an alias."""
        return self._step("version", self._version)

    def challenger(self) -> Version:
        return self._step("challenger", self._challenger)

    def champion(self) -> Version:
        return self._step("champion", self._champion)

    def _step(self, name: str, act: Callable[[], Version]) -> Version:
        """Act, or restore the result if an earlier test began with the same steps, and this one did nothing else."""
        if self.snapshots is None or self.snapshots.digest() != self.seen:
            self.snapshots = None
            return act()
        self.steps += (name,)
        taken, key = self.snapshots.taken, (self.params.model_dump_json(), self.steps)
        if key in taken:
            self.snapshots.restore(taken[key][0])
            self.count += 1
        else:
            version = act()
            taken[key] = str(len(taken)), version
            self.snapshots.take(taken[key][0])
        self.seen = self.snapshots.digest()
        return taken[key][1]

    def _version(self) -> Version:
        run_id, model_uri = self.run()
        registry = ModelRegistry(self.place.workspace, self.params)
        return registry.add_version(self.name, run_id, model_uri, tags={"ratchet.verdict": "{}"})

    def _challenger(self) -> Version:
        version = self._version()
        self.promotions.register(version, why="good", over=self.promotions.synchronize().champion)
        return version

    def _champion(self) -> Version:
        version = self._challenger()
        self.promotions.promote_automatically(version, over=self.promotions.state().champion)
        return version

    def aliases(self) -> dict[str, str]:
        return self.promotions.registry.aliases(self.name)

    def faults(self) -> list[str]:
        return list(auditing.audit(self.place.workspace, self.params, self.name))

    def repair(self) -> list[str]:
        return auditing.repair(self.place.workspace, self.params, self.name)

    def artifact(self, version: Version, name: str) -> Path:
        """Return the path of a file of the version or of its run in MLflow's store."""
        paths = [
            path
            for path in self.place.workspace.mlruns.rglob(name)
            if version.run_id in path.as_posix() or version.run_id in _mlmodel(path)
        ]
        assert len(paths) == 1, paths
        return paths[0]


def _mlmodel(path: Path) -> str:
    described = [parent / "MLmodel" for parent in path.parents if (parent / "MLmodel").exists()]
    return described[0].read_text() if described else ""


@pytest.fixture(scope="session")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model that training wrote."""
    from ratchet.training import build, save_model

    folder = tmp_path_factory.mktemp("model")
    with torch.random.fork_rng():
        torch.manual_seed(1)
        save_model(folder, build(SPEC).state_dict(), SPEC, about={"training": {}})
    return folder


@pytest.fixture
def new_line(key: str, tmp_path: Path, untrained: Path) -> Callable[[Place], Line]:
    """Return a function that begins a model at a place, with a ledger of its own and manual promotion."""
    return lambda place: begin_line(place, key, tmp_path, untrained)


def begin_line(place: Place, name: str, folder: Path, untrained: Path) -> Line:
    ledger = WITHOUT_PROGRAM.model_copy(update={"ledger": f"sqlite:///{folder}/ledger.db", "promotion": "manual"})
    return Line(place, name, folder, untrained, place.params.model_copy(update={"registry": ledger}))


@pytest.fixture(scope="session")
def snapshots(tmp_path_factory: pytest.TempPathFactory) -> Snapshots:
    """Return snapshots of a workspace with an MLflow that has one experiment and no model."""
    root = tmp_path_factory.mktemp("line").resolve()
    run = Run(Workspace(root), Params(registry=WITHOUT_PROGRAM), "first")
    run.send()
    run.journal.close()
    snapshots = Snapshots(root, tmp_path_factory.mktemp("snapshots"))
    snapshots.take("empty")
    return snapshots


@pytest.fixture
def line(snapshots: Snapshots, untrained: Path) -> Line:
    """Return a model without versions, with a ledger of its own and manual promotion."""
    snapshots.restore("empty")
    place = Place(Workspace(snapshots.root), Params(registry=WITHOUT_PROGRAM))
    line = begin_line(place, "ants", snapshots.root, untrained)
    line.snapshots, line.seen = snapshots, snapshots.digest()
    return line


@pytest.fixture
def mlflows_own() -> Iterator[None]:
    """Ignore MLflow's deprecation warnings while it logs and loads a model."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="mlflow")
        yield


KilledAt = Callable[[Place, str, str], None]


@pytest.fixture
def killed_at() -> KilledAt:
    """Log four points of a run in another process, which is killed when it first calls a method of the journal."""

    def run(place: Place, key: str, method: str) -> None:
        program = """
import os, signal, sys
from pathlib import Path
from ratchet.registry import journal
from ratchet.registry.runs import Run
from ratchet.settings.model import Params, TrackingSettings
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
        process = fork_server.start_program(
            program, str(place.workspace.root), tracking.uri, tracking.experiment, key, method
        )
        assert process.wait() == -9

    return run
