"""Commands for the local servers: `ratchet up`, `down`, `status`, `logs`."""

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
        bool,
        typer.Option("--foreground", help="Keep running, for systemd; SIGTERM, Ctrl-C or `ratchet down` stops it."),
    ] = False,
) -> None:
    """Start the Prefect server, the MLflow server and a worker; restart them if they die.

    Also creates the deployments.
    """
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
    """Show the state of the servers. Exit code: 0 all up, 1 some down, 3 none started."""
    from ratchet import platform

    statuses = platform.status(Workspace.find())
    for server in statuses:
        typer.echo(_line(server))
    started = [server for server in statuses if server.started]
    if not started:
        raise typer.Exit(3)
    if any(server.state != "up" for server in started):
        raise typer.Exit(1)


@servers.command()
def logs(
    part: Annotated[str | None, typer.Argument(metavar="[prefect|mlflow|worker]")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines as they are written.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Old lines to print of each log.")] = 100,
) -> None:
    """Print the servers' logs. Without a name, each line begins with the server's name."""
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
    uptime = f" for {_span(server.seconds)}" if server.seconds is not None else ""
    process = f" (process {server.pid})" if server.pid else ""
    restarts = f", restarted {server.restarts} time{'s' if server.restarts > 1 else ''}" if server.restarts else ""
    fixes = {
        "silent": f"; see `ratchet logs {server.name}`; `ratchet up` restarts it",
        "restarting": f"; see `ratchet logs {server.name}`",
        "down": "; `ratchet up` starts it",
    }
    return f"{server.title}: {server.state}{uptime} at {server.shown}{process}{restarts}{fixes.get(server.state, '')}"


def _span(seconds: float) -> str:
    """Write a duration in its two largest units: 40 s, 5 min 3 s, 2 h 14 min, 3 d 4 h."""
    left, parts = round(seconds), list[str]()
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, left = divmod(left, length)
        if count or parts or unit == "s":
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])
