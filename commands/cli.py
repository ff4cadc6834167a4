"""`ratchet ...`: each command a few lines over the rooms."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from commands.data import data
from commands.models import models
from commands.plain import PLAIN, become
from commands.servers import servers
from ratchet.errors import RatchetError
from ratchet.workspace import Workspace, disk_errors

__all__ = ["main"]

app = typer.Typer(help="Train, judge and register models; the champion only ever moves forward.", **PLAIN)
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A setting of this run; stays if it completes. Repeatable."),
]


def main() -> None:
    """The command line. A person's mistake ends it with its sentence and exit code 1, never with a traceback."""
    try:
        with disk_errors(Path.cwd()):
            app()
    except RatchetError as error:
        sys.exit(f"ratchet: {error}")


@app.command("set")
def set_(assignments: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...")]) -> None:
    """Change settings in params.yaml, comments kept."""
    from ratchet import settings

    workspace = Workspace.find()
    _take_back(workspace)
    settings.override(workspace.params, settings.parse_assignments(assignments))


def _take_back(workspace: Workspace) -> None:
    """Take back the settings of a killed run before params.yaml is changed."""
    if restored := workspace.restore_if_idle():
        typer.echo(restored, err=True)


@app.command()
def use(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace settings that are not committed, too.")] = False,
) -> None:
    """Put an example's settings into params.yaml; without a name, list the examples."""
    from ratchet.settings import errors as settings_errors
    from ratchet.settings import examples

    workspace = Workspace.find()
    if name is None:
        for example in examples.listed(workspace.root):
            typer.echo(f"{example.name:15} {example.about}")
        return
    _take_back(workspace)
    for key, (before, after) in examples.use(workspace.root, name, force=force).items():
        typer.echo(f"{key}: {settings_errors.spell(before)} -> {settings_errors.spell(after)}")
    typer.echo("next: ratchet train")


@app.command()
def train(assignments: Assignments = None) -> None:
    """Run train-flow here and now: ingest, version, train, evaluate, register. What is up to date is skipped."""
    become("commands.train", *(assignments or []))


@app.command()
def verify_resume(
    steps: Annotated[int | None, typer.Option(min=2, help="Optimizer steps; as many as cross an epoch's end.")] = None,
    kills: Annotated[int, typer.Option(min=1, help="How often to kill it.")] = 5,
) -> None:
    """Prove that a killed training ends as one that never was: train, kill, compare bit for bit, certify."""
    asked = [f"--kills={kills}", *([f"--steps={steps}"] if steps else [])]
    become("commands.verify_resume", *asked)


@app.command()
def preflight() -> None:
    """Try the whole pipeline on a few samples, and look for silent bugs. Leaves nothing behind."""
    become("commands.preflight")


app.add_typer(models)
app.add_typer(data, name="data")


@app.command()
def sync() -> None:
    """Send MLflow what it missed while it was away."""
    from ratchet import settings
    from ratchet.registry.runs import send_all

    workspace = Workspace.find()
    sent = send_all(workspace, settings.load(workspace.params))
    for key, run_id in sent:
        typer.echo(f"{key}: sent, MLflow run {run_id}")
    if not sent:
        typer.echo("nothing waits: MLflow has everything")


app.add_typer(servers)
