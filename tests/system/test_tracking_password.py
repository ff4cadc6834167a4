"""An MLflow server that asks who you are: `mlflow server --app-name basic-auth`, as MLflow ships it."""

import base64
import json
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ports import reserved_port
from waiting import until

from ratchet.servers.http import answers

pytestmark = pytest.mark.slow

HOST = "127.0.0.1"
# Nowhere whole, in no source either.
ADMIN, TRAINER, READER = ("-".join((word, f"{len(word):08}")) for word in ("administers", "trainsmodels", "readsonly"))

PATIENT = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "600"}  # a busy machine is not one that is away


@dataclass(frozen=True)
class Server:
    """One with two users beside its administrator: who trains, and who may read what others made."""

    folder: Path
    port: int

    @property
    def uri(self) -> str:
        return f"http://{HOST}:{self.port}"

    def call(self, path: str, body: object) -> Any:
        """One request by the administrator."""
        name = base64.b64encode(f"admin:{ADMIN}".encode()).decode()
        headers = {"Content-Type": "application/json", "Authorization": f"Basic {name}"}
        request = urllib.request.Request(f"{self.uri}/api/2.0/mlflow/{path}", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request) as response:
            return json.load(response)

    def runs(self) -> list[Any]:
        experiments = self.call("experiments/search", {"max_results": 10})["experiments"]
        ids = [experiment["experiment_id"] for experiment in experiments if experiment["name"] == "ratchet"]
        runs: list[Any] = self.call("runs/search", {"experiment_ids": ids}).get("runs", [])
        return runs

    @staticmethod
    def environment(user: str, password: str) -> dict[str, str]:
        return {"MLFLOW_TRACKING_USERNAME": user, "MLFLOW_TRACKING_PASSWORD": password, **PATIENT}


def until_it_answers(uri: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    until(lambda: answers(f"{uri}/health"), process=process, log=log, pause=0.1)


@pytest.fixture(scope="module")
def server(new_project: Callable[[str], Any]) -> Iterator[Server]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        server = Server(Path(name).resolve(), reserved_port(HOST))
        config = server.folder / "auth.ini"
        config.write_text(
            "[mlflow]\ndefault_permission = READ\nadmin_username = admin\n"
            f"database_uri = sqlite:///{server.folder}/users.db\n"
            "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
            "auth_cache_ttl_seconds = 3600\n"  # MLflow hashes the password at each request otherwise
        )
        environment = new_project("server").environment | {
            "MLFLOW_AUTH_CONFIG_PATH": str(config),
            "MLFLOW_AUTH_ADMIN_PASSWORD": ADMIN,
            "MLFLOW_FLASK_SERVER_SECRET_KEY": "of this test",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # by five more processes
        }
        command = [sys.executable, "-m", "mlflow", "server", "--app-name", "basic-auth", "--workers", "1"]
        command += ["--host", HOST, "--port", str(server.port)]
        command += ["--backend-store-uri", f"sqlite:///{server.folder}/runs.db"]
        command += ["--artifacts-destination", str(server.folder / "files")]
        with (server.folder / "log").open("wb") as log:
            process = subprocess.Popen(
                command, cwd=server.folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            until_it_answers(server.uri, process, server.folder / "log")
            for user, password in (("trainer", TRAINER), ("reader", READER)):
                server.call("users/create", {"username": user, "password": password})
            yield server
        finally:
            process.terminate()
            process.wait()


@pytest.fixture(scope="module")
def project(new_project: Callable[[str], Any], use_small_net: Callable[[Any], None], server: Server) -> Iterator[Any]:
    """A project whose Prefect server and worker are up, the worker with the password of a trainer."""
    project = new_project("password")
    use_small_net(project)
    port = reserved_port(HOST)
    known = (f"tracking.uri={server.uri}", f"platform.prefect_port={port}", "gate.minimum=0.0", "serving.enabled=false")
    project.good("ratchet", "set", *known)
    output = project.good("ratchet", "up", **server.environment("trainer", TRAINER))
    try:
        assert f"MLflow server: {server.uri} (tracking.uri; not ours to start)" in output
        yield project
    finally:
        project.good("ratchet", "down")


def test_what_the_worker_of_a_known_user_trains_lands_there(project: Any, server: Server) -> None:
    before = server.runs()
    run = ("prefect", "deployment", "run", "train-flow/local", "--watch", "--watch-interval", "1")
    assert "COMPLETED" in project.good(*run).upper()
    (run,) = [run for run in server.runs() if run not in before]
    assert run["info"]["status"] == "FINISHED"
    assert json.loads((project.root / "data" / "registration.json").read_text())["version"] == "1"
    assert "validation/accuracy" in {metric["key"] for metric in run["data"]["metrics"]}
    stored = server.folder / "files" / run["info"]["experiment_id"]
    assert list(stored.rglob("model.safetensors"))
    assert list(stored.rglob("report.html"))
    assert not (project.root / "mlruns" / "mlflow.db").exists()


def test_a_refused_password_is_named_and_the_training_is_kept(project: Any, server: Server) -> None:
    """One training, whose end is refused to three kinds of users and then allowed."""
    before, history = len(server.runs()), project.root / "data" / "model" / "history.json"

    def refused(sentence: str, *command: str, **environment: str) -> None:
        last = project.refused(*command, **environment).rstrip().splitlines()[-1]
        assert f": tracking.uri: MLflow at {server.uri} {sentence}. Nothing is lost" in last
        assert last.endswith("then run the same command again")
        assert len(server.runs()) == before

    names = "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
    train = ("ratchet", "train", "--set", "seed=2")
    refused(f"asks for a login, and {names} are not both set", *train, **PATIENT)
    trained = history.stat().st_ino
    register = project.stage("register")
    refused("does not know trainer with this password", *register, **server.environment("trainer", READER))
    reader = "does not allow this to reader (MLFLOW_TRACKING_USERNAME)"
    refused(reader, *register, **server.environment("reader", READER))

    project.good(*train, **server.environment("trainer", TRAINER))
    assert history.stat().st_ino == trained
    assert len(server.runs()) == before + 1


def test_no_password_is_written_anywhere(project: Any, server: Server) -> None:
    secrets = [secret.encode() for secret in (ADMIN, TRAINER, READER)]
    secrets += [base64.b64encode(b"trainer:" + secrets[1])]  # as it is sent
    places = [project.root, project.home, server.folder]
    written = [path for place in places for path in place.rglob("*") if path.is_file() and not path.is_symlink()]
    assert len(written) > 500
    assert [str(path) for path in written if any(secret in path.read_bytes() for secret in secrets)] == []
