"""The pool's worker: corrects the runs that an earlier worker left behind, then becomes Prefect's own worker.

Run as a module (`python -m flows.server.worker API NAME RUNS`) by a supervisor, which may restart it at any time. A run
that died with the worker before would otherwise stay Running, and occupy its deployment's only slot.
"""

import os
import sys
import time

from flows.server.client import prefect_client
from flows.server.interrupted_runs import close_interrupted_runs
from ratchet.errors import PlatformError, RatchetError
from ratchet.servers.http import answers
from ratchet.servers.start import POOL
from ratchet.workspace import Workspace

_WORKER = ("worker", "start", "--pool", POOL, "--type", "process")


def main(api: str, name: str, runs: str) -> None:
    """Wait for Prefect's server, which may be restarting itself, correct runs, and become the worker.

    Args:
        name: the worker's name in the pool.
        runs: number of runs that it carries out at once.
    """
    if not answers(f"{api}/health"):
        print(f"waiting for Prefect's server at {api}", flush=True)
    while not answers(f"{api}/health"):
        time.sleep(0.5)
    try:
        with prefect_client(api) as client:
            for line in close_interrupted_runs(client, name, missed=False):
                print(line, flush=True)
    except PlatformError as error:  # the supervisor restarts this process
        sys.exit(f"ratchet: {error}")
    try:
        if restored := Workspace.find().restore_if_idle():
            print(restored, flush=True)
    except RatchetError as error:  # the next run reports the same error
        print(f"ratchet: {error}", flush=True)
    os.execv(sys.executable, [sys.executable, "-m", "prefect", *_WORKER, "--name", name, "--limit", runs])


if __name__ == "__main__":
    main(*sys.argv[1:])
