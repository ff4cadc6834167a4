"""`up`, `down` and `status` with the real Prefect server, MLflow server and worker.

The servers are started once, over a project folder whose path has a space and a letter outside ASCII.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from ratchet import files
from ratchet.errors import PlatformError
from ratchet.platform import Addresses, PrefectServer, client_environment, down, servers, status, up
from ratchet.platform.condition import TITLES
from ratchet.platform.guard import marked
from ratchet.platform.processes import Part, free_port, port_holder
from ratchet.platform.record import Record
from ratchet.settings import override
from ratchet.settings.model import PlatformSettings
from ratchet.workspace import Workspace

REPOSITORY = Path(__file__).parents[2]
HOST = "127.0.0.1"
TRACKING = "sqlite:///mlruns/mlflow.db"

FLOW = '''
"""A flow with the real one's name and parameters: it answers at once, or stays until it is told to go."""
import os
import time

from prefect import flow, task

import tasks.place


@task
def ingest() -> str:
    return tasks.place.here()


@flow(name="train-flow")
def train_flow(overrides: dict[str, str] | None = None, revision: str | None = None) -> str:
    found = ingest()
    with open("ran.txt", "w", encoding="utf-8") as file:
        file.write(found)
    if overrides:
        try:
            open("waiting.txt", "w").close()
            while True:
                time.sleep(0.1)
        finally:
            with open("left.txt", "w", encoding="utf-8") as file:
                file.write("checkpoint")
    return found
'''


def make_project(root: Path) -> Workspace:
    (root / "flows").mkdir(parents=True)
    (root / "tasks").mkdir()
    (root / "flows" / "__init__.py").touch()
    (root / "tasks" / "__init__.py").touch()
    (root / "flows" / "train.py").write_text(FLOW)
    (root / "tasks" / "place.py").write_text("import os\n\n\ndef here() -> str:\n    return os.getcwd()\n")
    for name in ("params.yaml", "prefect.yaml", "tasks/progress.py"):
        shutil.copy(REPOSITORY / name, root / name)
    for name in ("alerts", "approve", "dvc_stage", "production", "server", "watch"):
        shutil.copy(REPOSITORY / "flows" / f"{name}.py", root / "flows" / f"{name}.py")
    return Workspace(root)


def free_settings() -> PlatformSettings:
    prefect, mlflow = free_port(HOST), free_port(HOST)
    return PlatformSettings(host=HOST, prefect_port=prefect, mlflow_port=mlflow)


def begin(
    workspace: Workspace, settings: PlatformSettings, say: Callable[[str], None] = lambda line: None
) -> Addresses:
    """`up`, with the shipped places of runs and files."""
    artifacts = (workspace.mlruns / "artifacts").as_uri()
    return up(workspace, settings, tracking_uri=TRACKING, artifacts=artifacts, say=say)


@pytest.fixture
def project(tmp_path: Path) -> Workspace:
    return make_project(tmp_path.resolve() / "my prøject")


@dataclass(frozen=True)
class Running:
    """The servers as `up` left them, and what it said."""

    workspace: Workspace
    settings: PlatformSettings
    addresses: Addresses
    said: list[str]
    home: Path

    def parts(self) -> dict[str, Part]:
        return Record.read(self.workspace).parts

    def up_again(self, say: Callable[[str], None]) -> Addresses:
        return begin(self.workspace, self.settings, say)


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("platform").resolve()
    workspace, settings, said = make_project(folder / "my prøject"), free_settings(), list[str]()
    override(workspace.params, {f"platform.{name}": value for name, value in settings.model_dump().items()})
    home = folder / "home"
    home.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        patch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")  # a person's own: `up` must not follow it
        addresses = begin(workspace, settings, said.append)
        try:
            yield Running(workspace, settings, addresses, said, home)
        finally:
            down(workspace, say=said.append)


def ask(url: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


def prefect(running: Running, *arguments: str) -> str:
    """Prefect's own command, as another shell in the project folder would run it: nothing exported."""
    command = [str(Path(sys.executable).with_name("prefect")), *arguments]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(running.home), "NO_COLOR": "1", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        command, cwd=running.workspace.root, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def flow_runs(running: Running) -> list[dict[str, Any]]:
    body = {"flow_runs": {"state": {"type": {"not_any_": ["SCHEDULED"]}}}, "sort": "START_TIME_DESC"}
    found: list[dict[str, Any]] = ask(f"{running.addresses.prefect_api}/flow_runs/filter", body)
    return found


def ratchet(running: Running, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "commands", *arguments]
    return subprocess.run(command, cwd=running.workspace.root, capture_output=True, text=True, check=False)


def states(running: Running) -> list[str]:
    return [server.state for server in status(running.workspace)]


def kill_command(part: Part) -> None:
    """The server or the worker itself; its keeper lives."""
    command = part.command()
    assert command is not None
    command.kill()


def ours(workspace: Workspace) -> list[psutil.Process]:
    """Every process that works in the project folder."""
    return [process for process in psutil.process_iter(["cwd"]) if process.info["cwd"] == str(workspace.root)]


def until(true: Callable[[], object]) -> None:
    while not true():
        time.sleep(0.1)


def tokens(workspace: Workspace) -> list[str]:
    return [part["token"] for part in files.read_json(workspace.state / "servers.json")["parts"]]


def test_up_answers_at_the_addresses_it_gives(running: Running) -> None:
    assert ask(f"{running.addresses.prefect_api}/health") is True
    found = ask(f"{running.addresses.mlflow}/api/2.0/mlflow/experiments/search", {"max_results": 5})
    place = (running.workspace.mlruns / "artifacts").as_uri()
    assert [experiment["artifact_location"].startswith(place) for experiment in found["experiments"]] == [True]
    assert (running.workspace.mlruns / "mlflow.db").is_file()
    assert [server.state for server in status(running.workspace)] == ["up", "up", "up"]
    for port in (running.settings.prefect_port, running.settings.mlflow_port):
        assert any(f":{port} (" in line for line in running.said)


def test_deployments_are_as_prefect_yaml_says(running: Running) -> None:
    assert running.addresses.deployments == (
        "approve-flow/local", "train-flow/local", "train-flow/nightly", "train-flow/on-drift",
    )  # fmt: skip
    wanted = {"flows": {"name": {"any_": ["train-flow"]}}}
    found = {d["name"]: d for d in ask(f"{running.addresses.prefect_api}/deployments/filter", wanted)}
    assert found["local"]["schedules"] == []
    [nightly] = found["nightly"]["schedules"]
    assert nightly["active"]
    assert (nightly["schedule"]["cron"], nightly["schedule"]["timezone"]) == ("0 2 * * *", "UTC")
    assert found["nightly"]["global_concurrency_limit"]["limit"] == 1
    assert [found[name]["parameters"].get("revision") for name in ("local", "nightly", "on-drift")] == [
        None,
        "HEAD",
        "HEAD",
    ]
    step = found["local"]["pull_steps"][0]["flows.production.project_or_revision"]
    assert step["project"] == str(running.workspace.root)
    assert "overrides" in found["local"]["parameter_openapi_schema"]["properties"]


def test_the_nightly_runs_are_really_scheduled(running: Running) -> None:
    """A cron line that the server reads but cannot act on looks the same on every page: only its runs show it works."""
    wanted = {"deployments": {"name": {"any_": ["nightly"]}}, "flow_runs": {"state": {"type": {"any_": ["SCHEDULED"]}}}}
    deadline = time.monotonic() + 90.0  # the scheduler's turn comes once a minute
    while not (count := ask(f"{running.addresses.prefect_api}/flow_runs/count", wanted)):
        assert time.monotonic() < deadline, (running.workspace.state / "logs" / "prefect.log").read_text()[-3000:]
        time.sleep(1.0)
    assert count >= 1


def test_a_deployment_run_from_another_shell_completes_in_the_project_folder(running: Running) -> None:
    prefect(running, "deployment", "run", "train-flow/local", "--watch", "--watch-interval", "1")
    assert flow_runs(running)[0]["state"]["type"] == "COMPLETED"
    assert (running.workspace.root / "ran.txt").read_text(encoding="utf-8") == str(running.workspace.root)


def test_a_container_of_another_pool_works_in_the_folder_that_its_image_names(running: Running, tmp_path: Path) -> None:
    """The command and the variables that it has there, and nothing else of this project's; no container is started."""
    text = (REPOSITORY / "deploy" / "Containerfile").read_text().partition("\nENV ")[2].partition("\n\n")[0]
    variables = dict(one.split("=") for one in text.replace("/project", str(running.workspace.root)).split(" \\\n    "))
    api, root = running.addresses.prefect_api, running.workspace.root
    found = ask(f"{api}/deployments/filter", {"deployments": {"name": {"any_": ["local"]}}})
    (deployment,) = [one["id"] for one in found if one["entrypoint"] == "flows/train.py:train_flow"]
    made = ask(f"{api}/deployments/{deployment}/create_flow_run", {"state": {"type": "PENDING"}})  # taken: by no worker
    (root / "ran.txt").unlink(missing_ok=True)
    variables |= {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PREFECT_API_URL": api, "LC_ALL": "C.UTF-8"}
    variables |= {"PREFECT__FLOW_RUN_ID": made["id"]}
    command = [str(Path(sys.executable).with_name("prefect")), "flow-run", "execute"]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ask(f"{api}/flow_runs/{made['id']}")["state"]["type"] == "COMPLETED"
    assert (root / "ran.txt").read_text(encoding="utf-8") == str(root)


def test_nothing_is_written_to_the_home_folder(running: Running) -> None:
    assert list(running.home.iterdir()) == []


def test_up_twice_starts_nothing_twice(running: Running) -> None:
    before, said = tokens(running.workspace), list[str]()
    again = running.up_again(said.append)
    assert tokens(running.workspace) == before
    assert again.prefect == running.addresses.prefect
    assert sum("already up" in line for line in said) == 3


def test_a_killed_worker_comes_back_and_its_run_gives_back_its_deployments_place(running: Running) -> None:
    left = running.workspace.root / "left.txt"
    prefect(running, "deployment", "run", "train-flow/nightly", "--param", 'overrides={"wait": "yes"}')
    until((running.workspace.root / "waiting.txt").exists)
    before = running.parts()
    kill_command(before["worker"])
    until(lambda: states(running) == ["up", "up", "restarting"])
    until(lambda: states(running) == ["up", "up", "up"])
    assert running.parts() == before
    assert [server.restarts for server in status(running.workspace)] == [0, 0, 1]
    assert flow_runs(running)[0]["state"]["type"] == "CRASHED"
    assert left.read_text() == "checkpoint"
    assert " was killed by signal 9: started again in 1 s" in before["worker"].log.read_text()
    prefect(running, "deployment", "run", "train-flow/nightly", "--watch", "--watch-interval", "1")
    assert flow_runs(running)[0]["state"]["type"] == "COMPLETED"


def test_killed_servers_answer_again_at_their_addresses(running: Running) -> None:
    before = running.parts()
    for name in ("prefect", "mlflow"):
        kill_command(before[name])
    until(lambda: states(running)[:2] == ["restarting", "restarting"])
    until(lambda: states(running) == ["up", "up", "up"])
    assert running.parts() == before
    assert ask(f"{running.addresses.prefect_api}/health") is True
    assert ask(f"{running.addresses.mlflow}/api/2.0/mlflow/experiments/search", {"max_results": 5})
    prefect(running, "deployment", "run", "train-flow/local", "--watch", "--watch-interval", "1")
    assert flow_runs(running)[0]["state"]["type"] == "COMPLETED"


def test_a_worker_that_prefects_server_does_not_hear_from_is_silent(running: Running) -> None:
    worker = running.parts()["worker"].command()
    assert worker is not None
    worker.suspend()
    try:
        # What a worker says that promises to speak every second: some seconds later it is late.
        api, name = running.addresses.prefect_api, servers.worker_name(running.workspace)
        said = {"name": name, "heartbeat_interval_seconds": 1}
        servers.call(api, "/work_pools/local/workers/heartbeat", said)
        until(lambda: states(running) == ["up", "up", "silent"])
        told = ratchet(running, "status")
        assert told.returncode == 1
        assert "worker: silent at " in told.stdout
    finally:
        worker.resume()
    until(lambda: states(running) == ["up", "up", "up"])
    told = ratchet(running, "status")
    assert told.returncode == 0
    assert re.search(r"worker: up for .* at http://.*, started again 1 time$", told.stdout, re.MULTILINE)


def test_a_server_whose_port_was_taken_meanwhile_waits_for_it(running: Running) -> None:
    part, port = running.parts()["mlflow"], running.settings.mlflow_port
    with socket.socket() as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kill_command(part)
        until(lambda: port_holder(HOST, port) is None)
        thief.bind((HOST, port))
        thief.listen()
        until(lambda: "ended by itself, exit status" in part.log.read_text())
        assert states(running)[1] == "restarting"
    until(lambda: states(running) == ["up", "up", "up"])
    assert "address already in use" in part.log.read_text()
    assert running.parts()["mlflow"] == part


def test_two_ups_at_once_start_anew_what_lost_its_keeper_and_nothing_twice(running: Running) -> None:
    before = running.parts()
    psutil.Process(before["mlflow"].pid).kill()
    until(lambda: states(running) == ["up", "down", "up"])
    assert marked(before["mlflow"].token)  # the server itself, which nobody looks after any more
    environment = os.environ | {"RATCHET_ROOT": str(running.workspace.root)}
    command = [sys.executable, "-m", "commands", "up"]
    both = [subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    after = running.parts()
    assert states(running) == ["up", "up", "up"]
    assert not marked(before["mlflow"].token)
    assert {name for name in TITLES if after[name] != before[name]} == {"mlflow"}
    found = [process.environ().get("RATCHET_PART") for process in ours(running.workspace)]
    assert set(found) == {part.token for part in after.values()}


def test_a_run_uses_the_server_that_is_up(running: Running) -> None:
    server = PrefectServer.begin(running.workspace)
    assert not server.private
    assert server.wait() == running.addresses.prefect_api
    server.stop()
    assert ask(f"{running.addresses.prefect_api}/health") is True


def test_a_run_uses_the_server_that_the_settings_name(running: Running, project: Workspace) -> None:
    server = PrefectServer.begin(project, api=running.addresses.prefect_api)
    assert not server.private
    assert server.wait() == running.addresses.prefect_api


def test_a_private_server_lives_as_long_as_the_run(project: Workspace) -> None:
    server = PrefectServer.begin(project)
    try:
        assert server.private
        api = server.wait()
        assert ask(f"{api}/health") is True
        assert client_environment(project, api)["PREFECT_HOME"].startswith(str(project.state))
    finally:
        server.stop()
    with pytest.raises(OSError, match="refused"):
        ask(f"{api}/health")
    assert (project.state / "prefect" / "prefect.db").is_file()


def test_a_taken_port_is_told_by_whom_and_nothing_is_started(project: Workspace) -> None:
    settings = free_settings()
    with socket.socket() as holder:
        holder.bind((HOST, settings.mlflow_port))
        holder.listen()
        with pytest.raises(PlatformError, match=r"platform\.mlflow_port: \d+ is taken by process") as told:
            begin(project, settings)
    assert f"process {os.getpid()} (" in str(told.value)
    assert "`ratchet set platform.mlflow_port=" in str(told.value)
    assert not (project.state / "servers.json").exists()
    assert not (project.root / "prefect.toml").exists()


def test_a_part_that_dies_shows_its_log_and_takes_the_others_along(project: Workspace) -> None:
    (project.root / "mlruns").mkdir()
    (project.root / "mlruns" / "mlflow.db").write_text("this is not a database, whatever its name may say")
    with pytest.raises(PlatformError, match="mlflow: ended while starting") as told:
        begin(project, free_settings())
    assert "file is not a database" in str(told.value)
    assert str(project.state / "logs" / "mlflow.log") in str(told.value)
    assert not (project.state / "servers.json").exists()
    assert not ours(project)


@pytest.mark.parametrize(
    ("api", "host"),
    [
        ("auto", "127.0.0.9"),
        ("http://127.0.0.1:4200/api", "127.0.0.1"),
        ("http://127.0.0.1:4201/api", None),  # another server on this machine
        ("https://127.0.0.1:4200/api", None),  # a proxy before it
        ("http://192.0.2.1:4200/api", None),
        ("http://nobody.invalid:4200/api", None),
    ],
)
def test_the_machine_that_has_the_named_address_is_the_one_that_starts_the_server(api: str, host: str | None) -> None:
    assert servers.own_host(PlatformSettings(host="127.0.0.9", prefect_api=api)) == host


def test_a_server_elsewhere_that_does_not_answer_is_named_and_nothing_is_started(project: Workspace) -> None:
    settings = free_settings().model_copy(update={"prefect_api": f"http://{HOST}:{free_port(HOST)}/api"})
    with pytest.raises(PlatformError, match=r"^platform\.prefect_api: http://127.* does not answer, .* start it there"):
        begin(project, settings)
    assert not (project.state / "servers.json").exists()
    assert not (project.root / "prefect.toml").exists()


def test_one_port_for_both_is_refused(project: Workspace) -> None:
    settings = PlatformSettings(host=HOST, prefect_port=45_000, mlflow_port=45_000)
    with pytest.raises(PlatformError, match="are both 45000"):
        begin(project, settings)


def test_down_spares_a_process_that_got_a_recorded_pid(project: Workspace) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True) as foreign:
        try:
            part = {"name": "prefect", "pid": foreign.pid, "created": 1.0, "token": "t", "address": "", "log": "x"}
            files.write_json(project.state / "servers.json", {"parts": [part], "deployed": ""})
            assert {server.state for server in status(project)} == {"down"}
            said: list[str] = []
            down(project, say=said.append)
            assert said == ["Prefect server: was gone"]
            assert foreign.poll() is None
        finally:
            foreign.kill()
    assert not (project.state / "servers.json").exists()


def test_a_damaged_record_is_named(project: Workspace) -> None:
    project.state.mkdir()
    (project.state / "servers.json").write_text('{"parts": [{"name": "prefect"}]')
    with pytest.raises(PlatformError, match=r"servers\.json: damaged"):
        down(project, say=lambda line: None)


def test_a_persons_own_prefect_toml_stays(project: Workspace) -> None:
    own = project.root / "prefect.toml"
    own.write_text('[api]\nurl = "http://elsewhere/api"\n')
    said: list[str] = []
    down(project, say=said.append)
    assert said == ["nothing is up"]
    assert "elsewhere" in own.read_text()


def test_a_second_folder_joins_the_server_that_its_settings_name(running: Running, project: Workspace) -> None:
    """Two clones on one machine with the same platform.prefect_api and the same port."""
    api, said = running.addresses.prefect_api, list[str]()
    settings = running.settings.model_copy(update={"prefect_api": api})
    override(project.params, {f"platform.{name}": value for name, value in settings.model_dump().items()})
    addresses = up(project, settings, tracking_uri="http://127.0.0.1:9", artifacts="", say=said.append)
    try:
        assert addresses.prefect_api == api
        assert f"Prefect server: {api} (platform.prefect_api; not ours to start)" in said
        assert list(Record.read(project).parts) == ["worker"]
        known = {worker["name"] for worker in ask(f"{api}/work_pools/local/workers/filter", {})}
        assert {servers.worker_name(project), servers.worker_name(running.workspace)} <= known
    finally:
        down(project, say=said.append)
    assert ask(f"{api}/health") is True


def test_a_second_folder_is_told_how_to_share_the_server(running: Running, project: Workspace) -> None:
    with pytest.raises(PlatformError, match=r"platform\.prefect_port: \d+ is taken by") as told:
        begin(project, running.settings)
    assert str(told.value).endswith(
        f"or share that server: `ratchet set platform.prefect_api={running.addresses.prefect_api}`"
    )
    assert not (project.state / "servers.json").exists()


def test_zz_down_leaves_no_process_and_no_settings_file(running: Running) -> None:
    """Last on purpose: it ends what the tests above share."""
    belonging, said = tokens(running.workspace), list[str]()
    assert all(marked(token) for token in belonging)
    assert (running.workspace.root / "prefect.toml").exists()
    down(running.workspace, say=said.append)
    assert not [pid for token in belonging for pid in marked(token)]
    assert not (running.workspace.root / "prefect.toml").exists()
    assert [server.state for server in status(running.workspace)] == ["down", "down", "down"]
    down(running.workspace, say=said.append)
    assert said[-1] == "nothing is up"
