"""approve-flow: a person's approval, given in Prefect's form of this deployment.

Nothing waits for it: the approval is an entry in the ledger, so no pause runs out and no restart forgets it.
"""

from typing import Annotated

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed
from pydantic import Field

from flows.final_state import ended_by
from flows.progress import tell_mistakes_plainly
from ratchet import settings
from ratchet.errors import RatchetError
from ratchet.registry.access import user
from ratchet.registry.models import ModelRegistry
from ratchet.registry.promotion import Promotions
from ratchet.workspace import Workspace

__all__ = ["approve_flow"]


@flow(name="approve-flow", persist_result=False)
def approve_flow(
    version: Annotated[str, Field(min_length=1)],
    who: Annotated[str, Field(min_length=1)],
    why: Annotated[str, Field(min_length=1)],
    promote: bool = True,
) -> "State[str]":
    """Approve a version as it is now, and make it champion.

    Args:
        version: NAME/VERSION or NAME@ALIAS, digits@challenger for example.
        who: Your name, as access.approvers has it. Prefect's server knows no users: it takes you at your word.
        why: The reason; the ledger keeps it.
        promote: Make it champion, too.
    """
    tell_mistakes_plainly()
    try:
        workspace = Workspace.find()
        params = settings.load(workspace.params)
        found = ModelRegistry(workspace, params).find(version)
        succession, via = Promotions(workspace, params, found.name), f"Prefect, by a worker of {user()}"
        succession.approve(found, who=who, why=why, via=via)
        told = f"{found.name} version {found.number}: approved by {who}"
        if promote:
            succession.promote(found, who=who, why=why, via=via)
            told += ", and champion"
        return Completed(message=told, data=told)
    except RatchetError as error:
        return ended_by(error)
