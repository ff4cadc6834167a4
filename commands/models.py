"""Commands for registered models: approval, promotion, rollback, the ledger, audit and lineage."""

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commands.app import Panel, exit_on_sigterm, interruptible, new_group, project_folder
from ratchet.terminal_lines import echo
from ratchet.workspace import Workspace

if TYPE_CHECKING:
    from ratchet.registry.alias_state import AliasState
    from ratchet.registry.promotion import Promotions
    from ratchet.registry.recovery import Damage
    from ratchet.registry.versions import Version as RegisteredVersion

__all__ = ["models"]

models = new_group()
Version = Annotated[
    str,
    typer.Argument(metavar="VERSION", help="NAME/VERSION or NAME@ALIAS: digits/3 or digits@challenger, for example."),
]
Model = Annotated[str, typer.Argument(metavar="MODEL", help="The registered model's name.")]
Why = Annotated[str, typer.Option(metavar="TEXT", help="The reason; the ledger keeps it.")]
PageFile = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", resolve_path=True, help="Where to write the page.")
]


def _finite(price: float) -> float:
    """Refuse inf and nan, which are floats."""
    if not math.isfinite(price):
        raise typer.BadParameter(f"found {price}; allowed: a number from 0 on")
    return price


Price = Annotated[
    float,
    typer.Option(
        metavar="SHARE", min=0, callback=_finite, help="Price of a training, as a share of the loss of a period."
    ),
]


@models.command(rich_help_panel=Panel.DECISIONS)
def approve(
    version: Version,
    why: Why,
    promote: Annotated[bool, typer.Option("--promote", help="Make it champion, too.")] = False,
) -> None:
    """Approve a version. The approval ends when its model, report or data change."""
    promotions, registered = _find(version)
    promotions.approve(registered, why=why)
    echo(f"{promotions.name} version {registered.number}: approved")
    if promote:
        _print_aliases(promotions.name, promotions.promote(registered, why=why))


@models.command(rich_help_panel=Panel.DECISIONS)
def reject(version: Version, why: Why) -> None:
    """Reject a version, also one that was approved. It is no longer challenger."""
    promotions, registered = _find(version)
    promotions.reject(registered, why=why)
    echo(f"{promotions.name} version {registered.number}: rejected")


@models.command(rich_help_panel=Panel.DECISIONS)
def promote(version: Version, why: Why) -> None:
    """Make a version champion. With registry.promotion=manual, approve it first."""
    promotions, registered = _find(version)
    _print_aliases(promotions.name, promotions.promote(registered, why=why))


@models.command(rich_help_panel=Panel.DECISIONS)
def rollback(
    model: Model,
    why: Why,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION", help="A version, or a time (2026-11-20T14:30); else the champion before this one."
        ),
    ] = None,
) -> None:
    """Make an earlier champion the champion again."""
    _print_aliases(model, _promotions(model).rollback(to, why=why))


@models.command(rich_help_panel=Panel.RECORDS)
def ledger(
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help="Only this model's entries.")] = None,
) -> None:
    """List who changed which model, when and why."""
    from textwrap import shorten

    from ratchet import settings
    from ratchet.registry.ledger import Ledger

    workspace = Workspace.find()
    chain = Ledger.of(workspace, settings.load(workspace.params)).read()
    valid = {entry.number for entry in chain.valid}
    for entry in chain.entries:
        if model not in (None, entry.model) and entry.what != "recover":
            continue
        version = f" version {entry.version}" if entry.version else ""
        aside = "" if entry.number in valid else " (set aside by a recovery)"
        why = shorten(entry.why, 120, placeholder=" ...")
        echo(f"{entry.number:>4}  {entry.at[:19]}Z  {entry.who}: {entry.what} {entry.model}{version}{aside}: {why}")


@models.command(rich_help_panel=Panel.RECORDS)
def recover(
    why: Annotated[str | None, typer.Option(metavar="TEXT", help="The reason; the ledger keeps it.")] = None,
    champion: Annotated[
        list[str] | None,
        typer.Option(metavar="VERSION", help="Confirm a champion, as NAME/VERSION; NAME/none: no champion."),
    ] = None,
    challenger: Annotated[
        list[str] | None, typer.Option(metavar="VERSION", help="Confirm a challenger, if a model has one.")
    ] = None,
) -> None:
    """Repair a broken ledger: keep the damaged part as evidence, confirm champions.

    Without --why and --champion, print the damage and change nothing.
    """
    from ratchet import settings
    from ratchet.errors import SettingsError
    from ratchet.registry import recovery

    workspace = Workspace.find()
    params = settings.load(workspace.params)
    if why is None or not champion:
        damage = recovery.examine(workspace, params)
        for line in _damage_lines(damage):
            echo(line)
        raise typer.Exit(1 if damage.faults else 0)
    confirmed: dict[str, dict[str, str | None]] = {}
    for alias, references in (("champion", champion), ("challenger", challenger or [])):
        for reference in references:
            name, slash, number = reference.removeprefix("models:/").rpartition("/")
            if not slash or not (number == "none" or number.isdecimal()):
                raise SettingsError(
                    f"--{alias}: found {reference}. Allowed: NAME/VERSION, digits/3 for example, or NAME/none"
                )
            if alias in confirmed.setdefault(name, {}):
                raise SettingsError(f"--{alias}: {name} is named twice. Allowed: once for each model")
            confirmed[name][alias] = None if number == "none" else number
    entry = recovery.recover(workspace, params, confirmed, why=why)
    aside, intact = entry.content["aside"], entry.content["intact"]
    echo(f"recovered with entry {entry.number}: entries up to {intact} count, {aside} are set aside as evidence")


def _damage_lines(damage: "Damage") -> Iterator[str]:
    """Describe a broken ledger, and the command that recovers it."""
    if not damage.faults:
        yield "the ledger has no fault: nothing to recover"
        return
    yield from damage.faults
    yield (
        f"\nentries 1 to {damage.intact} of {damage.entries} can be trusted"
        if damage.intact
        else "\nno entry is trusted"
    )
    command = ["ratchet recover --why WHY"]
    for model in damage.models:
        recorded, current = model.by_ledger.get("champion"), model.in_mlflow.get("champion")
        versions = f"version {recorded or '-'} by these entries, version {current or '-'} in MLflow"
        yield f"{model.name}: champion is {versions}"
        command.append(f"--champion {model.name}/{'VERSION' if recorded != current else recorded or 'none'}")
    yield "\nNothing was changed. Decide on each champion, then confirm it:\n  " + " ".join(command)


@models.command(rich_help_panel=Panel.RECORDS)
def audit(
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help="Only this model.")] = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Move the aliases back to where the ledger has them.")
    ] = False,
) -> None:
    """Verify the ledger, the aliases, all files and MLflow. Exit code 1 if anything differs."""
    from ratchet import settings
    from ratchet.registry import audit as auditing

    workspace = Workspace.find()
    params = settings.load(workspace.params)
    if repair:
        for line in auditing.repair(workspace, params, model):
            echo(f"repaired: {line}")
    faults = 0
    for line in auditing.audit(workspace, params, model):
        echo(line)
        faults += 1
    for line in auditing.notes(workspace, params):
        echo(f"note: {line}")
    if faults:
        raise typer.Exit(1)
    echo("OK: the ledger's hash chain, the aliases, every version's files and MLflow's records agree")


@models.command(rich_help_panel=Panel.RECORDS)
def reproduce(
    version: Version,
    into: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", resolve_path=True, help="Rebuild in this empty folder and keep it."),
    ] = None,
    anyway: Annotated[bool, typer.Option("--anyway", help="Accept other library versions.")] = False,
) -> None:
    """Rebuild a version from its record and compare data and weights bit for bit."""
    exit_on_sigterm()
    with project_folder() as workspace:
        from commands.reproduce import reproduce_and_print

        if not reproduce_and_print(version, workspace, into, anyway=anyway):
            raise typer.Exit(1)


@models.command(rich_help_panel=Panel.RECORDS)
def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A version or an MLflow run.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The version or run to compare with A.")],
    most: Annotated[int, typer.Option(metavar="N", min=0, help="How many samples of each kind to list; 0: all.")] = 20,
) -> None:
    """Explain why two runs or versions differ, down to the test samples.

    A and B are versions, NAME/VERSION or NAME@ALIAS, or ids of MLflow runs. NAME is the registered model's name
    (registry.model, by default the data set's name), VERSION its number: `ratchet compare digits/1 digits/2`. Compares
    code, settings, data, environment, metrics and predictions.
    """
    with project_folder() as workspace:
        from commands import compare as comparing

        comparing.print_comparison(comparing.compare(workspace, a, b), most=most)


@models.command(rich_help_panel=Panel.RECORDS)
def trace(
    name: Annotated[
        str,
        typer.Argument(
            metavar="X", help="Any name or hash that trace or compare prints: version, run, commit, file, data."
        ),
    ],
) -> None:
    """Print the lineage of X: data, run, evaluation, verdict, versions and aliases."""
    if os.path.exists(name):  # unlike Path.exists, False for a name that is too long for a file
        name = str(Path(name).resolve())
    with project_folder() as workspace:
        from commands.trace import print_trace

        print_trace(name, workspace)


@models.command(rich_help_panel=Panel.RECORDS)
def gc(
    apply: Annotated[bool, typer.Option("--apply", help="Move it to the trash, .ratchet/trash.")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Move everything in the trash back.")] = False,
    empty: Annotated[bool, typer.Option("--empty", help="Free the space of the trash: nothing returns.")] = False,
    older_than: Annotated[
        str, typer.Option(metavar="AGE", help="Only what did not change for so long: 30d, 12h.")
    ] = "30d",
    keep_last: Annotated[int, typer.Option(metavar="N", min=0, help="Keep the last N trainings, however old.")] = 10,
    remote: Annotated[
        bool, typer.Option("--remote", help="Also from .ratchet/remote, which other clones may read.")
    ] = False,
) -> None:
    """List old runs, checkpoints, trials and DVC objects that nothing needs; move them to a trash.

    Without --apply, --undo or --empty nothing is changed. A registered version, the ledger, a branch or tag of git, and
    a running training lose nothing.
    """
    if apply + undo + empty > 1:
        raise typer.BadParameter("found several; allowed: one of them", param_hint="--apply, --undo, --empty")
    with project_folder() as workspace, interruptible("the same command continues"):
        from commands import gc as clean_up

        if undo:
            clean_up.undo(workspace)
        elif empty:
            clean_up.empty(workspace)
        else:
            clean_up.list_or_apply(workspace, clean_up.policy_of(older_than, keep_last, remote=remote), apply=apply)


@models.command(rich_help_panel=Panel.USE)
def requests() -> None:
    """List the logged requests by hour and version, and the quality of answers that got labels."""
    with project_folder() as workspace:
        from commands.traffic import print_requests

        print_requests(workspace)


@models.command(rich_help_panel=Panel.USE)
def monitor(
    restart: Annotated[
        bool, typer.Option("--restart", help="Forget all windows, and begin with a new reference.")
    ] = False,
    html: PageFile = None,
) -> None:
    """Judge whether the logged requests of the served versions have drifted. Exit code 3: one has.

    It judges the windows that are over since the last time. The page of --html shows what has changed.
    """
    with project_folder() as workspace:
        from commands.traffic import print_drift

        if print_drift(workspace, restart=restart, html=html):
            raise typer.Exit(3)


@models.command(rich_help_panel=Panel.USE)
def simulate(
    time: Annotated[str, typer.Option("--time", metavar="COLUMN", help="Column with the date of each row.")],
    data: Annotated[
        Path | None, typer.Option("--data", metavar="FILE", resolve_path=True, help="Table.", show_default="data.path")
    ] = None,
    periods: Annotated[int, typer.Option(metavar="N", min=2, help="Periods of equal time after the first model.")] = 12,
    memory: Annotated[
        int, typer.Option(metavar="N", min=1, help="Latest periods whose rows train a model.", show_default="all")
    ] = 1_000_000,
    price: Price = 0.05,
    html: PageFile = None,
) -> None:
    """Train, serve and watch a table by its dates, and compare rules about when to train again.

    A simulation that is stopped goes on.
    """
    with project_folder() as workspace, interruptible("the same command continues the simulation"):
        from commands.triggers import print_simulation

        print_simulation(workspace, data=data, column=time, periods=periods, memory=memory, price=price, html=html)


@models.command(rich_help_panel=Panel.USE)
def backtest_triggers(
    hours: Annotated[int, typer.Option(metavar="N", min=1, help="Hours of a period.")] = 24,
    price: Price = 0.05,
    html: PageFile = None,
) -> None:
    """Replay rules about when to train again over the logged requests and labels."""
    with project_folder() as workspace:
        from commands.triggers import print_backtest

        print_backtest(workspace, hours=hours, price=price, html=html)


@models.command(rich_help_panel=Panel.USE)
def shadow(
    by: Annotated[
        str, typer.Option(metavar="COLUMN", help="A column of serving.log_columns: one line for each of its values.")
    ] = "",
) -> None:
    """Compare the answers of versions in shadow with those that were given."""
    with project_folder() as workspace:
        from commands.traffic import print_shadow

        print_shadow(workspace, by=by)


def _promotions(model: str) -> "Promotions":
    from ratchet import settings
    from ratchet.registry.promotion import Promotions

    workspace = Workspace.find()
    return Promotions(workspace, settings.load(workspace.params), model)


def _find(reference: str) -> "tuple[Promotions, RegisteredVersion]":
    """Return the version, and the promotions of its model."""
    from ratchet import settings
    from ratchet.registry.models import ModelRegistry

    workspace = Workspace.find()
    version = ModelRegistry(workspace, settings.load(workspace.params)).find(reference)
    return _promotions(version.name), version


def _print_aliases(name: str, aliases: "AliasState") -> None:
    challenger = f"; challenger is version {aliases.challenger}" if aliases.challenger else ""
    echo(f"{name}: champion is version {aliases.champion}{challenger}")
