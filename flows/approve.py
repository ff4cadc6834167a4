"""approve-flow: approve or reject a model version through the form of this deployment on Prefect's page.

The decision is an entry in the ledger. No flow run waits for it, so no pause times out and no restart loses it.
"""

from typing import Annotated

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed
from pydantic import Field

from flows.cancelled_runs import ended_by
from flows.progress import log_errors_without_traceback
from flows.run_names import run_name
from flows.run_records import recording
from ratchet import settings
from ratchet.errors import RatchetError
from ratchet.registry.access import user
from ratchet.registry.models import ModelRegistry
from ratchet.registry.promotion import Promotions
from ratchet.workspace import Workspace

__all__ = ["approve_flow"]


@flow(name="approve-flow", flow_run_name=run_name, persist_result=False)
def approve_flow(
    version: Annotated[str, Field(min_length=1)],
    who: Annotated[str, Field(min_length=1)],
    why: Annotated[str, Field(min_length=1)],
    promote: bool = True,
    reject: bool = False,
) -> "State[str]":
    """Approve a version as it is now, and make it champion; or reject it.

    Args:
        version: NAME/VERSION or NAME@ALIAS, digits@challenger for example.
        who: Your name, as in access.approvers. Prefect's server knows no users, and does not check it.
        why: The reason, for the ledger.
        promote: Also make it champion.
        reject: Reject it instead; takes an approval back.
    """
    log_errors_without_traceback()
    try:
        workspace = Workspace.find()
        with recording(workspace):
            params = settings.load(workspace.params)
            model = ModelRegistry(workspace, params).find(version)
            promotions, via = Promotions(workspace, params, model.name), f"Prefect, by a worker of {user()}"
            act, done = (promotions.reject, "rejected") if reject else (promotions.approve, "approved")
            act(model, who=who, why=why, via=via)
            message = f"{model.name} version {model.number}: {done} by {who}"
            if promote and not reject:
                promotions.promote(model, who=who, why=why, via=via)
                message += ", and champion"
        return Completed(message=message, data=message)
    except RatchetError as error:
        return ended_by(error)
