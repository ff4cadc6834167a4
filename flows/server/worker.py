"""The pool's worker: corrects the runs that an earlier worker left behind, then becomes Prefect's own worker.

The supervisor runs it as a module, and may restart it at any time: `python -m flows.server.worker start API NAME RUNS`,
and `close API NAME` after its end. A run that died with its worker would otherwise stay Running, and occupy its
deployment's only slot. prefect is imported once its server answers, because both would import it at the same time.
"""

import os
import sys
import time

from ratchet.errors import PlatformError, RatchetError
from ratchet.servers.http import answers
from ratchet.servers.start import POOL
from ratchet.servers.supervisor import RESTARTS
from ratchet.workspace import Workspace

_WORKER = ("worker", "start", "--pool", POOL, "--type", "process")


def start(api: str, name: str, runs: str) -> None:
    """Wait for Prefect's server, which may be restarting itself, correct runs, and become the worker."""
    if not answers(f"{api}/health"):
        print(f"waiting for Prefect's server at {api}", flush=True)
    while not answers(f"{api}/health"):
        time.sleep(0.2)
    close(api, name, ended=False, missed=os.environ.get(RESTARTS) == "0")
    try:
        if restored := Workspace.find().restore_if_idle():
            print(restored, flush=True)
    except RatchetError as error:  # the next run reports the same error
        print(f"ratchet: {error}", flush=True)
    os.execv(sys.executable, [sys.executable, "-m", "prefect", *_WORKER, "--name", name, "--limit", runs])


def close(api: str, name: str, *, missed: bool = False, ended: bool = True) -> None:
    """Correct the state of the runs that this folder's worker left behind, if Prefect's server answers.

    Args:
        ended: the worker has ended for good, by `ratchet down` or with its machine.
    """
    if not answers(f"{api}/health"):
        return
    from flows.lost_server import is_going_down
    from flows.run_records import close_dead_runs
    from flows.server.client import prefect_client
    from flows.server.deployments import create_pool
    from flows.server.runs_of_dead_workers import close_runs

    try:
        with prefect_client(api) as client:
            create_pool(client)
            down, workspace = ended and is_going_down(), Workspace.find()
            dead = close_dead_runs(client, workspace, down=down)
            for line in (*dead, *close_runs(client, name, missed=missed, down=down)):
                print(line, flush=True)
    except PlatformError as error:  # the supervisor restarts this process
        sys.exit(f"ratchet: {error}")


if __name__ == "__main__":
    if sys.argv[1] == "start":
        start(*sys.argv[2:])
    else:
        close(*sys.argv[2:])
