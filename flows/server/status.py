"""Status of the services, read from their record and addresses.

Prefect's client is not used: importing it would take most of `ratchet status`'s time.
"""

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

import psutil

from ratchet.servers.addresses import prefect_credentials
from ratchet.servers.http import answers, read_json
from ratchet.servers.server_record import TITLES, ServerRecord
from ratchet.servers.start import POOL, START_TIMEOUT, worker_name
from ratchet.servers.supervisor import Service
from ratchet.workspace import Workspace

__all__ = ["ServerStatus", "State", "service_state", "status"]

State = Literal["up", "not ready", "restarting", "silent", "down", "elsewhere"]
_MISSED_BEATS = 3  # after which a worker counts as gone, as on Prefect's own pages


@dataclass(frozen=True)
class ServerStatus:
    """Status of one service.

    Attributes:
        state: not ready: the model server serves no version. restarting: it died, and the supervisor restarts it.
            silent: its process runs but does not answer; of the worker, Prefect's server receives no heartbeat. down:
            no supervisor runs it. elsewhere: another machine runs it.
        service: None if `up` has not started it, or `down` has stopped it.
        address: None if it was not started.
        note: of the model server, the version that it serves, and its problem.
    """

    name: str
    state: State
    service: Service | None = None
    address: str | None = None
    note: str = ""

    @property
    def restarts(self) -> int:
        return self.service.restarts if self.service else 0


def status(workspace: Workspace) -> list[ServerStatus]:
    """Return the status of each service. Starts and stops nothing.

    Raises:
        PlatformError: .ratchet/servers.json is damaged.
    """
    record, states = ServerRecord.read(workspace), []
    for name in TITLES:
        if service := record.services.get(name):
            state = service_state(workspace, record, service)
            answer = read_json(service.health) or {} if name == "serving" and state == "up" else {}
            if answer and not answer.get("version"):
                state = "not ready"
            note = "; ".join(filter(None, (answer.get("version"), answer.get("problem"))))
            states.append(ServerStatus(name, state, service, service.address, note))
        elif name == "prefect" and record.api:
            states.append(ServerStatus(name, "elsewhere", address=record.api))
        else:
            states.append(ServerStatus(name, "down"))
    return states


def service_state(workspace: Workspace, record: ServerRecord, service: Service) -> State:
    """Return the state of a service that was started."""
    if not record.alive():
        return "down"
    if service.pid is None:
        return "restarting"
    if answers(service.health, timeout=5.0) if service.health else _is_online(workspace, service):
        return "up"
    return "restarting" if service.restarts and time.time() - service.began < START_TIMEOUT else "silent"


def _is_online(workspace: Workspace, worker: Service) -> bool:
    """Return whether Prefect's server has received a recent heartbeat of this folder's worker, since its start."""
    try:  # by the clock as it is now: it may have been set since the worker began
        since = datetime.fromtimestamp(psutil.Process(worker.pid).create_time(), UTC)
    except psutil.NoSuchProcess:  # it has just ended
        return False
    url = f"{worker.address}/work_pools/{POOL}/workers/filter"
    for answer in read_json(url, {}, timeout=30.0, credentials=prefect_credentials()) or []:
        if answer["name"] == worker_name(workspace):
            last = datetime.fromisoformat(answer["last_heartbeat_time"])
            longest = _MISSED_BEATS * timedelta(seconds=answer["heartbeat_interval_seconds"] or 30)
            return last >= since and datetime.now(UTC) - last <= longest
    return False
