"""Which process carries out a flow run, however it was started: so that the run of a killed process is closed.

Each flow writes a file to .ratchet/runs, and holds a lock on it. The process removes it as it ends. A process that was
killed, or ended by the kernel for want of memory, cannot: its file stays, and the next check closes the run.

Several machines may share the folder: the file names the machine (`this_machine`).
"""

import atexit
import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO
from uuid import UUID

from filelock import FileLock
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.events.schemas.events import Event, Resource
from prefect.exceptions import ObjectNotFound
from prefect.runtime import flow_run
from prefect.states import Cancelled, Crashed, Failed

from flows.lost_server import ending_promptly
from ratchet import files
from ratchet.servers.supervisor import is_same, started_at
from ratchet.this_machine import is_here, this_machine
from ratchet.workspace import Workspace, disk_errors

__all__ = ["CLOSED", "close_dead_runs", "close_run", "lost_state", "record_run", "recorded_run", "recording"]

CLOSED = "ratchet.run.closed"
_ACTIVE = (StateType.RUNNING, StateType.PENDING, StateType.CANCELLING)


def record_run(workspace: Workspace) -> None:
    """Record that this process carries out the current flow run, until the process ends."""
    path = _folder(workspace) / f"{flow_run.get_id()}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    own = os.getpid()
    with files.draft_file(path) as draft:
        record = draft.open("w", encoding="utf-8")
        fcntl.flock(record, fcntl.LOCK_EX)  # until this process ends
        json.dump({"pid": own, "began": started_at(own), **this_machine()}, record)
        record.flush()
    os.register_at_fork(after_in_child=record.close)  # a child that outlives this process would hold the lock
    atexit.register(_remove, path, own, record)


@contextmanager
def recording(workspace: Workspace) -> Iterator[None]:
    """Record this run, and end promptly by a signal."""
    record_run(workspace)
    with ending_promptly():
        yield


@contextmanager
def recorded_run(workspace: Workspace, name: str, *, say: Callable[[str], None]) -> Iterator[None]:
    """Record this run, hold its folder, and end promptly by a signal or on a full disk."""
    with recording(workspace), disk_errors(workspace.root), workspace.hold(name, wait=5.0) as restored:
        if restored:
            say(restored)
        yield


def close_dead_runs(client: SyncPrefectClient, workspace: Workspace, *, down: bool = False) -> Iterator[str]:
    """Close the runs of this folder whose process has ended on this machine. Yield a line for each.

    Args:
        down: `ratchet down` ended them.

    Raises:
        httpx.HTTPError: Prefect's server does not answer.
    """
    if not (folder := _folder(workspace)).is_dir():
        return
    with FileLock(folder.with_name("runs.lock")):  # a worker and Prefect's server look at once: one alert is enough
        for path in sorted(folder.glob("*.json")):
            if not _is_dead(path):
                continue
            try:
                run = client.read_flow_run(UUID(path.stem))
            except ObjectNotFound:  # of a server that was replaced
                run = None
            if run is not None and run.state is not None and run.state.type in _ACTIVE:
                yield close_run(client, run, lost_state(run, "Its process ended before the run did", down=down))
            path.unlink(missing_ok=True)


def lost_state(run: FlowRun, reason: str, *, down: bool) -> State[object]:
    """Return the final state of a run that no process carries out any more. For one that `down` ended none alerts."""
    how = "retry it, or run it again with the same parameters" if run.deployment_id else "start it again as before"
    message = f"{reason}. To continue at its last checkpoint: {how}."
    if run.state is not None and run.state.is_cancelling():
        return Cancelled(message=message)
    return Failed(name="Stopped", message=message) if down else Crashed(message=message)


def close_run(client: SyncPrefectClient, run: FlowRun, state: State[object]) -> str:
    """Set the final state of a run that no process carries out any more. Return a line about it.

    If the state before is less than five minutes old, Prefect holds the event about the new one back, for 15 minutes at
    most, until it has seen that about the old one. It forgets what it has seen when its process ends. So after a
    restart an alert would come late or never. An event of our own with the id of the old one, its state's, goes first.
    """
    if run.state is not None:
        resource = {"prefect.resource.id": f"prefect.flow-run.{run.id}", "prefect.resource.name": run.name}
        event = Event(occurred=datetime.now(UTC), event=CLOSED, resource=Resource(resource), id=run.state.id)
        client.request("POST", "/events", json=[event.model_dump(mode="json")])
    client.set_flow_run_state(run.id, state, force=True)
    return f"run {run.name} was {run.state_name}, now {state.name}"


def _folder(workspace: Workspace) -> Path:
    return workspace.project.state / "runs"


def _remove(path: Path, process: int, record: TextIO) -> None:
    if os.getpid() == process:  # not a process that was forked from it
        path.unlink(missing_ok=True)
        record.close()


def _is_dead(path: Path) -> bool:
    """Return whether the recorded process ran on this machine, and has ended. Another process may have its number."""
    try:
        with path.open(encoding="utf-8") as file:
            record = json.load(file)
            if not is_here(record) or is_same(int(record["pid"]), float(record["began"])):
                return False
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # it may live in a container, which hides its number
            return True
    except (OSError, ValueError, KeyError, TypeError):  # held, just removed, or damaged: that run cannot be closed
        return False
