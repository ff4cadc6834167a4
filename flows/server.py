"""Prefect's server, as `ratchet up` starts it: it knows the blocks that send alerts, and looks after its machine.

`python -m flows.server API server start ...` is `prefect server start ...` with that; API is where it will answer.
"""

import sys
import threading

from prefect.cli import app

import flows.alerts  # noqa: F401  (Prefect finds the blocks' classes by their having been imported)
from ratchet.platform.pressure import Watch
from ratchet.workspace import Workspace

if __name__ == "__main__":
    watch = Watch(Workspace.find(), api=sys.argv.pop(1))
    threading.Thread(target=watch.stay, name="machine pressure", daemon=True).start()
    app()
