"""Trainings with labelled requests: their data set, why there is none, and the run that begins when labels arrive."""

import time
from collections.abc import Callable
from typing import Any

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import State
from prefect.exceptions import ObjectNotFound
from prefect.states import Completed

from ratchet import settings
from ratchet.monitoring import retraining
from ratchet.monitoring.retraining import LabelledData, NotTrained
from ratchet.monitoring.specs import StoredSpecs
from ratchet.settings.model import Params
from ratchet.workspace import Workspace

__all__ = ["begin_after_labels", "collect", "not_trained"]

_DEPLOYMENT = "train-flow/on-drift"


def collect(workspace: Workspace, params: Params, say: Callable[[str], None]) -> LabelledData | None:
    """Return the ingested data with all labelled requests; None: requests cannot join these data."""
    specs = StoredSpecs(workspace.project, params)
    collected = retraining.collect(workspace, params, specs, now=time.time(), say=say)
    if collected:
        counts = ", ".join(f"{count:,} {split}" for split, count in collected.dataset.requests.items())
        say(f"labelled requests: {counts}; {collected.new:,} of them are new ({collected.dataset.folder})")
    return collected


def not_trained(reason: NotTrained) -> "State[Any]":
    """Return the state of a run that trains nothing; LabelsNeeded causes an alert."""
    return Completed(name="LabelsNeeded" if reason.needs_labels else "NotTrained", message=str(reason))


def begin_after_labels(workspace: Workspace, client: SyncPrefectClient) -> None:
    """Start train-flow/on-drift, once a day, when the labels for which it waits have arrived."""
    if not (key := retraining.arrived(workspace, settings.load(workspace.params), now=time.time())):
        return
    try:
        deployment = client.read_deployment_by_name(_DEPLOYMENT)
    except ObjectNotFound:  # taken out of prefect.yaml
        return
    client.create_flow_run_from_deployment(deployment.id, idempotency_key=key)
