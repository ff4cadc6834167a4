"""`ratchet train`: run train-flow here and now, without a deployment."""

import atexit
import os
import sys
import traceback
from typing import TYPE_CHECKING

from flows import dvc_stage
from ratchet import settings
from ratchet.errors import RatchetError
from ratchet.settings.run_settings import RunSettings, overridden
from ratchet.workspace import Workspace, disk_errors
from tasks.stage_runner import INTERRUPTED

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

__all__ = ["main", "run_here"]


def run_here(workspace: Workspace, run: RunSettings) -> str | None:
    """Run train-flow on the workspace; why it failed, or None. Nothing is started where nothing is to be done."""
    from tasks.summary import summary

    params = run.params
    if workspace.registration.exists() and dvc_stage.all_unchanged(workspace.root):
        run.keep()
        _tell(summary(params, workspace), "Nothing to do: code, data and settings are those of the last run.")
        return None

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
        return _failure(state)
    run.keep()
    _tell(summary(settings.load(workspace.params), workspace), None)
    return None


def _import_ahead() -> None:
    """Import what the stages will need while the server starts: each waits for the disk and one core."""
    import mlflow.pyfunc  # noqa: F401
    import polars  # noqa: F401
    import torch  # noqa: F401


def _failure(state: "State") -> str:
    error = state.result(raise_on_failure=False)
    if isinstance(error, BaseException) and not isinstance(error, RatchetError):
        traceback.print_exception(error)  # not a person's mistake: ours, or the machine's
    return str(state.message)


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


def main(assignments: list[str]) -> int:
    """Run train-flow with those settings (KEY=VALUE) in the folder around; the exit code."""

    def say(text: str) -> None:
        print(f"ratchet: {text}", file=sys.stderr)

    changes = settings.parse_assignments(assignments)
    workspace = Workspace.find()
    if not workspace.overrides.exists():  # else the file is not yet as it was before a killed run
        settings.plan(workspace.params, changes)  # a wrong value is refused before anything is written
    with disk_errors(workspace.root), workspace.hold("ratchet train") as restored:
        if restored:
            say(restored)
        with overridden(workspace.params, changes, note=workspace.overrides, say=say) as run:
            failure = run_here(workspace, run)
        if failure is not None:
            say(failure)  # the last line, below what became of params.yaml
    return 0 if failure is None else 1


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except RatchetError as mistake:
        sys.exit(f"ratchet: {mistake}")
    except KeyboardInterrupt:
        print("ratchet: interrupted; the same command continues where it stood", file=sys.stderr)
        sys.exit(INTERRUPTED)
