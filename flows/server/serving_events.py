"""Events about the model server: it cannot serve a new version, or has withdrawn a canary."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from prefect.client.orchestration import SyncPrefectClient
from prefect.events.schemas.events import Event, Resource

from ratchet.servers.http import read_json
from ratchet.servers.server_record import ServerRecord
from ratchet.workspace import Workspace

__all__ = ["NOT_SERVED", "WITHDRAWN", "ServingWatch"]

NOT_SERVED = "ratchet.serving.refused"
WITHDRAWN = "ratchet.serving.withdrawn"


@dataclass
class ServingWatch:
    """Asks the model server of `ratchet up`, and emits an event for each version that it refuses or withdraws."""

    workspace: Workspace
    client: SyncPrefectClient
    _reported: dict[str, Any] = field(default_factory=dict)  # payload of the latest event of each kind

    def check(self) -> None:
        """Check once. An event that the server did not take is sent by the next check.

        Raises:
            httpx.HTTPError: Prefect's server does not answer.
        """
        service = ServerRecord.read(self.workspace).services.get("serving")
        state = read_json(service.health) if service else None
        if state is None:  # it is not started, or does not answer
            return
        for name, payload in ((NOT_SERVED, _refused(state)), (WITHDRAWN, _withdrawn(state))):
            if payload and self._reported.get(name) != payload:
                event = _event(name, payload)
                self.client.request("POST", "/events", json=[event.model_dump(mode="json")])
            self._reported[name] = payload


def _refused(state: dict[str, Any]) -> dict[str, Any]:
    refused, served = state.get("refused", ""), state["version"]
    if not refused:
        return {}
    back = f"`ratchet rollback {refused.partition(' ')[0]} --why ...`"
    return {
        "message": f"{state.get('problem', '')}. " + (f"{served} answers" if served else "No version answers"),
        "next": f"{back} to a version that can be served, or repair this one as the message says: the server "
        "tries it again every 30 seconds",
        "version": refused,
        "served": served,
    }


def _withdrawn(state: dict[str, Any]) -> dict[str, Any]:
    withdrawn = state.get("withdrawn")
    if not withdrawn:
        return {}
    canary, served = withdrawn["canary"], state["version"]
    return {
        "message": f"The canary {canary} gets no requests any more: {withdrawn['reason']}. {served} answers them all",
        "next": "do not promote it before its cause is known; `ratchet set serving.canary=none` ends the canary",
        "version": canary,
        "served": served,
    }


def _event(name: str, payload: dict[str, Any]) -> Event:
    version = payload["version"]
    resource = {
        "prefect.resource.id": f"ratchet.served.{version.replace(' version ', '/')}",
        "prefect.resource.name": version,
    }
    return Event(occurred=datetime.now(UTC), event=name, resource=Resource(resource), payload=payload)
