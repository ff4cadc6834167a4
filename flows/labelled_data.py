"""Trainings with labelled requests: their data set, why there is none, and the run that begins when labels arrive."""

import time
from collections.abc import Callable
from typing import Any

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import State
from prefect.exceptions import ObjectNotFound
from prefect.states import Completed

from flows import dvc_stage
from flows.stages import ingest_stage
from ratchet.monitoring import retraining
from ratchet.monitoring.retraining import LabelledData, NotTrained
from ratchet.monitoring.specs import StoredSpecs
from ratchet.settings.run_settings import overridden
from ratchet.workspace import Workspace

__all__ = ["begin_after_labels", "collect", "not_trained"]

_DEPLOYMENT = "train-flow/on-drift"


def collect(workspace: Workspace, changes: dict[str, Any], say: Callable[[str], None]) -> LabelledData:
    """Ingest the data of the settings, and return them with all labelled requests."""
    with overridden(workspace.params, changes, note=workspace.overrides, say=say) as run:
        dvc_stage.refresh_code(run.params, workspace, say=say)
        ingest_stage(run.params, workspace)
        specs = StoredSpecs(workspace.project, run.params)
        collected = retraining.collect(workspace, run.params, specs, now=time.time())
    counts = ", ".join(f"{count:,} {split}" for split, count in collected.dataset.requests.items())
    say(f"labelled requests: {counts}; {collected.new:,} of them are new ({collected.dataset.folder})")
    return collected


def not_trained(reason: NotTrained) -> "State[Any]":
    """Return the state of a run that trains nothing; LabelsNeeded causes an alert."""
    return Completed(name="LabelsNeeded" if reason.needs_labels else "NotTrained", message=str(reason))


def begin_after_labels(workspace: Workspace, client: SyncPrefectClient) -> None:
    """Start train-flow/on-drift, once, when the labels for which it waits have arrived."""
    if not (key := retraining.arrived(workspace)):
        return
    try:
        deployment = client.read_deployment_by_name(_DEPLOYMENT)
    except ObjectNotFound:  # taken out of prefect.yaml
        return
    client.create_flow_run_from_deployment(deployment.id, idempotency_key=key)
