"""Places on a real Prefect server: who waits for whom, and what becomes of a place whose holder was killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ratchet.platform import client_environment, prefect_server, quotas
from ratchet.platform.deployments import create_pool
from ratchet.platform.servers import POOL, call
from ratchet.settings.model import PlatformSettings
from ratchet.workspace import Workspace

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]
HOLDS = """
import sys, time
from pathlib import Path

from prefect import flow

from flows.quotas import place

what, who, mark = sys.argv[1:]

@flow(name="holds")
def holds() -> None:
    with place(what, who, stage="train-flow"):
        Path(mark + ".in").touch()
        while not Path(mark + ".go").exists():
            time.sleep(0.1)

holds()
"""


@dataclass
class Run:
    """A flow run in a process of its own that takes a place and keeps it until it is told to go."""

    process: "subprocess.Popen[bytes]"
    mark: Path

    @property
    def said(self) -> str:
        return self.mark.with_suffix(".log").read_text()

    @property
    def is_in(self) -> bool:
        assert self.process.poll() in (None, 0), self.said
        return self.mark.with_suffix(".in").exists()

    def go(self) -> None:
        self.mark.with_suffix(".go").touch()
        assert self.process.wait() == 0, self.said


@dataclass
class House:
    """A server, and runs against it."""

    workspace: Workspace
    api: str
    runs: list[Run]

    def start(self, what: str, who: str) -> Run:
        mark = self.workspace.root / f"{len(self.runs)}-{who}"
        environment = os.environ | client_environment(self.workspace, self.api)
        environment["PYTHONPATH"] = f"{REPOSITORY / 'src'}{os.pathsep}{REPOSITORY}"
        with mark.with_suffix(".log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", HOLDS, what, who, str(mark)], env=environment, stdout=log, stderr=log
            )
        self.runs.append(Run(process, mark))
        return self.runs[-1]


@contextmanager
def house(workspace: Workspace) -> Iterator[House]:
    with prefect_server(workspace) as api:
        create_pool(api)
        made = House(workspace, api, [])
        try:
            yield made
        finally:
            for run in made.runs:
                run.process.kill()
                run.process.wait()


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    root = tmp_path.resolve() / "project"
    (root / ".ratchet").mkdir(parents=True)
    return Workspace(root)


def until(true: Callable[[], object]) -> None:
    while not true():
        time.sleep(0.05)


def limits(api: str) -> dict[str, int]:
    return {one["name"]: one["limit"] for one in call(api, "/v2/concurrency_limits/filter", {})}


def queue(api: str) -> Any:
    return call(api, f"/work_pools/{POOL}/queues/default")["concurrency_limit"]


def test_a_person_waits_for_their_own_run_and_for_nobody_elses(workspace: Workspace) -> None:
    with house(workspace) as here:
        quotas.tell(here.api, PlatformSettings(person_runs=1, gpus=2, person_gpus=2, queue_runs=3))
        assert limits(here.api) == {"ratchet-runs-each": 1, "ratchet-gpus": 2, "ratchet-gpus-each": 2}
        assert queue(here.api) == 3

        first = here.start("runs", "ann")
        until(lambda: first.is_in)
        second, other = here.start("runs", "ann"), here.start("runs", "bob")
        told = "train-flow: waits for another run of ann to end: platform.person_runs lets one person hold 1 at once"
        until(lambda: told in second.said)
        until(lambda: other.is_in)
        assert not second.is_in
        first.go()
        until(lambda: second.is_in)
        assert second.said.count("waits for") == 2  # in the terminal, and in the run's log
        assert "goes on" in second.said
        second.go()
        other.go()

        # What `up` says later holds for the runs that come after it.
        quotas.tell(here.api, PlatformSettings(gpus=1))
        assert limits(here.api) == {"ratchet-gpus": 1, "ratchet-runs-of-ann": 1, "ratchet-runs-of-bob": 1}
        assert queue(here.api) is None
        both = [here.start("runs", "ann"), here.start("runs", "ann"), here.start("gpus", "ann")]
        until(lambda: all(run.is_in for run in both))
        late = here.start("gpus", "bob")
        until(lambda: "waits for one of the gpus to be free: platform.gpus lets trainings hold 1" in late.said)


def test_the_place_of_a_killed_run_comes_back_even_where_the_server_was_killed_too(workspace: Workspace) -> None:
    with house(workspace) as before:
        quotas.tell(before.api, PlatformSettings(person_runs=1))
        first = before.start("runs", "ann")
        until(lambda: first.is_in)
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
    with house(workspace) as after:
        second = after.start("runs", "ann")
        until(lambda: "waits for another run of ann" in second.said)
        until(lambda: second.is_in)  # when the lease has run out: in about a minute
        second.go()
