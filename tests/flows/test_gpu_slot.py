"""The limit on GPUs on a real Prefect server: waiting for a slot, and slots of killed runs."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
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
# Imports Prefect once, and forks for each run.
HOLDS = """
import os, signal, sys, threading
from pathlib import Path

import prefect.flow_engine
from prefect import flow
from prefect.context import refresh_global_settings_context

from flows.gpu_slot import slots

@flow(name="holds")
def holds(mark: str) -> None:
    with slots():
        Path(mark + ".in").touch()
        while not Path(mark + ".go").exists():
            threading.Event().wait(0.1)

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    api, mark = line.rstrip().split("\\t")
    if process := os.fork():
        print(process, flush=True)
        continue
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(mark + ".log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ["PREFECT_API_URL"] = api
    refresh_global_settings_context()
    holds(mark)
    Path(mark + ".out").touch()
    sys.exit()
"""


@dataclass
class Run:
    """A flow run in a process of its own that holds a slot until `go` is called."""

    process: psutil.Process
    mark: Path

    @property
    def output(self) -> str:
        log = self.mark.with_suffix(".log")
        return log.read_text() if log.exists() else ""

    @property
    def is_in(self) -> bool:
        assert self.process.is_running(), self.output
        return self.mark.with_suffix(".in").exists()

    def go(self) -> None:
        self.mark.with_suffix(".go").touch()
        self.process.wait()
        assert self.mark.with_suffix(".out").exists(), self.output


@dataclass
class Server:
    """A Prefect server, and runs that use it.

    Attributes:
        runner: process that starts the runs.
    """

    workspace: Workspace
    runner: "subprocess.Popen[str]"
    api: str = ""
    runs: list[Run] = field(default_factory=list)

    def start(self) -> Run:
        mark = self.workspace.root / f"run-{len(self.runs)}"
        assert self.runner.stdin
        assert self.runner.stdout
        print(self.api, mark, sep="\t", file=self.runner.stdin, flush=True)
        self.runs.append(Run(psutil.Process(int(self.runner.stdout.readline())), mark))
        return self.runs[-1]


WAITS = "train: waiting for one of the gpus to be free (limit platform.gpus=1 for all trainings)"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that was started again after a run that held the only slot was killed; another run is the first."""
    root = tmp_path_factory.mktemp("quotas").resolve() / "project"
    (root / ".ratchet").mkdir(parents=True)
    workspace = Workspace(root)
    environment = os.environ | client_environment(workspace)
    environment["PYTHONPATH"] = f"{REPOSITORY / 'src'}{os.pathsep}{REPOSITORY}"
    command, pipe = [sys.executable, "-c", HOLDS], subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as runner:
        running = Server(workspace, runner)
        try:
            with prefect_server(workspace) as running.api:
                with prefect_client(running.api) as client:
                    create_pool(client)
                set_limits(running.api, PlatformSettings(gpus=1, queue_runs=3))
                killed = running.start()
                until(lambda: killed.is_in)
                killed.process.kill()
                killed.process.wait()
                killed.mark.with_suffix(".in").unlink()  # the next run has the same mark
            running.runs.clear()
            with prefect_server(workspace) as running.api:
                second = running.start()
                until(lambda: WAITS in second.output)
                yield running
        finally:
            for run in running.runs:
                with suppress(psutil.NoSuchProcess):
                    run.process.kill()


def limits(api: str) -> dict[str, int]:
    with prefect_client(api) as client:
        return {limit.name: limit.limit for limit in client.read_global_concurrency_limits()}


def set_limits(api: str, settings: PlatformSettings) -> None:
    with prefect_client(api) as client:
        server_limits.set_limits(client, settings)


def queue(api: str) -> Any:
    with prefect_client(api) as client:
        return client.read_work_queue_by_name("default", work_pool_name=POOL).concurrency_limit


def test_slot_of_a_killed_run_is_freed_after_restart(server: Server) -> None:
    second = server.runs[0]
    until(lambda: second.is_in)  # when the lease has expired, in about a minute
    third = server.start()
    until(lambda: WAITS in third.output)
    second.go()
    until(lambda: third.is_in)
    assert third.output.count("waiting for") == 2  # in the terminal, and in the run's log
    assert "continues" in third.output
    third.go()


def test_limits_of_a_later_up_hold_for_later_runs(server: Server) -> None:
    assert limits(server.api) == {"ratchet-gpus": 1}
    assert queue(server.api) == 3
    set_limits(server.api, PlatformSettings(gpus=2))
    assert limits(server.api) == {"ratchet-gpus": 2}
    assert queue(server.api) is None
    both = [server.start(), server.start()]
    until(lambda: all(run.is_in for run in both))
    set_limits(server.api, PlatformSettings())
    assert limits(server.api) == {}
    third = server.start()
    until(lambda: third.is_in)
