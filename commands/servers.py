"""`ratchet up`, `down`, `status`, `logs`: the local servers."""

from typing import TYPE_CHECKING, Annotated

import typer

from commands.app import new_group
from ratchet.workspace import Workspace

if TYPE_CHECKING:
    from ratchet import platform

__all__ = ["servers"]

servers = new_group()


@servers.command()
def up(
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay; SIGTERM, Ctrl-C or `ratchet down` stops them: for systemd.")
    ] = False,
) -> None:
    """Start Prefect server, MLflow server and a worker, and create the deployments. What dies is started again."""
    from ratchet import platform, settings
    from ratchet.registry.mlflow_store import address, artifacts

    workspace = Workspace.find()
    params = settings.load(workspace.params)
    begin = platform.stay if foreground else platform.up
    begin(
        workspace,
        params.platform,
        tracking_uri=address(workspace, params.tracking),
        artifacts=artifacts(workspace, params.tracking),
        told=params.alerts,
        say=typer.echo,
    )
    if not foreground:
        typer.echo("next: prefect deployment run train-flow/local; ratchet down stops what was started")


@servers.command()
def down() -> None:
    """Stop what `ratchet up` started."""
    from ratchet import platform

    platform.down(Workspace.find(), say=typer.echo)


@servers.command()
def status() -> None:
    """Say how the servers are. Exit code 0: all that was started is up; 1: something is not; 3: nothing was started."""
    from ratchet import platform

    found = platform.status(Workspace.find())
    for server in found:
        typer.echo(_line(server))
    started = [server for server in found if server.started]
    if not started:
        raise typer.Exit(3)
    if any(server.state != "up" for server in started):
        raise typer.Exit(1)


@servers.command()
def logs(
    part: Annotated[str | None, typer.Argument(metavar="[prefect|mlflow|worker]")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is written from now on.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many of each to begin with.")] = 100,
) -> None:
    """Show what the servers wrote; of all, each line begins with the server's name."""
    from ratchet import platform

    try:
        for line in platform.read_logs(Workspace.find(), part, lines=lines, follow=follow):
            typer.echo(line.text if part else f"{line.part:7} | {line.text}")
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _line(server: "platform.ServerStatus") -> str:
    if not server.started:
        where = f"elsewhere, {server.address}" if server.address else "not started"
        return f"{server.title}: {where}"
    up_for = f" for {_span(server.seconds)}" if server.seconds is not None else ""
    who = f" (process {server.pid})" if server.pid else ""
    again = f", started again {server.restarts} time{'s' if server.restarts > 1 else ''}" if server.restarts else ""
    ways_out = {
        "silent": f"; `ratchet logs {server.name}` may say why, `ratchet up` starts it anew",
        "restarting": f"; `ratchet logs {server.name}` says why it died",
        "down": "; `ratchet up` starts it",
    }
    return f"{server.title}: {server.state}{up_for} at {server.shown}{who}{again}{ways_out.get(server.state, '')}"


def _span(seconds: float) -> str:
    """The two largest units: 40 s, 5 min 3 s, 2 h 14 min, 3 d 4 h."""
    left, parts = round(seconds), list[str]()
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, left = divmod(left, length)
        if count or parts or unit == "s":
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])
