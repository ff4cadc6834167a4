"""`ratchet data ...`: what was kept out, what changed, what looks wrong."""

from typing import Annotated

import typer

from commands.plain import PLAIN, become
from ratchet.workspace import Workspace

__all__ = ["data"]

data = typer.Typer(help="Look at the data: what was kept out, what changed, what looks wrong.", **PLAIN)


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

    from ratchet.data import overrides
    from ratchet.data.quarantine import read

    workspace = Workspace.find()
    rules = overrides.add(workspace.releases, read(workspace.quarantine), source, reason=reason, by=getpass.getuser())
    typer.echo(f"{source}: released from {', '.join(rules)}; noted in {workspace.releases}: commit it with git")
    typer.echo("next: ratchet train")


@data.command()
def labels(
    folds: Annotated[int, typer.Option(min=2, help="Models to train, each without its part of the samples.")] = 4,
    epochs: Annotated[int, typer.Option(min=0, help="Of each model; 0: chosen by the number of samples.")] = 0,
) -> None:
    """Rank training labels by how likely they are wrong, by models that never saw the samples they judge."""
    become("commands.labels", str(folds), str(epochs))


@data.command()
def diff(
    before: Annotated[str, typer.Argument(help="A git revision.")] = "HEAD",
    after: Annotated[str, typer.Argument(help="Another; none: the data as it stands here.")] = "",
    most: Annotated[int, typer.Option(min=0, help="How many of each kind to list; 0: all.")] = 20,
) -> None:
    """List the samples that differ between two versions of the packed data."""
    become("commands.data_diff", before, after, str(most))
