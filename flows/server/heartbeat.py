"""Heartbeats of the worker, read without Prefect's client: importing it would take most of `ratchet status`'s time."""

from datetime import UTC, datetime, timedelta
from functools import partial

from ratchet import servers
from ratchet.servers.addresses import prefect_credentials
from ratchet.servers.http import read_json
from ratchet.servers.processes import Service
from ratchet.servers.start import POOL, worker_name
from ratchet.servers.status import ServerStatus
from ratchet.workspace import Workspace

__all__ = ["status", "worker_is_online"]

_MISSED_BEATS = 3  # after which a worker counts as gone, as on Prefect's own pages


def status(workspace: Workspace) -> list[ServerStatus]:
    """Return the status of each service. Starts and stops nothing.

    Raises:
        PlatformError: .ratchet/servers.json is damaged.
    """
    return servers.status(workspace, partial(worker_is_online, workspace))


def worker_is_online(workspace: Workspace, worker: Service, since: datetime) -> bool:
    """Return whether Prefect's server has received a recent heartbeat of this folder's worker, after `since`."""
    url = f"{worker.address}/work_pools/{POOL}/workers/filter"
    for known in read_json(url, {}, timeout=30.0, credentials=prefect_credentials()) or []:
        if known["name"] == worker_name(workspace):
            last = datetime.fromisoformat(known["last_heartbeat_time"])
            longest = _MISSED_BEATS * timedelta(seconds=known["heartbeat_interval_seconds"] or 30)
            return last >= since and datetime.now(UTC) - last <= longest
    return False
