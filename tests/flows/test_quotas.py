"""Slots of limits on a real Prefect server: waiting for a slot, and slots of killed runs."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from flows.server import limits as server_limits
from flows.server.client import prefect_client
from flows.server.deployments import create_pool
from ratchet.servers import client_environment, prefect_server
from ratchet.servers.start import POOL
from ratchet.settings.model import PlatformSettings
from ratchet.workspace import Workspace

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]
HOLDS = """
import sys, threading
from pathlib import Path

from prefect import flow

from flows.quotas import slot

resource, person, mark = sys.argv[1:]

@flow(name="holds")
def holds() -> None:
    with slot(resource, person, stage="train-flow"):
        Path(mark + ".in").touch()
        while not Path(mark + ".go").exists():
            threading.Event().wait(0.1)

holds()
"""


@dataclass
class Run:
    """A flow run in a process of its own that holds a slot until `go` is called."""

    process: "subprocess.Popen[bytes]"
    mark: Path

    @property
    def output(self) -> str:
        return self.mark.with_suffix(".log").read_text()

    @property
    def is_in(self) -> bool:
        assert self.process.poll() in (None, 0), self.output
        return self.mark.with_suffix(".in").exists()

    def go(self) -> None:
        self.mark.with_suffix(".go").touch()
        assert self.process.wait() == 0, self.output


@dataclass
class Server:
    """A Prefect server, and runs that use it."""

    workspace: Workspace
    api: str
    runs: list[Run]

    def start(self, resource: str, person: str) -> Run:
        mark = self.workspace.root / f"{len(self.runs)}-{person}"
        environment = os.environ | client_environment(self.workspace, self.api)
        environment["PYTHONPATH"] = f"{REPOSITORY / 'src'}{os.pathsep}{REPOSITORY}"
        with mark.with_suffix(".log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", HOLDS, resource, person, str(mark)], env=environment, stdout=log, stderr=log
            )
        self.runs.append(Run(process, mark))
        return self.runs[-1]


@contextmanager
def server(workspace: Workspace) -> Iterator[Server]:
    with prefect_server(workspace) as api:
        with prefect_client(api) as client:
            create_pool(client)
        running = Server(workspace, api, [])
        try:
            yield running
        finally:
            for run in running.runs:
                run.process.kill()
                run.process.wait()


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    root = tmp_path.resolve() / "project"
    (root / ".ratchet").mkdir(parents=True)
    return Workspace(root)


def limits(api: str) -> dict[str, int]:
    with prefect_client(api) as client:
        return {limit.name: limit.limit for limit in client.read_global_concurrency_limits()}


def set_limits(api: str, settings: PlatformSettings) -> None:
    with prefect_client(api) as client:
        server_limits.set_limits(client, settings)


def queue(api: str) -> Any:
    with prefect_client(api) as client:
        return client.read_work_queue_by_name("default", work_pool_name=POOL).concurrency_limit


def test_person_waits_only_for_their_own_runs(workspace: Workspace) -> None:
    with server(workspace) as here:
        set_limits(here.api, PlatformSettings(person_runs=1, gpus=2, person_gpus=2, queue_runs=3))
        assert limits(here.api) == {"ratchet-runs-each": 1, "ratchet-gpus": 2, "ratchet-gpus-each": 2}
        assert queue(here.api) == 3

        first = here.start("runs", "ann")
        until(lambda: first.is_in)
        second, other = here.start("runs", "ann"), here.start("runs", "bob")
        waiting = "train-flow: waiting for another run of ann to end (limit platform.person_runs=1 for one person)"
        until(lambda: waiting in second.output)
        until(lambda: other.is_in)
        assert not second.is_in
        first.go()
        until(lambda: second.is_in)
        assert second.output.count("waiting for") == 2  # in the terminal, and in the run's log
        assert "continues" in second.output
        second.go()
        other.go()

        # Limits that a later `up` sets hold for the runs after it.
        set_limits(here.api, PlatformSettings(gpus=1))
        assert limits(here.api) == {"ratchet-gpus": 1, "ratchet-runs-of-ann": 1, "ratchet-runs-of-bob": 1}
        assert queue(here.api) is None
        both = [here.start("runs", "ann"), here.start("runs", "ann"), here.start("gpus", "ann")]
        until(lambda: all(run.is_in for run in both))
        late = here.start("gpus", "bob")
        until(lambda: "waiting for one of the gpus to be free (limit platform.gpus=1 for all trainings)" in late.output)


def test_slot_of_a_killed_run_is_freed_after_restart(workspace: Workspace) -> None:
    with server(workspace) as before:
        set_limits(before.api, PlatformSettings(person_runs=1))
        first = before.start("runs", "ann")
        until(lambda: first.is_in)
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
    with server(workspace) as after:
        second = after.start("runs", "ann")
        until(lambda: "waiting for another run of ann" in second.output)
        until(lambda: second.is_in)  # when the lease has expired, in about a minute
        second.go()
