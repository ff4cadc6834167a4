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
def project(new_project: Callable[[str], Any], use_small_net: Callable[[Any], None], server: Server) -> Any:
    project = new_project("password")
    use_small_net(project)
    port = reserved_port(HOST)
    known = (f"tracking.uri={server.uri}", f"platform.prefect_port={port}", "gate.minimum=0.0", "serving.enabled=false")
    project.good("ratchet", "set", *known)
    return project


def test_what_a_known_user_trains_lands_there(project: Any, server: Server) -> None:
    project.good("ratchet", "train", **server.environment("trainer", TRAINER))
    assert json.loads((project.root / "data" / "registration.json").read_text())["version"] == "1"
    (run,) = server.runs()
    assert run["info"]["status"] == "FINISHED"
    assert "validation/accuracy" in {metric["key"] for metric in run["data"]["metrics"]}
    stored = server.folder / "files" / run["info"]["experiment_id"]
    assert list(stored.rglob("model.safetensors"))
    assert list(stored.rglob("report.html"))
    assert not (project.root / "mlruns" / "mlflow.db").exists()


def test_so_does_what_the_worker_trains(project: Any, server: Server) -> None:
    environment = server.environment("trainer", TRAINER)
    try:
        assert f"MLflow server: {server.uri} (tracking.uri; not ours to start)" in project.good(
            "ratchet", "up", **environment
        )
        run = ("prefect", "deployment", "run", "train-flow/local", "--param", 'overrides={"seed": 1}', "--watch")
        assert "COMPLETED" in project.good(*run).upper()
    finally:
        project.good("ratchet", "down")
    assert [run["info"]["status"] for run in server.runs()] == ["FINISHED"] * 2


@pytest.mark.parametrize(
    ("seed", "environment", "sentence"),
    [
        (2, PATIENT, "asks for a login, and MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD are not both set"),
        (3, Server.environment("trainer", READER), "does not know trainer with this password"),
        (4, Server.environment("reader", READER), "does not allow this to reader (MLFLOW_TRACKING_USERNAME)"),
    ],
)
def test_a_wrong_password_is_named_and_the_training_is_kept(
    seed: int, environment: dict[str, str], sentence: str, project: Any, server: Server
) -> None:
    before = len(server.runs())
    done = project.run("ratchet", "train", "--set", f"seed={seed}", **environment)
    assert (done.returncode, "Traceback" in done.stdout) == (1, False), done.stdout
    last = done.stdout.rstrip().splitlines()[-1]
    assert last.startswith(f"ratchet: tracking.uri: MLflow at {server.uri} {sentence}. Nothing is lost"), done.stdout
    assert last.endswith("then run the same command again")
    assert len(server.runs()) == before

    history = (project.root / "data" / "model" / "history.json").stat()
    project.good("ratchet", "train", "--set", f"seed={seed}", **server.environment("trainer", TRAINER))
    assert (project.root / "data" / "model" / "history.json").stat().st_ino == history.st_ino
    assert len(server.runs()) == before + 1


def test_no_password_is_written_anywhere(project: Any, server: Server) -> None:
    secrets = [secret.encode() for secret in (ADMIN, TRAINER, READER)]
    secrets += [base64.b64encode(b"trainer:" + secrets[1])]  # as it is sent
    places = [project.root, project.home, server.folder]
    written = [path for place in places for path in place.rglob("*") if path.is_file() and not path.is_symlink()]
    assert len(written) > 500
    assert [str(path) for path in written if any(secret in path.read_bytes() for secret in secrets)] == []
