"""A session for test_ending.py to end: it starts what tests start, writes down the pids, and stays."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ratchet.servers.ports import free_port
from ratchet.servers.processes import spawn
from ratchet.servers.record import Record

HOST = "127.0.0.1"
SLEEP = [sys.executable, "-c", "import time; time.sleep(100_000)"]
PLACE = Path(os.environ["STAYS_AT"])


@pytest.fixture(scope="session")
def torn_down() -> Iterator[None]:
    yield
    (PLACE / "torn-down").touch()


def say(pids: list[int]) -> None:
    draft = PLACE / "pids.draft"
    draft.write_text(json.dumps(pids))
    draft.rename(PLACE / "pids")
    while True:
        time.sleep(0.1)


def test_small(torn_down: None) -> None:
    """A supervisor whose command would be restarted, a process in a session of its own, and a plain child."""
    log = PLACE / "part.log"
    environment = dict(os.environ)
    part, _ = spawn("part", SLEEP, environment=environment, cwd=PLACE, address="", log=log, grace=5.0)
    while not (command := part.command()):
        time.sleep(0.05)
    part.keep()
    alone = subprocess.Popen(SLEEP, start_new_session=True)
    child = subprocess.Popen(SLEEP)
    say([part.pid, command.pid, alone.pid, child.pid])


def test_servers(project: Any, torn_down: None) -> None:
    """All that `ratchet up` starts."""
    project.good("ratchet", "set", f"platform.prefect_port={free_port(HOST)}")
    project.good("ratchet", "set", f"platform.mlflow_port={free_port(HOST)}")
    project.good("ratchet", "up")
    parts = Record.read(project.workspace).services.values()
    commands = [command for part in parts if (command := part.command())]
    assert len(commands) == len(parts) == 3
    say([*(part.pid for part in parts), *(command.pid for command in commands)])
