"""The run of a killed process is closed, however it was started; others are left alone. On a real Prefect server."""

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.states import Completed, Running

from flows import shards
from flows.run_records import close_dead_runs
from flows.server.client import prefect_client
from ratchet import this_machine as machines
from ratchet.errors import PlatformError
from ratchet.scale.calls import ShardCall
from ratchet.scale.result_folder import ResultFolder
from ratchet.servers import client_environment, prefect_server
from ratchet.servers.http import answers
from ratchet.servers.server_record import ServerRecord
from ratchet.servers.supervisor import started_at
from ratchet.workspace import Workspace

pytestmark = pytest.mark.system
REPOSITORY = Path(__file__).parents[2]
RUNS = """
import sys
from pathlib import Path

from prefect import flow

from flows.run_records import record_run
from ratchet.workspace import Workspace


@flow(name="train-flow")
def train_flow() -> None:
    record_run(Workspace(Path(sys.argv[1])))
    print("running", flush=True)
    sys.stdin.readline()


train_flow()
"""

STOPS = """
import sys

from filelock import FileLock
from prefect import flow

from flows.cancelled_runs import ended_by
from tasks.stopping import TrainingStopped


@flow(name="train-flow")
def train_flow():
    return ended_by(TrainingStopped("stopped at step 4 of 9"))


print(train_flow(return_state=True).name)
with FileLock(sys.argv[1]):
    state = train_flow(return_state=True)
print(state.name, state.type.value, state.message)
"""

ENDED = """
import os, signal, sys

from filelock import FileLock

from flows import approve, monitor, score, search, shards, train


def end(*_, **__):
    os.kill(os.getpid(), signal.SIGTERM)


train._load_data = search.require_references = score.absolute = end  # the first work of each
shards._take_shards = approve.ModelRegistry = monitor.monitoring.monitor_of = search.join_task = end
with FileLock(sys.argv[1]):
    for flow, arguments in [
        (train.train_flow, ()), (search.search_flow, ()), (monitor.monitor_flow, ()), (score.score_flow, ("a", "b")),
        (approve.approve_flow, ("a/1", "ann", "good")), (search.search_worker_flow, ("study",)),
        (shards.shard_worker_flow, ("a", "job", "digest")),
    ]:
        state = flow(*arguments, return_state=True)
        print(flow.name, state.name, state.message)
"""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def api(workspace: Workspace) -> Iterator[str]:
    with prefect_server(workspace) as url:
        yield url
    assert not answers(f"{url}/health")  # it lives as long as the run


def test_private_server_keeps_its_files_in_the_workspace(workspace: Workspace, api: str) -> None:
    assert answers(f"{api}/health")
    assert ServerRecord.read(workspace).api is None  # it is not the one of `ratchet up`
    assert client_environment(workspace, api)["PREFECT_HOME"].startswith(str(workspace.state))
    assert (workspace.state / "prefect" / "prefect.db").is_file()


def begin(workspace: Workspace, api: str) -> "subprocess.Popen[str]":
    """Start a run in a process of its own, as `ratchet train` does, and wait until it works."""
    path = f"{REPOSITORY / 'src'}:{REPOSITORY}"
    environment = os.environ | client_environment(workspace, api) | {"PYTHONPATH": path}
    command = [sys.executable, "-c", RUNS, str(workspace.root)]
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    return process


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Set the clock an hour forward, as psutil sees it: by Linux's time of the boot, which moves with the clock."""
    before = psutil.boot_time()
    return lambda: monkeypatch.setattr(psutil._psplatform, "boot_time", lambda: before + 3600)


def test_only_the_run_of_a_killed_process_is_closed(workspace: Workspace, api: str) -> None:
    killed, working = begin(workspace, api), begin(workspace, api)
    with killed, working, prefect_client(api) as client:
        assert list(close_dead_runs(client, workspace)) == []
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        [line] = close_dead_runs(client, workspace)
        assert line.endswith("was Running, now Crashed")
        assert sorted(str(run.state_name) for run in client.read_flow_runs()) == ["Crashed", "Running"]
        assert list(close_dead_runs(client, workspace)) == []
        working.communicate("\n")
        assert sorted(str(run.state_name) for run in client.read_flow_runs()) == ["Completed", "Crashed"]
    assert list((workspace.state / "runs").iterdir()) == []


def test_only_runs_of_this_machine_are_closed(workspace: Workspace, api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its name is now; other machines may share the folder."""
    own = {"machine": "here", "machine_id": "1" * 32, "boot_id": "now"}
    other = {"machine_id": "4" * 32, "boot_id": "other"}
    monkeypatch.setattr(machines, "this_machine", lambda: own)
    with begin(workspace, api) as killed, prefect_client(api) as client:
        killed.kill()
        killed.wait()
        [path] = (workspace.state / "runs").iterdir()
        record, run = json.loads(path.read_text()) | own, uuid.UUID(path.stem)
        for changed, is_closed in [
            (other | {"machine": "other"}, False),
            (other, False),  # of the same name
            ({"machine": "renamed", "boot_id": "earlier", "machine_id": ""}, False),  # perhaps of another machine
            ({"machine": "renamed"}, True),  # or a new container
            ({"machine": "renamed", "boot_id": "earlier"}, True),
            ({"boot_id": "earlier", "machine_id": ""}, True),  # a container of the same name, after a reboot
        ]:
            path.write_text(json.dumps(record | changed))
            client.set_flow_run_state(run, Running(), force=True)
            lines = [line.rpartition(", ")[2] for line in close_dead_runs(client, workspace)]
            assert lines == ["now Crashed"] * is_closed, changed


def test_living_run_in_another_container_stays(workspace: Workspace, api: str) -> None:
    """Its process has a number that only its container knows."""
    with begin(workspace, api) as working, prefect_client(api) as client:
        [path] = (workspace.state / "runs").iterdir()
        path.write_text(json.dumps(json.loads(path.read_text()) | {"machine": "container", "began": 0.0}))
        assert list(close_dead_runs(client, workspace)) == []
        working.kill()
        working.wait()
        assert len(list(close_dead_runs(client, workspace))) == 1


def test_deleted_and_completed_runs_are_lost_while_shards_wait(api: str, tmp_path: Path) -> None:
    """A worker that does not see the folder of results completes at once, with no shard."""
    calls = [ShardCall("json:loads", "1", "key", str(tmp_path))]
    with prefect_client(api) as client:
        flow = client.create_flow_from_name("shard-worker-flow")
        deployment = client.create_deployment(flow, "local")
        ended = [client.create_flow_run_from_deployment(deployment, state=Completed(message="0")) for _ in range(3)]
        runs = [FlowRun(id=uuid.uuid4(), flow_id=flow), *ended]
        with pytest.raises(PlatformError, match=r"4 runs of .* ended before their shards did\. The last: 0"):
            list(shards._results(client, ResultFolder(str(tmp_path)), "job-a", calls, 1, runs))


def test_living_run_stays_when_the_clock_is_set(workspace: Workspace, api: str, set_clock: Callable[[], None]) -> None:
    with begin(workspace, api) as working, prefect_client(api) as client:
        set_clock()
        assert list(close_dead_runs(client, workspace)) == []
        working.communicate("\n")


def test_servers_are_known_when_the_clock_is_set(tmp_path: Path, set_clock: Callable[[], None]) -> None:
    record = ServerRecord(tmp_path / "servers.json", os.getpid(), started_at(os.getpid()))
    set_clock()
    assert record.alive()


def during_down(workspace: Workspace, api: str, program: str) -> list[str]:
    """Return the lines of a program that runs flows and gets the path of the lock that `ratchet down` holds."""
    workspace.params.write_bytes((REPOSITORY / "params.yaml").read_bytes())
    path = f"{REPOSITORY / 'src'}:{REPOSITORY}"
    variables = {"PYTHONPATH": path, "RATCHET_ROOT": str(workspace.root)}
    environment = os.environ | client_environment(workspace, api) | variables
    command = [sys.executable, "-c", program, str(workspace.state / "platform.lock")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()


def test_run_that_ratchet_down_ends_is_stopped(workspace: Workspace, api: str) -> None:
    """It is not Failed, for which an alert is sent. Prefect retries only runs of deployments."""
    by_a_signal, by_down = during_down(workspace, api, STOPS)
    assert by_a_signal == "Failed"
    again = "To continue: `ratchet up`, then start it again as before"
    assert by_down == f"Stopped FAILED stopped at step 4 of 9. {again}"


def test_every_flow_that_ratchet_down_ends_is_stopped(workspace: Workspace, api: str) -> None:
    """At any place, not only in a training, which ends by itself after a checkpoint."""
    lines = during_down(workspace, api, ENDED)
    again = "To continue: `ratchet up`, then start it again as before"
    flows = ["train", "search", "monitor", "score", "approve", "search-worker", "shard-worker"]
    assert lines == [f"{name}-flow Stopped stopped by `ratchet down`. {again}" for name in flows]


def test_run_that_died_during_ratchet_down_is_stopped(workspace: Workspace, api: str) -> None:
    """No alert is sent for it, as for one that the worker had not begun."""
    with begin(workspace, api) as killed, prefect_client(api) as client:
        killed.kill()
        killed.wait()
        [line] = close_dead_runs(client, workspace, down=True)
        assert line.endswith("was Running, now Stopped")
