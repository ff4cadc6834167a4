"""Prefect's server, as `ratchet up` starts it: it knows the blocks that send alerts, and looks out for trouble.

`python -m flows.server API server start ...` is `prefect server start ...` with that; API is where it will answer.
"""

import sys

from prefect.cli import app

import flows.alerts  # noqa: F401  (Prefect finds the blocks' classes by their having been imported)
from ratchet.platform.lookout import look_out
from ratchet.platform.lost import LostWorkers
from ratchet.platform.pressure import Watch
from ratchet.workspace import Workspace

if __name__ == "__main__":
    workspace, api = Workspace.find(), sys.argv.pop(1)
    look_out(Watch(workspace, api).look, "machine pressure")
    look_out(LostWorkers(workspace, api).look, "lost workers")
    app()
