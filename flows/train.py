"""train-flow: the product on one page."""

from typing import Annotated

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed
from pydantic import Field

from flows import production, quotas
from flows.artifacts import publish
from flows.ending import ended_by
from flows.stages import evaluate_stage, ingest_stage, register_stage, train_stage, version_stage
from flows.watch import tell_mistakes_plainly
from ratchet import settings
from ratchet.errors import RatchetError
from ratchet.params import Overrides
from ratchet.registry.access import require, user
from ratchet.workspace import disk_errors
from tasks.register import Registration

__all__ = ["train_flow"]


@flow(name="train-flow", persist_result=False)
def train_flow(
    overrides: Overrides | None = None,  # type: ignore[valid-type]
    revision: Annotated[str, Field(min_length=1)] | None = None,
) -> "State[Registration]":
    """Ingest, version, train, evaluate and register one model.

    Args:
        overrides: Settings to change in params.yaml before the run; what is left empty stays as the file has it.
        revision: A branch, tag or commit, to be trained as it is committed, in a folder of its own; empty: what lies in
            the project folder now, uncommitted changes too.
    """
    tell_mistakes_plainly()
    try:
        workspace = production.find_workspace(revision)
        with quotas.a_run(), disk_errors(workspace.root), workspace.hold("train-flow", wait=5.0):
            production.prepare(workspace, revision)
            changes = settings.flatten(overrides) if overrides else {}
            params = settings.override(workspace.params, changes)
            require(params.access, "runners", user(), "run train-flow")  # before the work, not after it
            try:
                dataset = ingest_stage(params, workspace)
            except RatchetError as error:
                return ended_by(error, failed="DataLoadFailed")  # by which an alert is called so
            version = version_stage(workspace, dataset)
            model = train_stage(params, workspace, version)
            evaluation = evaluate_stage(params, workspace, model)
            registration = register_stage(params, workspace, evaluation)
            publish(params, workspace)
            return Completed(message=registration.words, data=registration)
    except RatchetError as error:
        return ended_by(error)
