"""Final state of a flow run or stage that ends early; its message is the error's message."""

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
    """Return a Failed state with the error's message, or Cancelled if the run was cancelled.

    The engine's own state would hide the message behind a traceback. Training handles the signal to stop itself, to
    write a checkpoint first, so the engine does not notice a cancellation.

    Args:
        failed: name of the state if it failed.
    """
    if isinstance(error, TrainingStopped) and _is_cancelled():
        return Cancelled(message=str(error), data=error)
    return Failed(name=failed, message=str(error), data=error)


def _is_cancelled() -> bool:
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(UUID(flow_run.get_id())).state
    return state is not None and (state.is_cancelling() or state.is_cancelled())
