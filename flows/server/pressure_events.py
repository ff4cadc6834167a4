"""Events about machine pressure: emitted when a limit is passed, and again only after the value was well clear of it.

The alert rule limits how often the same event is reported to people.
"""

import os
import socket
from dataclasses import dataclass, field
from datetime import UTC, datetime

from prefect.client.orchestration import SyncPrefectClient
from prefect.events.schemas.events import Event, Resource

from flows.server.deployments import note
from ratchet import settings
from ratchet.servers.pressure import Reading, readings
from ratchet.settings.model import AlertSettings
from ratchet.workspace import Workspace

__all__ = ["PRESSURE", "PressureWatch"]

PRESSURE = "ratchet.machine.pressure"


@dataclass
class PressureWatch:
    """Checks this machine, and emits an event to Prefect's server when a limit is passed.

    After each `ratchet up` the limits are read again and everything short is reported again, so that new receivers of
    alerts are informed.

    Attributes:
        reported: kind and place of the readings that are short and were reported.
    """

    workspace: Workspace
    client: SyncPrefectClient
    limits: AlertSettings = field(default_factory=AlertSettings)
    reported: set[tuple[str, str]] = field(default_factory=set)
    _last_up: int = -1  # time at which `ratchet up` last ended, in nanoseconds

    def check(self) -> None:
        """Check once. An event that the server did not take is sent by the next check.

        Raises:
            httpx.HTTPError: Prefect's server does not answer.
        """
        written = note(self.workspace)
        last_up = written.stat().st_mtime_ns if written.exists() else 0
        if last_up != self._last_up:
            self.limits = settings.load(self.workspace.params).alerts
            self.reported, self._last_up = set(), last_up
        for reading in readings(self.workspace, self.limits):
            key = (reading.kind, reading.place)
            if reading.is_clear:
                self.reported.discard(key)
            elif reading.is_short and key not in self.reported:
                self.client.request("POST", "/events", json=[_event(reading).model_dump(mode="json")])
                self.reported.add(key)


def _event(reading: Reading) -> Event:
    machine = socket.gethostname()
    limit = f"{reading.limit:g} GiB" if reading.kind == "disk" else f"{reading.limit:.0%}"
    resource = {
        "prefect.resource.id": f"ratchet.machine.{machine}.{reading.kind}.{reading.place.strip(os.sep)}",
        "prefect.resource.name": f"{reading.kind} of {machine}",
    }
    return Event(
        occurred=datetime.now(UTC),
        event=PRESSURE,
        resource=Resource(resource),
        payload={
            "message": f"{reading.summary}; the limit is {limit}",
            "next": reading.fix,
            "machine": machine,
            "kind": reading.kind,
            "place": reading.place,
            "value": round(reading.value, 4),
            "limit": reading.limit,
        },
    )
