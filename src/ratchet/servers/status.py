"""Status of the services, read from their processes and addresses."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from ratchet.servers.http import answers
from ratchet.servers.processes import Service
from ratchet.servers.record import Record
from ratchet.servers.start import START_TIMEOUT
from ratchet.workspace import Workspace

__all__ = ["TITLES", "ServerStatus", "State", "WorkerCheck", "service_state", "status"]

TITLES = {"prefect": "Prefect server", "mlflow": "MLflow server", "worker": "worker"}
State = Literal["up", "restarting", "silent", "down", "elsewhere"]
# (worker, start) -> whether Prefect's server has received a recent heartbeat of it since `start`.
WorkerCheck = Callable[[Service, datetime], bool]
_CLOCK = 2.0  # seconds by which a process's start time, counted from the boot, may be wrong


@dataclass(frozen=True)
class ServerStatus:
    """Status of one service.

    Attributes:
        state: restarting: it died, and its supervisor restarts it. silent: its process runs but does not answer; of
            the worker, Prefect's server receives no heartbeat. down: no supervisor runs it. elsewhere: another machine
            runs it.
        address: None if it was not started.
        public: the address that browsers use; empty if it is the same.
        pid: of its supervisor.
        seconds: uptime.
        restarts: number of times that it died and was restarted.
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
        """Return the address for people."""
        return self.public or self.address

    @property
    def started(self) -> bool:
        """Return whether `up` started it and `down` has not stopped it."""
        return self.address is not None and self.state != "elsewhere"


def status(workspace: Workspace, worker_check: WorkerCheck) -> list[ServerStatus]:
    """Return the status of each service. Starts and stops nothing.

    Raises:
        PlatformError: .ratchet/servers.json is damaged.
    """
    record = Record.read(workspace)
    return [_status(name, title, record, worker_check) for name, title in TITLES.items()]


def _status(name: str, title: str, record: Record, worker_check: WorkerCheck) -> ServerStatus:
    service = record.services.get(name)
    if service is None and name == "prefect" and record.api:
        return ServerStatus(name, title, "elsewhere", record.api)
    if service is None:
        return ServerStatus(name, title, "down")
    state = service_state(service, worker_check)
    if state == "down":
        return ServerStatus(name, title, state, service.address, public=service.public)
    command = service.command() if state == "up" else None
    seconds = time.time() - command.create_time() if command else None
    return ServerStatus(name, title, state, service.address, service.pid, seconds, service.restarts(), service.public)


def service_state(service: Service, worker_check: WorkerCheck) -> State:
    """Return the state of a service that was started."""
    if not service.alive():
        return "down"
    command = service.command()
    if command is None:
        return "restarting"
    age = time.time() - command.create_time()
    if service.name == "worker":
        up = worker_check(service, datetime.fromtimestamp(time.time() - age - _CLOCK, UTC))
    else:
        health = {"prefect": "/api/health", "mlflow": "/health"}[service.name]
        up = answers(service.address + health, timeout=5.0)
    if up:
        return "up"
    return "restarting" if service.restarts() and age < START_TIMEOUT else "silent"
