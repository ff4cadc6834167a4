"""`ratchet up`, `down`, `status`, `logs`: the local servers."""

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commands.app import Panel, new_group
from ratchet.counts import count_of
from ratchet.terminal_lines import echo
from ratchet.workspace import Workspace

if TYPE_CHECKING:
    from flows.server.status import ServerStatus

__all__ = ["servers"]

servers = new_group()


@servers.command(rich_help_panel=Panel.SERVERS)
def up(
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Keep running until SIGTERM, Ctrl-C or `ratchet down` (for systemd).")
    ] = False,
) -> None:
    """Start Prefect server, MLflow server, a worker and the model server, and create the deployments."""
    from flows.server import foreground as in_foreground
    from flows.server import lifecycle
    from ratchet import settings
    from ratchet.servers.environment import adopt

    workspace = Workspace.find()
    params = settings.load(workspace.params)
    adopt(workspace)  # before prefect is imported
    begin = in_foreground.stay if foreground else lifecycle.up
    begin(workspace, params, say=echo)
    if not foreground:
        echo("next: ratchet run train-flow/local; ratchet down stops what was started")


@servers.command(
    "run",
    rich_help_panel=Panel.SERVERS,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def start_run(
    context: typer.Context,
    deployment: Annotated[str, typer.Argument(metavar="DEPLOYMENT", help="For example train-flow/local.")],
) -> None:
    """Start a run of a deployment: `prefect deployment run` and its options, once `ratchet up` is done."""
    from flows.server.lifecycle import exclusive
    from flows.server.status import status
    from ratchet.errors import PlatformError
    from ratchet.servers.environment import service_environment

    workspace = Workspace.find()
    with exclusive(workspace, echo):  # an `up` that still starts creates the deployments at its end
        prefect = status(workspace)[0]
    if prefect.address is None or prefect.state not in ("up", "elsewhere"):
        raise PlatformError(
            f"{deployment}: a run needs Prefect's server and a worker, and in {workspace.root} the server is "
            f"{prefect.state}. Fix: `ratchet up`, then the same command again; or `ratchet train`, which needs neither"
        )
    command = [sys.executable, "-m", "prefect", "deployment", "run", deployment, *context.args]
    os.execve(sys.executable, command, service_environment(workspace, prefect.address.removesuffix("/api") + "/api"))


@servers.command("down", rich_help_panel=Panel.SERVERS)
def stop() -> None:
    """Stop what `ratchet up` started."""
    from flows.server.lifecycle import down
    from ratchet.servers.environment import adopt

    workspace = Workspace.find()
    adopt(workspace)  # before prefect is imported
    down(workspace, say=echo)


@servers.command("status", rich_help_panel=Panel.SERVERS)
def show_status() -> None:
    """Show the servers' status. Exit code 0: all that was started is up; 1: something is not; 3: nothing is started."""
    from flows.server.status import status
    from ratchet import settings
    from ratchet.registry.relocation import moved_fault

    workspace = Workspace.find()
    fault = moved_fault(workspace, settings.load(workspace.params).tracking)
    if fault:
        echo(f"tracking.uri: {fault}", err=True)
    services = status(workspace)
    for service in services:
        echo(_line(service))
    for line in _watched(workspace):
        echo(f"monitoring: {line}")
    started = [service for service in services if service.service]
    if not started:
        raise typer.Exit(3)
    if fault or any(service.state != "up" for service in started):
        raise typer.Exit(1)


@servers.command(rich_help_panel=Panel.SERVERS)
def logs(
    service: Annotated[
        str | None, typer.Argument(metavar="SERVICE", help="prefect, mlflow, worker or serving.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Also show new lines as they are written.")] = False,
    lines: Annotated[
        int, typer.Option("--lines", "-n", metavar="N", min=0, help="Number of last lines of each log.")
    ] = 100,
) -> None:
    """Show the servers' logs. Without a name, show all; each line begins with its server's name."""
    from ratchet.servers import read_logs

    try:
        for line in read_logs(Workspace.find(), service, lines=lines, follow=follow):
            echo(line.text if service else f"{line.service:7} | {line.text}")
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


@servers.command(rich_help_panel=Panel.SERVERS)
def sync() -> None:
    """Send MLflow what was recorded while it was unavailable."""
    from ratchet import settings
    from ratchet.registry.runs import send_all

    workspace = Workspace.find()
    sent = send_all(workspace, settings.load(workspace.params))
    for key, run_id in sent:
        echo(f"{key}: sent, MLflow run {run_id}" if run_id else f"{key}: its training, or another sync, sends it")
    if not sent:
        echo("Nothing to send: MLflow has everything.")


@servers.command(rich_help_panel=Panel.SERVERS)
def relocate(
    folder: Annotated[
        Path | None, typer.Argument(metavar="FOLDER", help="The folder that the project had.", show_default=False)
    ] = None,
) -> None:
    """Make MLflow's records follow the project folder, after it was moved or copied."""
    from ratchet import settings
    from ratchet.errors import WorkspaceError
    from ratchet.registry import relocation
    from ratchet.servers.server_record import ServerRecord

    workspace, former = Workspace.find(), Path(os.path.abspath(folder)) if folder else None  # it may not exist
    tracking = settings.load(workspace.params).tracking
    if ServerRecord.read(workspace).alive():
        raise WorkspaceError(f"{workspace.root}: its servers still run. Fix: `ratchet down`, then `ratchet relocate`")
    with workspace.hold("relocating the project"):
        lines = list(relocation.relocate(workspace, tracking, former))
    for line in lines or ["Nothing to relocate: MLflow's files are recorded in this folder."]:
        echo(line)
    echo("next: ratchet audit")


def _watched(workspace: Workspace) -> list[str]:
    """Return a line about each served version that is watched for drift."""
    if not (workspace.state / "monitoring").exists():
        return []  # without NumPy, which takes half of this command's time
    from ratchet.errors import PlatformError
    from ratchet.monitoring.drift_text import lines
    from ratchet.monitoring.watch import read_state

    try:
        return lines(read_state(workspace))
    except PlatformError as error:  # the servers' status does not depend on it
        return [str(error)]


def _line(status: "ServerStatus") -> str:
    from ratchet.servers.server_record import TITLES

    service, title = status.service, TITLES[status.name]
    if service is None:
        where = f"elsewhere, {status.address}" if status.address else "not started"
        return f"{title}: {where}"
    uptime = f" for {_span(time.time() - service.began)}" if status.state == "up" else ""
    process = f" (process {service.pid})" if service.pid and status.state != "down" else ""
    restarts = f", restarted {count_of(service.restarts, 'time')}" if service.restarts else ""
    fix = {
        "silent": f". Fix: `ratchet logs {service.name}` may say why, `ratchet up` restarts it",
        "restarting": f". `ratchet logs {service.name}` says why it died",
        "down": ". Fix: `ratchet up`",
        "not ready": ". No version answers yet",
    }.get(status.state, "")
    note = f": {status.note}" if status.note else ""
    return f"{title}: {status.state}{uptime} at {service.shown}{process}{restarts}{note}{fix}"


def _span(seconds: float) -> str:
    """Format a duration in its two largest units: 40 s, 5 min 3 s, 2 h 14 min, 3 d 4 h."""
    rest, parts = round(seconds), list[str]()
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, rest = divmod(rest, length)
        if count or parts or unit == "s":
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])
