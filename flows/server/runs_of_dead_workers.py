"""Runs whose worker has ended: Prefect's server would show them as Running or Cancelling forever.

A worker that dies is restarted by its supervisor, and corrects its own runs (flows/server/worker.py). Only if its
machine is switched off or disconnected must Prefect's server do it (`StaleWorkers`).
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
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
from prefect.client.schemas.objects import FlowRun, StateType, WorkerStatus
from prefect.states import Cancelled

from flows.lost_server import is_going_down
from flows.run_records import close_dead_runs, close_run, lost_state
from ratchet import settings
from ratchet.servers.start import POOL
from ratchet.workspace import Workspace

__all__ = ["StaleWorkers", "close_runs"]

_ACTIVE = [StateType.RUNNING, StateType.PENDING, StateType.CANCELLING]
_QUIET = 45.0  # seconds without a heartbeat that are normal: Prefect's workers send one every 30


def close_runs(
    client: SyncPrefectClient,
    worker: str,
    *,
    missed: bool = False,
    down: bool = False,
    reason: str = "The worker ended before this run did",
) -> Iterator[str]:
    """Set the final state of each run that `worker` took and no process carries out any more. Yield a line for each.

    Call it when that worker has ended. Otherwise such a run would stay Running and occupy its deployment's only slot.
    Runs of other workers are left alone: only their own machine knows whether they still run.

    Args:
        missed: also cancel scheduled runs whose time passed while nothing was up, instead of running them all now.
        down: `ratchet down` ended the worker.
        reason: what happened to the worker, for the run's state.
    """
    others = [other for other in client.read_workers_for_work_pool(POOL) if other.name != worker]
    alone = not any(other.status == WorkerStatus.ONLINE for other in others)
    for run in _runs(client, _ACTIVE):
        owner = run.labels.get("prefect.worker.name")  # missing between taking a run and labelling it
        if owner == worker or (alone and owner is None):
            yield close_run(client, run, lost_state(run, reason, down=down))
    if missed and alone:
        for run in _runs(client, [StateType.SCHEDULED], before=datetime.now(UTC)):
            if run.auto_scheduled:
                yield close_run(
                    client, run, Cancelled(name="Missed", message="No worker was up at its scheduled time.")
                )


def _runs(client: SyncPrefectClient, states: list[StateType], before: datetime | None = None) -> list[FlowRun]:
    runs = FlowRunFilter(
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=states)),
        expected_start_time=FlowRunFilterExpectedStartTime(before_=before) if before else None,
    )
    pool = WorkPoolFilter(name=WorkPoolFilterName(any_=[POOL]))
    return client.read_flow_runs(flow_run_filter=runs, work_pool_filter=pool)


@dataclass
class StaleWorkers:
    """Closes the runs of this folder's dead processes, and of workers silent for platform.lost_after seconds.

    Only a worker's silence counts, never that of a run: a run may be suspended for an hour or busy in one long step.
    Silence is measured by this process's own clock, from when it first saw the last heartbeat. So no worker counts as
    stale because Prefect's server was down itself, the machine slept, or a clock was set.
    """

    workspace: Workspace
    client: SyncPrefectClient
    # For each worker its last heartbeat, and when that was first seen.
    _last: dict[str, tuple[datetime | None, float]] = field(default_factory=dict)

    def check(self) -> None:
        """Check once.

        Raises:
            SettingsError: params.yaml cannot be read.
            httpx.HTTPError: Prefect's server does not answer.
        """
        lost = () if is_going_down() else close_dead_runs(self.client, self.workspace)  # else the worker's end does
        for line in lost:
            print(line, flush=True)
        for worker in self.client.read_workers_for_work_pool(POOL):
            name, beat, now = worker.name, worker.last_heartbeat_time, time.monotonic()
            latest, since = self._last.get(name, (None, now))
            if name not in self._last or beat != latest:
                self._last[name] = beat, now
            elif now - since > _QUIET and now - since > (limit := self._limit()):
                for line in close_runs(self.client, name, reason=f"Worker {name} sent no heartbeat for {limit:,} s"):
                    print(line, flush=True)
                self._last[name] = beat, math.inf  # once for each silence

    def _limit(self) -> int:
        """Return platform.lost_after as it is now: a server runs for months."""
        return settings.load(self.workspace.params).platform.lost_after
