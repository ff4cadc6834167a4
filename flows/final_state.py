"""The state of a flow run, or of one of its stages, that ends before its time: its message is a person's way out."""

from typing import Any
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Cancelled, Failed

from ratchet.errors import RatchetError
from tasks.stopping import TrainingStopped

__all__ = ["ended_by"]


def ended_by(error: RatchetError, *, failed: str = "Failed") -> "State[Any]":
    """Failed with the error's own words, in which a traceback would hide them; Cancelled if a person has asked for it.

    Training takes a request to leave for itself, so as to write a checkpoint first; Prefect's engine, which would know
    what the request was, does not see it.

    Args:
        failed: the name of the state, if it failed.
    """
    if isinstance(error, TrainingStopped) and _is_cancelled():
        return Cancelled(message=str(error), data=error)
    return Failed(name=failed, message=str(error), data=error)


def _is_cancelled() -> bool:
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(UUID(flow_run.get_id())).state
    return state is not None and (state.is_cancelling() or state.is_cancelled())
