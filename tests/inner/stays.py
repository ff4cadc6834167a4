"""A session for test_reaper.py to end: it starts what tests start, writes down the pids, and stays."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import until

from ratchet.servers.server_record import ServerRecord, start_supervisor
from ratchet.servers.supervisor import Launch, Service
from ratchet.workspace import Workspace

SLEEP = [sys.executable, "-c", "import signal; signal.pause()"]
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
        threading.Event().wait(0.2)  # not signal.pause: a signal just before it would be handled after the next one


def test_small(torn_down: None) -> None:
    """A supervisor whose service would be restarted, a process in a session of its own, and a plain child."""
    workspace = Workspace(PLACE)
    service = Service("part", "", str(PLACE / "part.log"), "part", 5.0)
    _supervisor = start_supervisor(workspace, [Launch(service, SLEEP, dict(os.environ))])
    command = until(lambda: ServerRecord.read(workspace).services["part"].pid)
    part = ServerRecord.read(workspace)
    alone = subprocess.Popen(SLEEP, start_new_session=True)
    child = subprocess.Popen(SLEEP)
    say([part.pid, command, alone.pid, child.pid])
