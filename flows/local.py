"""`ratchet train` is `python -m flows.local`: the flow here and now, against the server that is up or a private one."""

import atexit
import os
import sys
import traceback
from typing import TYPE_CHECKING

from flows import dvc_stage
from ratchet import settings
from ratchet.errors import RatchetError
from ratchet.workspace import Workspace, disk_errors
from tasks.command import INTERRUPTED

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

__all__ = ["run_here"]


def run_here(workspace: Workspace) -> int:
    """Run train-flow on the workspace; the exit code. Nothing is started where nothing is to be done."""
    from tasks.summary import summary

    params = settings.load(workspace.params)
    if workspace.registration.exists() and dvc_stage.all_unchanged(workspace.root):
        _tell(summary(params, workspace), "Nothing to do: code, data and settings are those of the last run.")
        return 0

    from ratchet.platform import PrefectServer, client_environment

    named = params.platform
    server = PrefectServer.begin(workspace, database=named.prefect_database, api=named.prefect_api)
    atexit.register(server.stop)  # before prefect is imported, so after it has sent its last logs and events
    os.environ.update(client_environment(workspace, server.api_url))
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")  # the terminal has its own sentences
    _import_ahead()
    server.wait()
    from flows.train import train_flow

    state = train_flow(return_state=True)
    if not state.is_completed():
        return _fail(state)
    _tell(summary(settings.load(workspace.params), workspace), None)
    return 0


def _import_ahead() -> None:
    """Import what the stages will need while the server starts: each waits for the disk and one core."""
    import mlflow.pyfunc  # noqa: F401
    import polars  # noqa: F401
    import torch  # noqa: F401


def _fail(state: "State") -> int:
    error = state.result(raise_on_failure=False)
    if isinstance(error, BaseException) and not isinstance(error, RatchetError):
        traceback.print_exception(error)  # not a person's mistake: ours, or the machine's
    print(f"ratchet: {state.message}", file=sys.stderr)
    return 1


def _tell(lines: dict[str, str], first: str | None) -> None:
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    console.print()
    if first:
        console.print(first, style="bold")
    width = max(map(len, lines))
    for caption, text in lines.items():
        console.print(f"  [bold]{caption:<{width}}[/]  ", end="")
        console.print(text, markup=False)
    console.print()
    console.print("Next: [bold]ratchet up[/] starts the servers (MLflow's page compares runs);", markup=True)
    console.print(
        "      [bold]ratchet train --set training.epochs=60[/] trains another; [bold]dvc repro[/] does the same work."
    )


if __name__ == "__main__":
    try:
        here = Workspace.find()
        with disk_errors(here.root), here.hold("ratchet train"):
            code = run_here(here)
        sys.exit(code)
    except RatchetError as mistake:
        sys.exit(f"ratchet: {mistake}")
    except KeyboardInterrupt:
        print("ratchet: interrupted; the same command continues where it stood", file=sys.stderr)
        sys.exit(INTERRUPTED)
