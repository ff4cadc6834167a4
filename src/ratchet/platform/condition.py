"""How what `up` started is now: asked of the processes, the servers, and, for the worker, of Prefect's server."""

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from ratchet.errors import PlatformError
from ratchet.platform import servers
from ratchet.platform.processes import Part
from ratchet.platform.record import Record
from ratchet.workspace import Workspace

__all__ = ["TITLES", "ServerStatus", "State", "condition", "status"]

TITLES = {"prefect": "Prefect server", "mlflow": "MLflow server", "worker": "worker"}
State = Literal["up", "restarting", "silent", "down", "elsewhere"]
_CLOCK = 2.0  # seconds by which the time of a process's beginning, counted from the boot, may be wrong


@dataclass(frozen=True)
class ServerStatus:
    """One server as it is now.

    Attributes:
        state: restarting: it died, and its keeper starts it again. silent: its process lives but does not answer; the
            worker's does not tell Prefect's server that it lives. down: nothing of it is kept running. elsewhere: it is
            another machine's.
        address: None if it was not started.
        public: the address that browsers use; empty where that is the same.
        pid: of its keeper.
        seconds: for which it has been up.
        restarts: how often it died and was started again.
    """

    name: str
    title: str
    state: State
    address: str | None = None
    pid: int | None = None
    seconds: float | None = None
    restarts: int = 0
    public: str = ""

    @property
    def shown(self) -> str | None:
        """The address for a person."""
        return self.public or self.address

    @property
    def started(self) -> bool:
        """Did `up` start it, and nobody stop it since?"""
        return self.address is not None and self.state != "elsewhere"


def status(workspace: Workspace) -> list[ServerStatus]:
    """How each server is now; starts and stops nothing.

    Raises:
        PlatformError: .ratchet/servers.json is damaged.
    """
    record = Record.read(workspace)
    return [_status(name, title, record, workspace) for name, title in TITLES.items()]


def _status(name: str, title: str, record: Record, workspace: Workspace) -> ServerStatus:
    part = record.parts.get(name)
    if part is None and name == "prefect" and record.api:
        return ServerStatus(name, title, "elsewhere", record.api)
    if part is None:
        return ServerStatus(name, title, "down")
    state = condition(part, workspace)
    if state == "down":
        return ServerStatus(name, title, state, part.address, public=part.public)
    command = part.command() if state == "up" else None
    seconds = time.time() - command.create_time() if command else None
    return ServerStatus(name, title, state, part.address, part.pid, seconds, part.restarts(), part.public)


def condition(part: Part, workspace: Workspace) -> State:
    """What state a part of the workspace's is in."""
    if not part.alive():
        return "down"
    command = part.command()
    if command is None:
        return "restarting"
    age = time.time() - command.create_time()
    if _answers(part, workspace, age):
        return "up"
    return "restarting" if part.restarts() and age < servers.STARTED else "silent"


def _answers(part: Part, workspace: Workspace, age: float) -> bool:
    if part.name == "worker":
        since = datetime.fromtimestamp(time.time() - age - _CLOCK, UTC)
        try:
            return servers.worker_seen(part.address, servers.worker_name(workspace), since)
        except PlatformError:
            return False
    health = {"prefect": "/api/health", "mlflow": "/health"}[part.name]
    return servers.answers(part.address + health, timeout=5.0)
