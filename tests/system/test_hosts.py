"""Three hosts at one work pool: network namespaces on a bridge, each with a name, a clone and a home folder of its own.

Host 0 has the servers, and a worker too; the others find them by platform.prefect_api. Processes and clocks are one
machine's.
"""

import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from waiting import until

from ratchet.servers.http import read_json
from ratchet.servers.server_record import ServerRecord

pytestmark = pytest.mark.slow

NETWORK, COUNT = "10.213.77", 3
PASSWORD = f"team:{'open'}-{'sesame':>012}"  # Prefect's server's; nowhere whole, in no source either
API = f"http://{NETWORK}.1:4200/api"
ENVIRONMENT = {
    "AWS_ENDPOINT_URL": f"http://{NETWORK}.1:9000",
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    "PREFECT_API_AUTH_STRING": PASSWORD,
}
SQL = """
import json, sys
from sqlalchemy import create_engine, text
with create_engine(sys.argv[1], isolation_level="AUTOCOMMIT").connect() as connection:
    for statement in sys.argv[2:]:
        done = connection.execute(text(statement))
        print(json.dumps(list(done.scalars()) if done.returns_rows else None))
"""


@cache
def thread_in(namespace: str) -> ThreadPoolExecutor:
    """Return a thread of this process that is in a network namespace: a new process for each request takes seconds."""

    def enter() -> None:
        with open(f"/run/netns/{namespace}") as file:
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0):
                raise OSError(ctypes.get_errno(), f"setns {namespace}")

    return ThreadPoolExecutor(1, initializer=enter)


@dataclass(frozen=True)
class Host:
    """One simulated machine."""

    number: int
    namespace: str
    project: Any = None

    @property
    def address(self) -> str:
        return f"{NETWORK}.{self.number + 1}"

    @property
    def inside(self) -> tuple[str, ...]:
        """Prefix of a command that runs there, under the host's name."""
        name = ("unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', f"host-{self.number}")
        return ("ip", "netns", "exec", self.namespace, *name)

    @property
    def worker(self) -> str:
        """Name of its worker in the pool."""
        return f"host-{self.number}:{str(self.project.root).strip('/').replace('/', '-')}"

    def run(self, *command: str) -> "subprocess.CompletedProcess[str]":
        done: subprocess.CompletedProcess[str] = self.project.run(*self.inside, *command, **ENVIRONMENT)
        return done

    def good(self, *command: str) -> str:
        output: str = self.project.good(*self.inside, *command, **ENVIRONMENT)
        return output

    def ask(self, path: str, body: object) -> Any:
        """Send a request to Prefect's server from there."""
        request = partial(read_json, API + path, body, timeout=30.0, credentials=PASSWORD)
        return thread_in(self.namespace).submit(request).result()


@pytest.fixture(scope="module")
def namespaces() -> Iterator[list[Host]]:
    """Hosts that can reach each other, and nothing else."""
    if not all(map(shutil.which, ("ip", "unshare", "hostname"))):
        pytest.skip("ip, unshare or hostname, by which hosts are simulated, is not on this machine")
    hosts = [Host(number, f"ratchet-{os.getpid()}-{number}") for number in range(COUNT)]
    first, *others = hosts

    def ip(*command: str) -> None:
        subprocess.run(["ip", *command], check=True, capture_output=True, text=True)

    try:
        for host in hosts:
            ip("netns", "add", host.namespace)
            ip("-n", host.namespace, "link", "set", "lo", "up")
        ip("-n", first.namespace, "link", "add", "bridge", "type", "bridge")
        ip("-n", first.namespace, "address", "add", f"{first.address}/24", "dev", "bridge")
        ip("-n", first.namespace, "link", "set", "bridge", "up")
        for host in others:
            port = f"port{host.number}"
            peer = ("peer", "name", port, "netns", first.namespace)
            ip("link", "add", "net", "netns", host.namespace, "type", "veth", *peer)
            ip("-n", first.namespace, "link", "set", port, "master", "bridge", "up")
            ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", "net")
            ip("-n", host.namespace, "link", "set", "net", "up")
        subprocess.run([*others[0].inside, "true"], check=True, capture_output=True, text=True)
        yield hosts
    except subprocess.CalledProcessError as error:
        pytest.skip(f"hosts cannot be simulated here: network namespaces are refused ({error.stderr.strip()})")
    finally:
        for host in hosts:
            subprocess.run(["ip", "netns", "delete", host.namespace], check=False, capture_output=True)


def serve_s3(host: Host, folder: Path) -> "subprocess.Popen[bytes]":
    """A server that speaks S3, with the bucket that all hosts share."""
    command = [sys.executable, "-m", "moto.server", "-H", host.address, "-p", "9000"]
    with (folder / "s3.log").open("wb") as log:
        process = subprocess.Popen([*host.inside, *command], stdout=log, stderr=log)
    inside = thread_in(host.namespace)
    until(
        lambda: not inside.submit(socket.create_connection, (host.address, 9000)).result().close(),
        process=process,
        log=folder / "s3.log",
    )
    host.good(sys.executable, "-c", "import boto3; boto3.client('s3').create_bucket(Bucket='models')")
    return process


@pytest.fixture(scope="module")
def hosts(
    namespaces: list[Host],
    new_project: Callable[[str], Any],
    use_small_net: Callable[[Any], None],
    postgres_on: Callable[..., Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[list[Host]]:
    """All up: one project, cloned to a folder of another name on each host."""
    folder = tmp_path_factory.mktemp("hosts").resolve()
    project = new_project("zero")
    use_small_net(project)
    first = Host(0, namespaces[0].namespace, project)
    with ExitStack() as stack:
        databases = stack.enter_context(postgres_on(first.address, first.inside))
        access = databases.folder / "data" / "pg_hba.conf"
        access.write_text(f"host all all {NETWORK}.0/24 trust\n{access.read_text()}")
        databases.control("reload")
        store = serve_s3(first, folder)
        stack.callback(store.wait)
        stack.callback(store.kill)
        create = [f"CREATE DATABASE {name}" for name in ("prefect", "mlflow", "ledger")]
        first.good(sys.executable, "-c", SQL, databases.uri, *create)
        at = databases.uri.removesuffix("/postgres")
        project.good(
            "ratchet",
            "set",
            f"platform.prefect_api={API}",
            f"platform.prefect_database={at}/prefect",
            f"tracking.uri={at}/mlflow",
            "tracking.artifacts=s3://models/mlflow",
            f"registry.ledger={at}/ledger",
            "gate.minimum=0.0",
            "gate.champion=not-worse",
            "gate.tolerance=0.99",
            "gate.slice_tolerance=0.99",
            "gate.latency_factor=0.0",
            "evaluation.explained_errors=0",
            "serving.enabled=false",
        )
        project.good("dvc", "remote", "add", "--default", "team", "s3://models/dvc")
        project.good("git", "add", "--all")
        project.good("git", "commit", "--quiet", "--message=the team's servers")
        clones = [(host, project.clone(folder / f"clone-{host.number}")) for host in namespaces[1:]]
        hosts = [first, *(Host(host.number, host.namespace, clone) for host, clone in clones)]
        for host in hosts:
            stack.callback(host.run, "ratchet", "down")
            host.good("ratchet", "up")
        yield hosts


def begin(hosts: list[Host], **training: object) -> set[str]:
    """As many runs as there are hosts, all at once; their ids."""
    deployments = hosts[0].ask("/deployments/filter", {"deployments": {"name": {"any_": ["local"]}}})
    (deployment,) = [
        deployment["id"] for deployment in deployments if deployment["entrypoint"] == "flows/train.py:train_flow"
    ]
    ids = set()
    for seed in range(len(hosts)):
        overrides = {"seed": seed, "training": training} if training else {"seed": seed}
        body = {"state": {"type": "SCHEDULED"}, "parameters": {"overrides": overrides}}
        ids.add(hosts[0].ask(f"/deployments/{deployment}/create_flow_run", body)["id"])
    return ids


def read(hosts: list[Host], ids: set[str]) -> dict[str, dict[str, Any]]:
    """The runs, by the name of the worker that took each."""
    runs = hosts[0].ask("/flow_runs/filter", {"flow_runs": {"id": {"any_": sorted(ids)}}})
    return {run["labels"].get("prefect.worker.name", f"no worker: {run['id']}"): run for run in runs}


def states(hosts: list[Host], ids: set[str]) -> list[str]:
    """Of the runs that the hosts' workers took, in the hosts' order."""
    runs = read(hosts, ids)
    return [runs[host.worker]["state"]["type"] if host.worker in runs else "" for host in hosts]


def test_up_starts_on_each_host_what_belongs_there(hosts: list[Host]) -> None:
    parts = [set(ServerRecord.read(host.project.workspace).services) for host in hosts]
    assert parts == [{"prefect", "mlflow", "worker"}, {"worker"}, {"worker"}]
    output = hosts[1].good("ratchet", "status")
    assert f"Prefect server: elsewhere, {API}\n" in output
    assert "worker: up for " in output
    again = hosts[1].good("ratchet", "up")
    assert f"Prefect server: {API} (platform.prefect_api; not ours to start)" in again
    assert "deployments:" not in again
    workers = hosts[0].ask("/work_pools/local/workers/filter", {})
    assert {worker["name"] for worker in workers} == {host.worker for host in hosts}


def test_each_host_takes_a_run_and_versions_are_registered_once(hosts: list[Host]) -> None:
    ids = begin(hosts)
    until(lambda: not {"", "SCHEDULED", "PENDING", "RUNNING"} & set(states(hosts, ids)))
    assert states(hosts, ids) == ["COMPLETED"] * COUNT
    runs = list(read(hosts, ids).values())
    assert max(run["start_time"] for run in runs) < min(run["end_time"] for run in runs)
    registered = [json.loads((host.project.root / "data" / "registration.json").read_text()) for host in hosts]
    assert sorted(registration["version"] for registration in registered) == ["1", "2", "3"]
    assert len({registration["run_id"] for registration in registered}) == COUNT
    at = hosts[0].project.workspace.params.read_text().partition("ledger: ")[2].split()[0]
    assert json.loads(hosts[0].good(sys.executable, "-c", SQL, at, "SELECT what FROM ledger")).count("register") == 3


def suspend_runs(host: Host) -> list[psutil.Process]:
    """Suspend the runs of a host's worker, as a debugger does: they live, and are no zombies."""
    processes = psutil.Process(worker_of(host).pid).children(recursive=True)
    for process in processes:
        process.suspend()
    return processes


def worker_of(host: Host) -> Any:
    return ServerRecord.read(host.project.workspace).services["worker"]


def test_runs_of_killed_workers_and_lost_machines_are_settled(hosts: list[Host]) -> None:
    """The runs of the others go on, those that are suspended too. The settings of a killed run are taken back."""
    hosts[0].good("ratchet", "set", "platform.lost_after=60")
    params = hosts[1].project.workspace.params
    before = params.read_bytes()
    ids = begin(hosts, epochs=20, checkpoint_steps=0)
    until(lambda: states(hosts, ids) == ["RUNNING"] * COUNT, pause=0.2)
    stalled = [suspend_runs(hosts[0]), suspend_runs(hosts[2])]
    os.kill(worker_of(hosts[1]).pid, signal.SIGKILL)
    until(lambda: states(hosts, ids)[1] == "CRASHED")
    assert states(hosts, ids) == ["RUNNING", "CRASHED", "RUNNING"]
    until(
        lambda: (
            "worker: up for " in (output := hosts[1].run("ratchet", "status").stdout) and "restarted 1 time" in output
        ),
        pause=3.0,
    )
    until(lambda: params.read_bytes() == before)  # by the new worker, before anything runs

    for number in subprocess.check_output(["ip", "netns", "pids", hosts[2].namespace], text=True).split():
        os.kill(int(number), signal.SIGKILL)
    until(lambda: states(hosts, ids)[2] == "CRASHED")
    assert "sent no heartbeat for 60 s" in read(hosts, ids)[hosts[2].worker]["state"]["message"]
    assert states(hosts, ids)[0] == "RUNNING"
    for process in stalled[0]:
        process.resume()
    until(lambda: "RUNNING" not in states(hosts, ids))
    assert states(hosts, ids) == ["COMPLETED", "CRASHED", "CRASHED"]
