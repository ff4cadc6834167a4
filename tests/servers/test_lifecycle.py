"""`up`, `down` and `status` with the real Prefect server, MLflow server and worker.

The servers are started once, over a project folder whose path has a space and a letter outside ASCII.
"""

import json
import re
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest
from ports import reserved_port
from waiting import until

from flows.server.client import prefect_client
from flows.server.lifecycle import Addresses, down, up
from flows.server.status import ServerStatus, service_state, status
from ratchet.errors import PlatformError
from ratchet.servers import PrefectServer
from ratchet.servers.ports import port_holder
from ratchet.servers.server_record import ServerRecord
from ratchet.servers.start import worker_name
from ratchet.servers.supervisor import Service, marked
from ratchet.settings import override
from ratchet.settings.model import Params, PlatformSettings, ServingSettings, TrackingSettings
from ratchet.workspace import Workspace

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]
HOST = "127.0.0.1"
OFF = ServingSettings(enabled=False)

FLOW = '''
"""A flow with the real one's name and parameters: it returns at once, or runs until it is ended."""
import os
import threading

from prefect import flow, task

import tasks.place


@task
def ingest() -> str:
    return tasks.place.here()


@flow(name="train-flow")
def train_flow(overrides: dict[str, str] | None = None, revision: str | None = None) -> str:
    folder = ingest()
    with open("ran.txt", "w", encoding="utf-8") as file:
        file.write(folder)
    if overrides:
        try:
            open("waiting.txt", "w").close()
            while True:
                threading.Event().wait(0.1)
        finally:
            with open("left.txt", "w", encoding="utf-8") as file:
                file.write("checkpoint")
    return folder
'''


def make_project(root: Path) -> Workspace:
    (root / "flows").mkdir(parents=True)
    (root / "tasks").mkdir()
    (root / "flows" / "__init__.py").touch()
    (root / "tasks" / "__init__.py").touch()
    (root / "flows" / "train.py").write_text(FLOW)
    (root / "tasks" / "place.py").write_text("import os\n\n\ndef here() -> str:\n    return os.getcwd()\n")
    for name in ("params.yaml", "prefect.yaml"):
        shutil.copy(REPOSITORY / name, root / name)
    for path in (*REPOSITORY.glob("flows/*.py"), *REPOSITORY.glob("tasks/*.py")):
        if not (copy := root / path.relative_to(REPOSITORY)).exists():
            shutil.copy(path, copy)
    shutil.copytree(REPOSITORY / "flows" / "server", root / "flows" / "server")
    return Workspace(root)


def free_settings() -> PlatformSettings:
    prefect, mlflow = reserved_port(HOST), reserved_port(HOST)
    return PlatformSettings(host=HOST, prefect_port=prefect, mlflow_port=mlflow)


def begin(
    workspace: Workspace, settings: PlatformSettings, say: Callable[[str], None] = lambda line: None
) -> Addresses:
    return up(workspace, Params(platform=settings, serving=OFF), say=say)


@pytest.fixture
def project(tmp_path: Path) -> Workspace:
    return make_project(tmp_path.resolve() / "my prøject")


@dataclass(frozen=True)
class Running:
    """The servers as `up` left them, and its output."""

    workspace: Workspace
    settings: PlatformSettings
    addresses: Addresses
    output: list[str]
    home: Path

    def services(self) -> dict[str, Service]:
        return ServerRecord.read(self.workspace).services

    def up_again(self, say: Callable[[str], None]) -> Addresses:
        return begin(self.workspace, self.settings, say)


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("platform").resolve()
    workspace, settings, output = make_project(folder / "my prøject"), free_settings(), list[str]()
    override(workspace.params, {f"platform.{name}": value for name, value in settings.model_dump().items()})
    home = folder / "home"
    home.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        patch.setenv("PREFECT_HOME", str(workspace.state / "prefect"))  # as `ratchet up` sets it for itself
        patch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")  # the user's own, which `up` must not use
        addresses = begin(workspace, settings, output.append)
        try:
            yield Running(workspace, settings, addresses, output, home)
        finally:
            down(workspace, say=output.append)


def ask(url: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})

    def answer() -> Any:
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return [json.load(response)]
        except urllib.error.HTTPError as error:
            if error.code != 503:  # SQLite is locked; Prefect's own client repeats the request too
                raise AssertionError(f"{url} answers {error.code}") from error
            return None

    return until(answer, pause=0.5)[0]


def begin_run(running: Running, deployment: str, **parameters: object) -> str:
    """Start a run of train-flow as the button on Prefect's page does. Return its id."""
    api = running.addresses.prefect_api
    identity = ask(f"{api}/deployments/name/train-flow/{deployment}")["id"]
    now = {"scheduled_time": datetime.now(UTC).isoformat()}
    body = {"parameters": parameters, "state": {"type": "SCHEDULED", "state_details": now}}
    return str(ask(f"{api}/deployments/{identity}/create_flow_run", body)["id"])


def end_of_run(running: Running, run: str) -> str:
    """Wait until a run has ended, and return the type of its state."""
    url, final = f"{running.addresses.prefect_api}/flow_runs/{run}", ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
    until(lambda: ask(url)["state"]["type"] in final, pause=0.5)
    return str(ask(url)["state"]["type"])


def ratchet(running: Running, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "commands", *arguments]
    return subprocess.run(command, cwd=running.workspace.root, capture_output=True, text=True, check=False)


def services(workspace: Workspace) -> list[ServerStatus]:
    """The status of all services but the model server, which these projects do not start."""
    return [server for server in status(workspace) if server.name != "serving"]


def states(running: Running) -> list[str]:
    return [server.state for server in services(running.workspace)]


def kill_command(service: Service) -> None:
    """Kill the server or the worker itself; its supervisor lives."""
    assert service.pid is not None
    psutil.Process(service.pid).kill()


def ours(workspace: Workspace) -> list[psutil.Process]:
    """Return every process whose working folder is the project."""
    return [process for process in psutil.process_iter(["cwd"]) if process.info["cwd"] == str(workspace.root)]


def marks(services: Iterable[Service]) -> list[str]:
    return [service.mark for service in services]


def pids(running: Running) -> dict[str, int | None]:
    return {name: service.pid for name, service in running.services().items()}


def test_servers_answer_at_the_addresses_of_up(running: Running) -> None:
    assert ask(f"{running.addresses.prefect_api}/health") is True
    answer = ask(f"{running.addresses.mlflow}/api/2.0/mlflow/experiments/search", {"max_results": 5})
    place = (running.workspace.mlruns / "artifacts").as_uri()
    assert [experiment["artifact_location"].startswith(place) for experiment in answer["experiments"]] == [True]
    assert (running.workspace.mlruns / "mlflow.db").is_file()
    assert [server.state for server in services(running.workspace)] == ["up", "up", "up"]
    for port in (running.settings.prefect_port, running.settings.mlflow_port):
        assert any(line.partition(f":{port}")[2][:2] in (" (", "/#") for line in running.output)


def test_deployments_match_prefect_yaml(running: Running) -> None:
    assert running.addresses.deployments == (
        "approve-flow/local", "monitor-flow/hourly", "score-flow/local", "search-flow/local",
        "search-worker-flow/local", "shard-worker-flow/local", "train-flow/local", "train-flow/nightly",
        "train-flow/on-drift",
    )  # fmt: skip
    wanted = {"flows": {"name": {"any_": ["train-flow"]}}}
    deployments = {d["name"]: d for d in ask(f"{running.addresses.prefect_api}/deployments/filter", wanted)}
    assert deployments["local"]["schedules"] == []
    [nightly] = deployments["nightly"]["schedules"]
    assert nightly["active"]
    assert (nightly["schedule"]["cron"], nightly["schedule"]["timezone"]) == ("0 2 * * *", "UTC")
    assert deployments["nightly"]["global_concurrency_limit"]["limit"] == 1
    assert [deployments[name]["parameters"].get("revision") for name in ("local", "nightly", "on-drift")] == [
        None,
        "HEAD",
        "HEAD",
    ]
    step = deployments["local"]["pull_steps"][0]["flows.revisions.project_or_revision"]
    assert step["project"] == str(running.workspace.root)
    assert "overrides" in deployments["local"]["parameter_openapi_schema"]["properties"]


def test_container_works_in_the_folder_that_its_image_names(running: Running, tmp_path: Path) -> None:
    """Run the container's command with only its variables; no container is started."""
    text = (REPOSITORY / "deploy" / "Containerfile").read_text().partition("\nENV ")[2].partition("\n\n")[0]
    variables = dict(
        pair.split("=") for pair in text.replace("/project", str(running.workspace.root)).split(" \\\n    ")
    )
    api, root = running.addresses.prefect_api, running.workspace.root
    known = ask(f"{api}/deployments/filter", {"deployments": {"name": {"any_": ["local"]}}})
    (deployment,) = [each["id"] for each in known if each["entrypoint"] == "flows/train.py:train_flow"]
    created = ask(
        f"{api}/deployments/{deployment}/create_flow_run", {"state": {"type": "PENDING"}}
    )  # so that no worker takes it
    (root / "ran.txt").unlink(missing_ok=True)
    variables |= {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PREFECT_API_URL": api, "LC_ALL": "C.UTF-8"}
    variables |= {"PREFECT__FLOW_RUN_ID": created["id"]}
    command = [str(Path(sys.executable).with_name("prefect")), "flow-run", "execute"]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ask(f"{api}/flow_runs/{created['id']}")["state"]["type"] == "COMPLETED"
    assert (root / "ran.txt").read_text(encoding="utf-8") == str(root)


def test_nothing_is_written_to_the_home_folder(running: Running) -> None:
    assert list(running.home.iterdir()) == []


def test_up_twice_starts_nothing_twice(running: Running) -> None:
    before, output = running.services(), list[str]()
    again = running.up_again(output.append)
    assert running.services() == before
    assert again.prefect == running.addresses.prefect
    assert sum("already up" in line for line in output) == 3


def test_worker_without_heartbeats_is_silent(running: Running) -> None:
    worker = psutil.Process(running.services()["worker"].pid)
    worker.suspend()
    try:
        # A heartbeat of a worker that promises one every second: some seconds later it is late.
        api, name = running.addresses.prefect_api, worker_name(running.workspace)
        with prefect_client(api) as client:
            client.send_worker_heartbeat("local", name, heartbeat_interval_seconds=1)
        until(lambda: states(running) == ["up", "up", "silent"])
        done = ratchet(running, "status")
        assert done.returncode == 1
        assert "worker: silent at " in done.stdout
        with prefect_client(api) as client:
            client.send_worker_heartbeat("local", name, heartbeat_interval_seconds=30)
        done = ratchet(running, "status")
        assert done.returncode == 0
        assert re.search(r"worker: up for .* at http://.*$", done.stdout, re.MULTILINE)
    finally:
        worker.resume()


def test_worker_is_up_after_the_clock_was_set_back(running: Running) -> None:
    """The record then has a start that is still to come, by the clock of now."""
    until(lambda: states(running) == ["up", "up", "up"])
    record = ServerRecord.read(running.workspace)
    worker = replace(record.services["worker"], began=record.services["worker"].began + 3600)
    assert service_state(running.workspace, record, worker) == "up"


def test_up_restarts_only_the_silent_server(running: Running) -> None:
    before, output = running.services(), list[str]()
    psutil.Process(before["mlflow"].pid).suspend()
    running.up_again(output.append)
    assert f"MLflow server: process {before['mlflow'].pid} does not answer; restarting it" in output
    assert {name for name, pid in pids(running).items() if pid != before[name].pid} == {"mlflow"}
    assert states(running) == ["up", "up", "up"]


def test_killed_services_restart_at_their_addresses(running: Running) -> None:
    """The worker first, whose run frees its deployment's only slot; then both servers, one of whose ports is taken."""
    killed = begin_run(running, "nightly", overrides={"wait": "yes"})
    until((running.workspace.root / "waiting.txt").exists)
    before = running.services()
    kill_command(before["worker"])
    until(lambda: states(running) == ["up", "up", "restarting"])
    until(lambda: states(running) == ["up", "up", "up"])
    assert {name for name, pid in pids(running).items() if pid != before[name].pid} == {"worker"}
    assert running.services()["worker"].restarts == before["worker"].restarts + 1
    assert end_of_run(running, killed) == "CRASHED"
    assert (running.workspace.root / "left.txt").read_text() == "checkpoint"
    assert " was killed by signal 9: restart in 1 s" in Path(before["worker"].log).read_text()

    worker, port = pids(running)["worker"], running.settings.mlflow_port
    with socket.socket() as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        for name in ("prefect", "mlflow"):
            kill_command(before[name])
        until(lambda: port_holder(HOST, port) is None)
        thief.bind((HOST, port))
        thief.listen()
        until(lambda: "ended by itself, exit status" in Path(before["mlflow"].log).read_text())
        assert states(running)[1] == "restarting"
    until(lambda: states(running) == ["up", "up", "up"])
    assert "address already in use" in Path(before["mlflow"].log).read_text()
    assert pids(running)["worker"] == worker
    assert ask(f"{running.addresses.mlflow}/api/2.0/mlflow/experiments/search", {"max_results": 5})
    assert end_of_run(running, begin_run(running, "nightly")) == "COMPLETED"


def test_up_refuses_other_services_than_the_running_ones(running: Running) -> None:
    before, tracking = running.services(), TrackingSettings(uri="http://127.0.0.1:9")
    with pytest.raises(PlatformError, match=r"ask for prefect, worker .* Fix: `ratchet down`, then `ratchet up`"):
        up(running.workspace, Params(platform=running.settings, tracking=tracking, serving=OFF), say=print)
    assert running.services() == before


def test_run_uses_the_server_that_is_up(running: Running) -> None:
    server = PrefectServer.begin(running.workspace)
    assert not server.private
    assert server.wait() == running.addresses.prefect_api
    server.stop()
    assert ask(f"{running.addresses.prefect_api}/health") is True


def test_run_uses_the_server_that_the_settings_name(running: Running, project: Workspace) -> None:
    server = PrefectServer.begin(project, PlatformSettings(prefect_api=running.addresses.prefect_api))
    assert not server.private
    assert server.wait() == running.addresses.prefect_api


def test_failed_start_shows_the_log_and_stops_the_others(running: Running, project: Workspace) -> None:
    (project.root / "mlruns").mkdir()
    (project.root / "mlruns" / "mlflow.db").write_text("this is not a database, whatever its name may say")
    with pytest.raises(PlatformError, match="mlflow: ended while starting") as caught:
        begin(project, free_settings().model_copy(update={"prefect_api": running.addresses.prefect_api}))
    assert "file is not a database" in str(caught.value)
    assert str(project.state / "logs" / "mlflow.log") in str(caught.value)
    assert not (project.state / "servers.json").exists()
    assert not ours(project)


def test_second_folder_joins_the_server_that_its_settings_name(running: Running, project: Workspace) -> None:
    """Two clones on one machine with the same platform.prefect_api and the same port."""
    api, output = running.addresses.prefect_api, list[str]()
    settings = running.settings.model_copy(update={"prefect_api": api})
    override(project.params, {f"platform.{name}": value for name, value in settings.model_dump().items()})
    params = Params(platform=settings, tracking=TrackingSettings(uri="http://127.0.0.1:9"), serving=OFF)
    addresses = up(project, params, say=output.append)
    try:
        assert addresses.prefect_api == api
        assert f"Prefect server: {api} (platform.prefect_api; not ours to start)" in output
        assert list(ServerRecord.read(project).services) == ["worker"]
        known = {worker["name"] for worker in ask(f"{api}/work_pools/local/workers/filter", {})}
        assert {worker_name(project), worker_name(running.workspace)} <= known
    finally:
        down(project, say=output.append)
    assert ask(f"{api}/health") is True


def test_second_folder_learns_how_to_share_the_server(running: Running, project: Workspace) -> None:
    with pytest.raises(PlatformError, match=r"platform\.prefect_port: \d+ is taken by") as caught:
        begin(project, running.settings)
    assert str(caught.value).endswith(
        f"or share that server: `ratchet set platform.prefect_api={running.addresses.prefect_api}`"
    )
    assert not (project.state / "servers.json").exists()


def test_zz_down_leaves_no_process_and_no_settings_file(running: Running) -> None:
    """Last on purpose: it stops the servers that the tests above share."""
    belonging, output = marks(running.services().values()), list[str]()
    assert all(map(marked, belonging))
    assert (running.workspace.root / "prefect.toml").exists()
    down(running.workspace, say=output.append)
    assert not any(map(marked, belonging))
    assert not (running.workspace.root / "prefect.toml").exists()
    assert [server.state for server in services(running.workspace)] == ["down", "down", "down"]
    down(running.workspace, say=output.append)
    assert output[-1] == "nothing is up"
