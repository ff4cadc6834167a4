"""Runs whose worker has ended: Prefect's server would show them as Running forever, unless their state is corrected."""

from collections.abc import Iterator
from datetime import UTC, datetime

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterExpectedStartTime,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import FlowRun, State, StateType, WorkerStatus
from prefect.states import Cancelled, Crashed

from ratchet.servers.start import POOL

__all__ = ["close_interrupted_runs"]

_ACTIVE = [StateType.RUNNING, StateType.PENDING, StateType.CANCELLING]


def close_interrupted_runs(
    client: SyncPrefectClient, worker: str, *, missed: bool, reason: str = "The worker ended before this run did"
) -> Iterator[str]:
    """Set the final state of each run that `worker` took and no process carries out any more. Yield a line for each.

    Call it when that worker has ended. Otherwise such a run would stay Running and occupy its deployment's only slot.
    Runs of other workers are left alone: only their own machine knows whether they still run.

    Args:
        missed: also cancel scheduled runs whose time passed while nothing was up, instead of running them all now.
        reason: what happened to the worker, for the run's state.
    """
    others = [other for other in client.read_workers_for_work_pool(POOL) if other.name != worker]
    alone = not any(other.status == WorkerStatus.ONLINE for other in others)
    for run in _runs(client, _ACTIVE):
        owner = run.labels.get("prefect.worker.name")  # missing between taking a run and labelling it
        if owner == worker or (alone and owner is None):
            message = (
                f"{reason}. To continue at its last checkpoint: retry it, or run it again with the same parameters."
            )
            cancelling = run.state is not None and run.state.is_cancelling()
            yield _close(client, run, Cancelled(message=message) if cancelling else Crashed(message=message))
    if missed and alone:
        for run in _runs(client, [StateType.SCHEDULED], before=datetime.now(UTC)):
            if run.auto_scheduled:
                yield _close(client, run, Cancelled(name="Missed", message="No worker was up at its scheduled time."))


def _runs(client: SyncPrefectClient, states: list[StateType], before: datetime | None = None) -> list[FlowRun]:
    runs = FlowRunFilter(
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=states)),
        expected_start_time=FlowRunFilterExpectedStartTime(before_=before) if before else None,
    )
    pool = WorkPoolFilter(name=WorkPoolFilterName(any_=[POOL]))
    return client.read_flow_runs(flow_run_filter=runs, work_pool_filter=pool)


def _close(client: SyncPrefectClient, run: FlowRun, state: State[object]) -> str:
    client.set_flow_run_state(run.id, state, force=True)
    return f"run {run.name} was {run.state_name}, now {state.name}"
