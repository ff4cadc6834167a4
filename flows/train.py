"""train-flow: ingest, version, train, evaluate, export and register one model."""

from collections.abc import Callable
from typing import Any

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State
from prefect.states import Completed

from flows import dvc_stage, labelled_data, revisions
from flows.artifacts import publish
from flows.cancelled_runs import ended_by, flow_ended_by
from flows.progress import log_errors_without_traceback
from flows.run_names import run_name
from flows.run_records import recorded_run
from flows.stages import evaluate_stage, export_stage, ingest_stage, register_stage, train_stage, version_stage
from ratchet import settings
from ratchet.errors import RatchetError
from ratchet.monitoring.retraining import LabelledData, NotTrained, mark_trained
from ratchet.references import require_references
from ratchet.registry.access import require, user
from ratchet.registry.alias_sync import require_agreement
from ratchet.registry.parents import provide_parent
from ratchet.settings.model import Overrides, Params
from ratchet.settings.run_settings import overridden
from ratchet.workspace import Workspace
from tasks.ingest import Dataset
from tasks.register import Registration
from tasks.summary import earlier_version

__all__ = ["train_flow"]


@flow(name="train-flow", flow_run_name=run_name, persist_result=False)
def train_flow(
    overrides: Overrides = Overrides(),  # type: ignore[valid-type]  # noqa: B008  (frozen)
    revision: str = "",
    labelled: bool = False,
) -> "State[Registration]":
    """Ingest, version, train, evaluate, export and register one model.

    Args:
        overrides: Settings of this run. An empty field uses the value of params.yaml. If the run completes, they are
            written to params.yaml.
        revision: A branch, tag or commit, which is trained as committed, in a folder of its own. Empty: train the
            project folder as it is now, with uncommitted changes.
        labelled: Add the logged requests with labels to the data of a revision. Nothing is trained if fewer than
            monitoring.min_labels of them are new.
    """
    log_errors_without_traceback()
    try:
        workspace = revisions.find_workspace(revision, labelled=labelled)
        say = get_run_logger().info
        with recorded_run(workspace, "train-flow", say=say):
            revisions.prepare(workspace, revision)
            changes = settings.flatten(overrides)
            collected = _collect(workspace, changes, say) if labelled else None
            changes |= collected.dataset.settings if collected else {}
            with overridden(workspace.params, changes, note=workspace.overrides, say=say) as run:
                registration = _train(run.params, workspace, _load_data(run.params, workspace, say))
                run.keep()
                if collected:
                    mark_trained(workspace, collected)
                publish(run.params, workspace, registration)
                note = earlier_version(run.params, workspace, registration)
                return Completed(message=" ".join(filter(None, [note, registration.summary])), data=registration)
    except NotTrained as reason:
        return labelled_data.not_trained(reason)
    except _DataLoadFailed as failure:
        return ended_by(failure.error, failed="DataLoadFailed")  # triggers its own alert
    except RatchetError as error:
        return flow_ended_by(error)


class _DataLoadFailed(RatchetError):
    """The stage ingest has ended with an error."""

    def __init__(self, error: RatchetError) -> None:
        super().__init__(str(error))
        self.error = error


def _collect(workspace: Workspace, changes: dict[str, Any], say: Callable[[str], None]) -> LabelledData | None:
    """Ingest the data of the settings, and return them with all labelled requests, if these can join them."""
    with overridden(workspace.params, changes, note=workspace.overrides, say=say) as run:
        _load_data(run.params, workspace, say)
        return labelled_data.collect(workspace, run.params, say)


def _load_data(params: Params, workspace: Workspace, say: Callable[[str], None]) -> Dataset:
    """Check what can be checked before the work, then ingest the data."""
    provide_parent(workspace, params)
    require_references(params, workspace)
    require_agreement(workspace, params)
    require(params.access, "runners", user(), "run train-flow")
    dvc_stage.refresh_code(params, workspace, say=say)
    try:
        return ingest_stage(params, workspace)
    except RatchetError as error:
        raise _DataLoadFailed(error) from error


def _train(params: Params, workspace: Workspace, dataset: Dataset) -> Registration:
    version = version_stage(workspace, dataset)
    model = train_stage(params, workspace, version)
    evaluation = evaluate_stage(params, workspace, model)
    exported = export_stage(params, workspace, evaluation)
    return register_stage(params, workspace, exported)
