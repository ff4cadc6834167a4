"""What is done with registered models: approved, promoted, taken back, audited, compared, rebuilt, traced."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commands.plain import PLAIN, become
from ratchet.workspace import Workspace

if TYPE_CHECKING:
    from ratchet.registry.alias_state import AliasState
    from ratchet.registry.promotion import Promotions
    from ratchet.registry.recovery import Damage
    from ratchet.registry.versions import Version as FoundVersion

__all__ = ["models"]

models = typer.Typer(**PLAIN)
Version = Annotated[str, typer.Argument(metavar="VERSION", help="NAME/VERSION or NAME@ALIAS.")]
Why = Annotated[str, typer.Option(help="The reason; the ledger keeps it.")]


@models.command()
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


@models.command()
def promote(version: Version, why: Why) -> None:
    """Make a version champion; where registry.promotion is manual it must be approved first."""
    line, found = _succession(version)
    _tell(line.name, line.promote(found, why=why))


@models.command()
def rollback(
    model: Annotated[str, typer.Argument(help="The registered model's name.")],
    why: Why,
    to: Annotated[
        str | None, typer.Option(help="A version, or a time (2026-11-20T14:30); else the last good champion.")
    ] = None,
) -> None:
    """Give the alias champion back to a version that had it before."""
    _tell(model, _line(model).rollback(to, why=why))


@models.command()
def adopt(
    model: Annotated[str, typer.Argument(help="The registered model's name.")],
    why: Why,
) -> None:
    """Begin a new ledger for a model with the aliases as they stand, where its old one is lost for good."""
    _tell(model, _line(model).adopt(why=why))


@models.command()
def ledger(
    model: Annotated[str | None, typer.Argument(help="Only this model's entries.")] = None,
) -> None:
    """List who did what to which model, when and why."""
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
        typer.echo(
            f"{entry.number:>4}  {entry.at[:19]}Z  {entry.who}: {entry.what} {entry.model}{version}{aside}: {why}"
        )


@models.command()
def recover(
    why: Annotated[str | None, typer.Option(help="The reason; the ledger keeps it.")] = None,
    champion: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME/VERSION", help="Confirm a model's champion; NAME/none: without one."),
    ] = None,
    challenger: Annotated[
        list[str] | None, typer.Option(metavar="NAME/VERSION", help="Confirm a challenger, if a model has one.")
    ] = None,
) -> None:
    """Set the broken part of the ledger aside as evidence, and go on with champions that you confirm."""
    from ratchet import settings
    from ratchet.errors import SettingsError
    from ratchet.registry import recovery

    workspace = Workspace.find()
    params = settings.load(workspace.params)
    if why is None or not champion:
        damage = recovery.examine(workspace, params)
        for line in _damage(damage):
            typer.echo(line)
        sys.exit(1 if damage.faults else 0)
    confirmed: dict[str, dict[str, str | None]] = {}
    for alias, given in (("champion", champion), ("challenger", challenger or [])):
        for one in given:
            name, slash, number = one.removeprefix("models:/").rpartition("/")
            if not slash or not (number == "none" or number.isdecimal()):
                raise SettingsError(
                    f"--{alias}: found {one}; allowed: NAME/VERSION, digits/3 for example, or NAME/none"
                )
            if alias in confirmed.setdefault(name, {}):
                raise SettingsError(f"--{alias}: {name} is named twice; allowed: once for each model")
            confirmed[name][alias] = None if number == "none" else number
    entry = recovery.recover(workspace, params, confirmed, why=why)
    aside, intact = entry.content["aside"], entry.content["intact"]
    typer.echo(f"recovered with entry {entry.number}: entries up to {intact} count, {aside} are set aside as evidence")


def _damage(damage: "Damage") -> Iterator[str]:
    """The state of a broken ledger, and the command that would recover it."""
    if not damage.faults:
        yield "the ledger has no fault: there is nothing to recover"
        return
    yield from damage.faults
    yield (
        f"\nentries 1 to {damage.intact} of {damage.entries} can be trusted"
        if damage.intact
        else "\nno entry is trusted"
    )
    command = ["ratchet recover --why WHY"]
    for model in damage.models:
        known, there = model.by_ledger.get("champion"), model.in_mlflow.get("champion")
        yield f"{model.name}: champion is version {known or '-'} by these entries, version {there or '-'} in MLflow"
        command.append(f"--champion {model.name}/{'VERSION' if known != there else known or 'none'}")
    yield "\nNothing was changed. Decide on each champion, then confirm it:\n  " + " ".join(command)


@models.command()
def audit(
    model: Annotated[str | None, typer.Argument(help="Only this model.")] = None,
    store: Annotated[bool, typer.Option("--store", help="Look for pickles in everything that MLflow keeps.")] = False,
    repair: Annotated[bool, typer.Option("--repair", help="Put the aliases where the ledger has them.")] = False,
) -> None:
    """Verify the ledger, the aliases, every version's files and what MLflow says; exit code 1 if anything is wrong."""
    from itertools import chain

    from ratchet import settings
    from ratchet.registry import audit as auditing

    workspace = Workspace.find()
    params = settings.load(workspace.params)
    if repair:
        for line in auditing.repair(workspace, params, model):
            typer.echo(f"put right: {line}")
    amiss = 0
    for line in chain(auditing.audit(workspace, params, model), auditing.pickles(workspace, params) if store else ()):
        typer.echo(line)
        amiss += 1
    for line in auditing.notes(workspace, params):
        typer.echo(f"note: {line}")
    if amiss:
        sys.exit(1)
    typer.echo("all is as the ledger says: its chain, the aliases, every version's files, and what MLflow says of it")
    if store:
        typer.echo("no pickle in anything that MLflow keeps")


@models.command()
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
    become("commands.reproduce", *asked)


@models.command()
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
    become("commands.compare", *asked)


@models.command()
def trace(
    name: Annotated[str, typer.Argument(metavar="X", help="Version, run id, data hash, file or provenance id.")],
    html: Annotated[str | None, typer.Option(metavar="FILE", help="Write it as an offline page, too.")] = None,
) -> None:
    """Print where X came from and what was made of it: data, run, evaluation, verdict, versions and their aliases."""
    # A path is meant from here, and the working folder changes.
    asked = str(Path(name).resolve()) if os.path.exists(name) else name
    become("commands.trace", asked, *([f"--html={Path(html).resolve()}"] if html else []))


def _line(model: str) -> "Promotions":
    from ratchet import settings
    from ratchet.registry.promotion import Promotions

    workspace = Workspace.find()
    return Promotions(workspace, settings.load(workspace.params), model)


def _succession(asked: str) -> "tuple[Promotions, FoundVersion]":
    """The line of the model that a person named, and the version."""
    from ratchet import settings
    from ratchet.registry.models import ModelRegistry
    from ratchet.registry.promotion import Promotions

    workspace = Workspace.find()
    params = settings.load(workspace.params)
    found = ModelRegistry(workspace, params).find(asked)
    return Promotions(workspace, params, found.name), found


def _tell(name: str, now: "AliasState") -> None:
    challenger = f"; challenger is version {now.challenger}" if now.challenger else ""
    typer.echo(f"{name}: champion is version {now.champion}{challenger}")
