"""Workers that nobody hears of any more, their machine gone with them: what they were doing is no longer Running.

A worker that dies alone is started again by its keeper, and settles its own runs. Only when its machine is switched
off, or cut off, must another notice. Whether a run lives, its worker's machine alone knows; so what counts is the
silence of the worker, never that of the run: one that is stopped for an hour, or busy in one long step, is left alone.
"""

import contextlib
import math
import time
from dataclasses import dataclass, field

from ratchet import settings
from ratchet.errors import PlatformError
from ratchet.platform.deployments import settle_runs
from ratchet.platform.servers import POOL, call
from ratchet.workspace import Workspace

__all__ = ["LostWorkers"]

_QUIET = 45.0  # seconds without a heartbeat, of which Prefect's workers send one every 30: not worth a thought yet


@dataclass
class LostWorkers:
    """Watches the workers of the pool, and settles the runs of those that were silent for platform.lost_after seconds.

    Silence is counted by this process's own clock, from when it first saw that a heartbeat was still the last one. So
    nobody is lost because Prefect's server was away itself, the machine slept, or a clock was set.
    """

    workspace: Workspace
    api: str
    _heard: dict[str, tuple[str, float]] = field(default_factory=dict)  # the last heartbeat, and when it was first seen

    def look(self) -> None:
        """Look once; while Prefect's server does not answer there is nothing to be seen.

        Raises:
            SettingsError: params.yaml cannot be read.
        """
        with contextlib.suppress(PlatformError):  # it is still starting, or has too much to do
            for worker in call(self.api, f"/work_pools/{POOL}/workers/filter", {}):
                name, beat, now = worker["name"], worker["last_heartbeat_time"], time.monotonic()
                known, since = self._heard.get(name, ("", now))
                if beat != known:
                    self._heard[name] = beat, now
                elif (silent := now - since) > _QUIET and silent > (most := self._most()):
                    self._settle(name, most)
                    self._heard[name] = beat, math.inf  # once for each silence

    def _most(self) -> int:
        """platform.lost_after as it is now: a server runs for months."""
        return settings.load(self.workspace.params).platform.lost_after

    def _settle(self, name: str, most: int) -> None:
        for line in settle_runs(self.api, name, missed=False, why=f"Worker {name} was not heard of for {most:,} s"):
            print(line, flush=True)
