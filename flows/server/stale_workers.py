"""Workers without a heartbeat, because their machine is gone: their runs are marked as crashed.

A worker that dies alone is restarted by its supervisor, and corrects its own runs. Only if its machine is switched off
or disconnected must Prefect's server do it. Only the worker's silence counts, never that of a run: a run may be
suspended for an hour or busy in one long step.
"""

import math
import time
from dataclasses import dataclass, field
from datetime import datetime

from prefect.client.orchestration import SyncPrefectClient

from flows.server.interrupted_runs import close_interrupted_runs
from ratchet import settings
from ratchet.servers.start import POOL
from ratchet.workspace import Workspace

__all__ = ["StaleWorkers"]

_QUIET = 45.0  # seconds without a heartbeat that are normal: Prefect's workers send one every 30


@dataclass
class StaleWorkers:
    """Closes the runs of workers that were silent for platform.lost_after seconds.

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
        for worker in self.client.read_workers_for_work_pool(POOL):
            name, beat, now = worker.name, worker.last_heartbeat_time, time.monotonic()
            known, since = self._last.get(name, (None, now))
            if name not in self._last or beat != known:
                self._last[name] = beat, now
            elif (silent := now - since) > _QUIET and silent > (limit := self._limit()):
                reason = f"Worker {name} sent no heartbeat for {limit:,} s"
                for line in close_interrupted_runs(self.client, name, missed=False, reason=reason):
                    print(line, flush=True)
                self._last[name] = beat, math.inf  # once for each silence

    def _limit(self) -> int:
        """Return platform.lost_after as it is now: a server runs for months."""
        return settings.load(self.workspace.params).platform.lost_after
