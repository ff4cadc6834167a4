"""The pool's worker: settles what an earlier one left behind, then becomes Prefect's.

Run as a module (`python -m ratchet.platform.worker API NAME RUNS`), by a keeper that may start it again at any time: a
run that died with the worker before would else stay Running for ever, and hold its deployment's only place.
"""

import os
import sys
import time

from ratchet.errors import PlatformError, RatchetError
from ratchet.platform.deployments import settle_runs
from ratchet.platform.servers import POOL, answers
from ratchet.workspace import Workspace

_WORKER = ("worker", "start", "--pool", POOL, "--type", "process")


def main(api: str, name: str, runs: str) -> None:
    """Wait for Prefect's server, which may just be starting again itself, settle, and become the worker.

    Args:
        name: what the pool knows it by.
        runs: how many it carries out at once.
    """
    if not answers(f"{api}/health"):
        print(f"waiting for Prefect's server at {api}", flush=True)
    while not answers(f"{api}/health"):
        time.sleep(0.5)
    try:
        for line in settle_runs(api, name, missed=False):
            print(line, flush=True)
    except PlatformError as error:  # the keeper tries again
        sys.exit(f"ratchet: {error}")
    try:
        if restored := Workspace.find().restore_if_idle():
            print(restored, flush=True)
    except RatchetError as error:  # the next run says the same
        print(f"ratchet: {error}", flush=True)
    os.execv(sys.executable, [sys.executable, "-m", "prefect", *_WORKER, "--name", name, "--limit", runs])


if __name__ == "__main__":
    main(*sys.argv[1:])
