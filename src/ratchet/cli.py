"""`ratchet ...`: each command a few lines over the rooms."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ratchet.errors import RatchetError
from ratchet.workspace import Workspace, disk_errors

if TYPE_CHECKING:
    from ratchet.registry.models import Version as FoundVersion
    from ratchet.registry.standing import Standing
    from ratchet.registry.succession import Succession

__all__ = ["main"]

_PLAIN: dict[str, Any] = {
    "no_args_is_help": True,
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}
app = typer.Typer(help="Train, judge and register models; the champion only ever moves forward.", **_PLAIN)
data = typer.Typer(help="Look at the data: what was kept out, what changed, what looks wrong.", **_PLAIN)
app.add_typer(data, name="data")
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting in params.yaml first. Repeatable."),
]


Version = Annotated[str, typer.Argument(metavar="VERSION", help="NAME/VERSION or NAME@ALIAS.")]
Why = Annotated[str, typer.Option(help="The reason; the ledger keeps it.")]


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

    settings.override(Workspace.find().params, settings.parse_assignments(assignments))


@app.command()
def use(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace settings that are not committed, too.")] = False,
) -> None:
    """Put an example's settings into params.yaml; without a name, list the examples."""
    from ratchet import examples, faults

    workspace = Workspace.find()
    if name is None:
        for example in examples.listed(workspace):
            typer.echo(f"{example.name:15} {example.about}")
        return
    for key, (before, after) in examples.use(workspace, name, force=force).items():
        typer.echo(f"{key}: {faults.spell(before)} -> {faults.spell(after)}")
    typer.echo("next: ratchet train")


@app.command()
def train(assignments: Assignments = None) -> None:
    """Run train-flow here and now: ingest, version, train, evaluate, register. What is up to date is skipped."""
    from ratchet import settings

    workspace = Workspace.find()
    settings.override(workspace.params, settings.parse_assignments(assignments or []))
    # A program of its own, in place of this one: the library stands below the flows and imports none of them.
    os.chdir(workspace.root)
    os.execv(sys.executable, [sys.executable, "-m", "flows.local"])


@app.command()
def verify_resume(
    steps: Annotated[int | None, typer.Option(min=2, help="Optimizer steps; as many as cross an epoch's end.")] = None,
    kills: Annotated[int, typer.Option(min=1, help="How often to kill it.")] = 5,
) -> None:
    """Prove that a killed training ends as one that never was: train, kill, compare bit for bit, certify."""
    workspace = Workspace.find()
    asked = [f"--kills={kills}", *([f"--steps={steps}"] if steps else [])]
    os.chdir(workspace.root)
    os.execv(sys.executable, [sys.executable, "-m", "tasks.verify", *asked])


@app.command()
def preflight() -> None:
    """Try the whole pipeline on a few samples, and look for silent bugs. Leaves nothing behind."""
    os.chdir(Workspace.find().root)
    os.execv(sys.executable, [sys.executable, "-m", "tasks.preflight"])


@app.command()
def reproduce(
    version: Annotated[str, typer.Argument(help="models:/NAME/VERSION, NAME/VERSION or NAME@ALIAS.")],
    into: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Rebuild in this empty folder and keep it.")
    ] = None,
    anyway: Annotated[bool, typer.Option("--anyway", help="With other library versions, too.")] = False,
) -> None:
    """Rebuild a version from its record in an empty folder, and prove it: same data, same weights, bit for bit."""
    # Before the working folder changes: a relative one is meant from here.
    asked = [version, *([f"--into={Path(into).resolve()}"] if into else []), *(["--anyway"] if anyway else [])]
    os.chdir(Workspace.find().root)
    os.execv(sys.executable, [sys.executable, "-m", "tasks.reproduce", *asked])


@app.command()
def compare(
    a: Annotated[str, typer.Argument(help="A version (models:/NAME/VERSION, NAME@ALIAS), or the id of an MLflow run.")],
    b: Annotated[str, typer.Argument(help="Another.")],
    most: Annotated[int, typer.Option(min=0, help="How many samples and rows of each kind to list; 0: all.")] = 20,
    html: Annotated[
        str | None, typer.Option(metavar="FILE", help="Where the page goes, if not to data/reports.")
    ] = None,
) -> None:
    """Say why two runs or versions differ: code, settings, data, environment, figures, and which test rows flipped."""
    asked = [a, b, f"--most={most}", *([f"--html={Path(html).resolve()}"] if html else [])]
    os.chdir(Workspace.find().root)
    os.execv(sys.executable, [sys.executable, "-m", "tasks.compare", *asked])


@app.command()
def trace(
    name: Annotated[str, typer.Argument(metavar="X", help="Version, run id, data hash, file or provenance id.")],
) -> None:
    """Print where X came from and what was made of it: data, run, evaluation, verdict, versions and their aliases."""
    # A path is meant from here, and the working folder changes.
    asked = str(Path(name).resolve()) if Path(name).exists() else name
    os.chdir(Workspace.find().root)
    os.execv(sys.executable, [sys.executable, "-m", "tasks.trace", asked])


@data.command()
def quarantine(
    rule: Annotated[str | None, typer.Option(help="Only what breaks this rule.")] = None,
    most: Annotated[int, typer.Option(min=0, help="How many to list; 0: all.")] = 50,
) -> None:
    """List what was kept out, and why."""
    import polars

    from ratchet.data.quarantine import by_rule, read

    workspace = Workspace.find()
    table = read(workspace.quarantine)
    for name, count in by_rule(table).items():
        typer.echo(f"{name}: {count:,}")
    shown = table if rule is None else table.filter(polars.col("rule") == rule)
    for row in (shown.head(most) if most else shown).iter_rows(named=True):
        typer.echo(f"{row['source']}: {row['rule']} (found {row['value']}); {row['hint']}")
    if most and len(shown) > most:
        typer.echo(f"... and {len(shown) - most:,} more: --most 0 lists all")
    if table.is_empty():
        typer.echo("nothing was kept out")
    elif table["thumbnail"].count() and workspace.card.exists():
        typer.echo(f"pictures of them: {workspace.card}")


@data.command()
def release(
    source: Annotated[str, typer.Argument(help="As `ratchet data quarantine` lists it.")],
    reason: Annotated[str, typer.Option(help="Why it may be trained on; kept with the data version.")],
) -> None:
    """Let a quarantined sample in against its rules. Void as soon as its content changes."""
    import getpass

    from ratchet.data import releases
    from ratchet.data.quarantine import read

    workspace = Workspace.find()
    rules = releases.add(workspace.releases, read(workspace.quarantine), source, reason=reason, by=getpass.getuser())
    typer.echo(f"{source}: released from {', '.join(rules)}; noted in {workspace.releases}: commit it with git")
    typer.echo("next: ratchet train")


@data.command()
def labels(
    folds: Annotated[int, typer.Option(min=2, help="Models to train, each without its part of the samples.")] = 4,
    epochs: Annotated[int, typer.Option(min=0, help="For so long; 0: as training.epochs says.")] = 0,
) -> None:
    """List training labels that are likely wrong, by models that never saw the samples they speak of."""
    os.chdir(Workspace.find().root)
    os.execv(sys.executable, [sys.executable, "-m", "tasks.labels", str(folds), str(epochs)])


@data.command()
def diff(
    before: Annotated[str, typer.Argument(help="A git revision.")] = "HEAD",
    after: Annotated[str, typer.Argument(help="Another; none: the data as it stands here.")] = "",
    most: Annotated[int, typer.Option(min=0, help="How many of each kind to list; 0: all.")] = 20,
) -> None:
    """List the samples that differ between two versions of the packed data."""
    os.chdir(Workspace.find().root)
    os.execv(sys.executable, [sys.executable, "-m", "tasks.data_diff", before, after, str(most)])


@app.command()
def approve(
    version: Version,
    why: Why,
    promote: Annotated[bool, typer.Option("--promote", help="Make it champion, too.")] = False,
) -> None:
    """Approve a version as it is now; void as soon as its model, report or data change."""
    line, found = _succession(version)
    line.approve(found, why=why)
    typer.echo(f"{line.name} version {found.number}: approved")
    if promote:
        _tell(line.name, line.promote(found, why=why))


@app.command()
def promote(version: Version, why: Why) -> None:
    """Make a version champion; where registry.promotion is manual it must be approved first."""
    line, found = _succession(version)
    _tell(line.name, line.promote(found, why=why))


@app.command()
def rollback(
    model: Annotated[str, typer.Argument(help="The registered model's name.")],
    why: Why,
    to: Annotated[
        str | None, typer.Option(help="A version, or a time (2026-11-20T14:30); else the last good champion.")
    ] = None,
) -> None:
    """Give the alias champion back to a version that had it before."""
    _tell(model, _line(model).rollback(to, why=why))


@app.command()
def adopt(
    model: Annotated[str, typer.Argument(help="The registered model's name.")],
    why: Why,
) -> None:
    """Begin a new ledger for a model with the aliases as they stand, where its old one is lost for good."""
    _tell(model, _line(model).adopt(why=why))


@app.command()
def ledger(
    model: Annotated[str | None, typer.Argument(help="Only this model's entries.")] = None,
) -> None:
    """List who did what to which model, when and why."""
    from textwrap import shorten

    from ratchet import settings
    from ratchet.registry.ledger import Ledger

    workspace = Workspace.find()
    kept = Ledger(workspace, settings.load(workspace.params).registry.ledger)
    for entry in kept.entries(model=model):
        version = f" version {entry.version}" if entry.version else ""
        why = shorten(entry.why, 120, placeholder=" ...")
        typer.echo(f"{entry.number:>4}  {entry.at[:19]}Z  {entry.who}: {entry.what} {entry.model}{version}: {why}")


@app.command()
def audit(
    model: Annotated[str | None, typer.Argument(help="Only this model.")] = None,
    store: Annotated[bool, typer.Option("--store", help="Look for pickles in everything that MLflow keeps.")] = False,
    repair: Annotated[bool, typer.Option("--repair", help="Put the aliases where the ledger has them.")] = False,
) -> None:
    """Verify the ledger's chain, the aliases and every version's files; exit code 1 if anything is amiss."""
    from ratchet import settings
    from ratchet.registry import audit as auditing

    workspace = Workspace.find()
    params = settings.load(workspace.params)
    if repair:
        for line in auditing.repair(workspace, params, model):
            typer.echo(f"put right: {line}")
    amiss = list(auditing.audit(workspace, params, model))
    for line in amiss:
        typer.echo(line)
    if amiss:
        sys.exit(1)
    typer.echo("all is as the ledger says: its chain, the aliases, and every version's files")


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


@app.command()
def up() -> None:
    """Start Prefect server, MLflow server and a worker, and create the deployments."""
    from ratchet import platform, settings
    from ratchet.registry.mlflow_store import address

    workspace = Workspace.find()
    params = settings.load(workspace.params)
    platform.up(workspace, params.platform, tracking_uri=address(workspace, params.tracking), say=typer.echo)
    typer.echo("next: prefect deployment run train-flow/local; ratchet down stops what was started")


@app.command()
def down() -> None:
    """Stop what `ratchet up` started."""
    from ratchet import platform

    platform.down(Workspace.find(), say=typer.echo)


@app.command()
def status() -> None:
    """Say which servers are up."""
    from ratchet import platform

    for server in platform.status(Workspace.find()):
        where = f" at {server.address} (process {server.pid})" if server.address else ""
        typer.echo(f"{server.title}: {server.state}{where}")


def _line(model: str) -> "Succession":
    from ratchet import settings
    from ratchet.registry.succession import Succession

    workspace = Workspace.find()
    return Succession(workspace, settings.load(workspace.params), model)


def _succession(asked: str) -> "tuple[Succession, FoundVersion]":
    """The line of the model that a person named, and the version."""
    from ratchet import settings
    from ratchet.registry.models import ModelRegistry
    from ratchet.registry.succession import Succession

    workspace = Workspace.find()
    params = settings.load(workspace.params)
    found = ModelRegistry(workspace, params).find(asked)
    return Succession(workspace, params, found.name), found


def _tell(name: str, now: "Standing") -> None:
    challenger = f"; challenger is version {now.challenger}" if now.challenger else ""
    typer.echo(f"{name}: champion is version {now.champion}{challenger}")


if __name__ == "__main__":
    main()
