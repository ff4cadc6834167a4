"""Cancelled flow runs, and the final state of every run or stage that ends early.

Prefect's worker sends SIGTERM to the process of a cancelled run. Training (tasks/stopping.py) then writes a checkpoint
and raises `TrainingStopped`, which becomes the state Cancelled here. If the worker or its machine dies meanwhile,
flows/server/runs_of_dead_workers.py sets the state.
"""

from typing import Any
from uuid import UUID

from prefect.artifacts import create_markdown_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.runtime import deployment, flow_run
from prefect.states import Cancelled, Failed

from flows.lost_server import give_up_if_lost, is_going_down, is_signal
from ratchet.errors import RatchetError
from ratchet.reports.templating import escaped
from tasks.stopping import TrainingStopped

__all__ = ["ended_by", "flow_ended_by"]


def ended_by(error: RatchetError, *, failed: str = "Failed") -> "State[Any]":
    """Return a Failed state with the error's message, or Cancelled if the run was cancelled; Stopped by `ratchet down`.

    The engine's own state would hide the message behind a traceback. Training handles the signal to stop itself, to
    write a checkpoint first, so the engine does not notice a cancellation.

    Args:
        failed: name of the state if it failed.

    Raises:
        TrainingStopped: the server is gone, so no state can be recorded there.
    """
    if is_signal(error) and give_up_if_lost():
        raise error
    if isinstance(error, TrainingStopped) and _is_cancelled():
        return Cancelled(message=str(error), data=error)
    if is_signal(error) and is_going_down():
        message = f"{error}. To continue: `ratchet up`, then {_how_to_continue()}"
        return Failed(name="Stopped", message=message, data=error)  # not Failed: no alert is sent
    return Failed(name=failed, message=str(error), data=error)


def _is_cancelled() -> bool:
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(UUID(flow_run.get_id())).state
    return state is not None and (state.is_cancelling() or state.is_cancelled())


def flow_ended_by(error: RatchetError) -> "State[Any]":
    """Return the state of a flow as `ended_by`. If it was cancelled, also publish why, where and how to continue.

    Prefect's worker replaces the message of a cancelled run's state.
    """
    state = ended_by(error)
    if state.is_cancelled():
        _publish_stop(str(error))
    return state


def _how_to_continue() -> str:
    if not deployment.id:  # Prefect retries no such run
        return "start it again as before"
    return f"`prefect flow-run retry {flow_run.get_id()}`, or start one with the same parameters"


def _publish_stop(message: str) -> None:
    how = _how_to_continue()
    get_run_logger().warning("%s. To continue: %s", message, how)
    create_markdown_artifact(
        f"# Stopped\n\n{escaped(message)}.\n\nTo continue: {how}.\n",
        key="stopped",
        description="Where the run stopped, and how to continue it",
    )
