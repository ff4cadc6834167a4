"""monitor-flow: judge the windows of the request log that are over, as `ratchet monitor` does, and report drift."""

import platform
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path

from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import State
from prefect.events.schemas.events import Event, Resource
from prefect.states import Completed

from flows.cancelled_runs import ended_by
from flows.labelled_data import begin_after_labels
from flows.progress import log_errors_without_traceback
from flows.run_names import run_name
from flows.run_records import recording
from flows.server.alert_rules import DRIFT
from ratchet import files
from ratchet.errors import RatchetError
from ratchet.monitoring import watch as monitoring
from ratchet.monitoring.drift_text import alarm_text, lines
from ratchet.monitoring.quality import quality_lines
from ratchet.monitoring.rule import RULE
from ratchet.traffic.log_reader import log_folder
from ratchet.typed_json import to_plain
from ratchet.workspace import Workspace, disk_errors

__all__ = ["monitor_flow"]


@flow(name="monitor-flow", flow_run_name=run_name, persist_result=False)
def monitor_flow() -> "State[str]":
    """Judge whether the logged requests of the served versions have drifted, and emit an event about each drift."""
    log_errors_without_traceback()
    try:
        workspace = Workspace.find()
        with recording(workspace), disk_errors(workspace.root), get_client(sync_client=True) as client:
            monitor = monitoring.monitor_of(workspace)
            state = monitor.update(now=time.time())
            _report(workspace, monitor, state, client)
            begin_after_labels(workspace, client)
        message = "; ".join(lines(state)) or f"no requests are logged on {platform.node()}"
        return Completed(message=message, data=message)
    except RatchetError as error:
        return ended_by(error)


def _report(
    workspace: Workspace, monitor: monitoring.Monitor, state: monitoring.State, client: SyncPrefectClient
) -> None:
    """Write the page and emit the event of each alarm of a served version that was not reported yet.

    An event is marked as sent after the server took it. If this process is killed between, the next run asks the server
    for it.
    """
    for name, version in monitoring.current_versions(state).items():
        key = monitoring.event_key(name, version)
        if not key or key in state.sent:
            continue
        from ratchet.reports.drift_page import drift_page

        page = workspace.state / "monitoring" / "drift.html"
        quality = quality_lines(log_folder(workspace), {name})
        files.write_bytes(page, drift_page(state, quality).encode(), private=True)  # it may have values of kept inputs
        event = _event(name, version, key, page)
        if not _is_stored(client, event):
            client.request("POST", "/events", json=[event.model_dump(mode="json")])
        monitor.mark_sent(key)


def _is_stored(client: SyncPrefectClient, event: Event) -> bool:
    answer = client.request("POST", "/events/filter", json={"filter": {"id": {"id": [str(event.id)]}}, "limit": 1})
    return bool(answer.json()["events"])


def _event(name: str, version: monitoring.WatchedVersion, key: str, page: Path) -> Event:
    alarm = version.verdict.alarm
    assert alarm is not None
    model = name.rpartition("/")[0]
    return Event(
        id=uuid.UUID(key[:32]),
        occurred=datetime.now(UTC),
        event=DRIFT,
        resource=Resource({"prefect.resource.id": f"ratchet.model.{model}", "prefect.resource.name": name}),
        payload={
            "message": f"{name}: {alarm_text(alarm)}",
            "next": f"open {page}: it shows what has changed. The same event starts train-flow/on-drift, which trains "
            "what is committed, with the logged requests that have labels, or asks for labels. If the change is right, "
            "`ratchet monitor --restart` begins with a new reference",
            "rule": RULE,
            "key": key,
            "version": name,
            "evidence": to_plain(alarm),
        },
    )
