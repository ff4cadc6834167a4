"""`ratchet train`: the flow in this process, against the server that is up or one of its own."""

import logging
import os
import sys
import threading
from typing import TYPE_CHECKING

from flows import dvc_stage
from ratchet import settings
from ratchet.workspace import Workspace

if TYPE_CHECKING:
    from prefect.states import State

__all__ = ["run_here"]


def run_here(workspace: Workspace) -> int:
    """Run train-flow on the workspace; the exit code. Nothing is started where nothing is to be done."""
    from tasks.summary import summary

    params = settings.load(workspace.params)
    if workspace.registration.exists() and dvc_stage.all_unchanged(workspace.root):
        _tell(summary(params, workspace), "Nothing to do: code, data and settings are those of the last run.")
        return 0

    from ratchet.platform import PrefectServer

    server = PrefectServer.begin(workspace)
    try:
        _import_ahead()  # what the stages need is read from disk while the server starts
        os.environ["PREFECT_API_URL"] = server.wait()
        state = _run()
    finally:
        server.stop()
    if not state.is_completed():
        print(f"ratchet: {state.message}", file=sys.stderr)
        return 1
    _tell(summary(settings.load(workspace.params), workspace), None)
    return 0


def _import_ahead() -> None:
    def heavy() -> None:
        import mlflow.pyfunc  # noqa: F401
        import polars  # noqa: F401
        import torch  # noqa: F401

    thread = threading.Thread(target=heavy, daemon=True)
    thread.start()
    thread.join()


def _run() -> "State":
    os.environ.setdefault("PREFECT_SERVER_ALLOW_EPHEMERAL_MODE", "false")
    from flows.train import train_flow

    for name in ("prefect", "prefect.flow_runs", "prefect.task_runs"):  # the terminal has its own bar and sentences
        logger = logging.getLogger(name)
        logger.handlers = [handler for handler in logger.handlers if "Console" not in type(handler).__name__]
    return train_flow(return_state=True)


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
    console.print("      [bold]ratchet train --set training.epochs=60[/] trains another; [bold]dvc repro[/] does the same work.")
