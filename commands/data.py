"""`ratchet data ...`: inspect the data."""

from typing import TYPE_CHECKING, Annotated

import typer

from commands.app import interruptible, new_group, project_folder
from ratchet.terminal_lines import echo
from ratchet.workspace import Workspace

if TYPE_CHECKING:
    from pathlib import Path

    import polars


__all__ = ["data"]

data = new_group("Inspect the data: quarantined samples, changes, suspicious labels.")
_INDEX = "data/packed/index.parquet"


@data.command()
def quarantine(
    rule: Annotated[str | None, typer.Option(metavar="RULE", help="Only samples that break this rule.")] = None,
    most: Annotated[int, typer.Option(metavar="N", min=0, help="How many to list; 0: all.")] = 50,
) -> None:
    """List the quarantined samples, and why."""
    import polars

    from ratchet.data.quarantine import by_rule, read

    workspace = Workspace.find()
    table = read(workspace.quarantine)
    for name, count in by_rule(table).items():
        echo(f"{name}: {count:,}")
    shown = table if rule is None else table.filter(polars.col("rule") == rule)
    for row in (shown.head(most) if most else shown).iter_rows(named=True):
        echo(f"{row['source']}: {row['rule']} (found {row['value']}); {row['hint']}")
    if most and len(shown) > most:
        echo(f"... and {len(shown) - most:,} more: --most 0 lists all")
    if table.is_empty():
        echo("no sample is in quarantine")
    elif table["thumbnail"].count() and workspace.card.exists():
        echo(f"images of them: {workspace.card}")


@data.command()
def release(
    source: Annotated[str, typer.Argument(metavar="SAMPLE", help="Its name in `ratchet data quarantine`.")],
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="Why it may be used for training; kept with the data version.")
    ],
) -> None:
    """Let a quarantined sample in, until its content changes."""
    from ratchet.data import overrides
    from ratchet.data.quarantine import read
    from ratchet.registry.access import user

    workspace = Workspace.find()
    rules = overrides.add(workspace.releases, read(workspace.quarantine), source, reason=reason, by=user())
    echo(f"{source}: released from {', '.join(rules)}; recorded in {workspace.releases}: commit it with git")
    echo("next: ratchet train")


@data.command()
def labels(
    folds: Annotated[int, typer.Option(metavar="N", min=2, help="Number of folds, and of models to train.")] = 4,
    epochs: Annotated[
        int, typer.Option(metavar="N", min=0, help="Epochs of each image model; 0: by the number of samples.")
    ] = 0,
) -> None:
    """Rank training labels by how likely they are wrong, by cross-validation."""
    with project_folder() as workspace, interruptible("nothing was changed"):
        from commands.labels import print_suspicious_labels

        print_suspicious_labels(workspace, folds=folds, epochs=epochs)


@data.command()
def diff(
    before: Annotated[str, typer.Argument(metavar="BEFORE", help="A git revision.")] = "HEAD",
    after: Annotated[
        str, typer.Argument(metavar="AFTER", help="A second git revision; default: the packed data in the folder.")
    ] = "",
    most: Annotated[int, typer.Option(metavar="N", min=0, help="How many of each kind to list; 0: all.")] = 20,
) -> None:
    """List the samples that differ between two versions of the packed data."""
    with project_folder() as workspace:
        from ratchet.data.difference import difference

        changed = difference(_index_at(workspace.root, before), _index_at(workspace.root, after))
        echo("\n".join([*changed.lines(most), changed.summary]))


@data.command()
def from_requests(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the data set: data/labelled/NAME.")],
    labelled: Annotated[
        bool, typer.Option("--labelled/--to-label", help="Requests with labels, or 200 requests that need labels.")
    ] = True,
) -> None:
    """Add logged requests with late labels to the packed data, as a data set that ingest reads."""
    with project_folder() as workspace:
        from commands.from_requests import print_labelled_set

        print_labelled_set(workspace, name, to_label=not labelled)


def _index_at(root: "Path", revision: str) -> "polars.DataFrame":
    """Read the index of the packed data at a git revision, from DVC's cache or remote; "": of the working folder."""
    import polars

    from ratchet.data.difference import COLUMNS
    from ratchet.errors import DataError

    if not revision:
        if not (root / _INDEX).exists():
            raise DataError(
                f"{root / _INDEX}: file not found. Fix: ingest the data first (`ratchet train`), or name two revisions"
            )
        return polars.read_parquet(root / _INDEX, columns=list(COLUMNS))
    from dvc.api import DVCFileSystem
    from dvc.exceptions import DvcException
    from dvc_data.index import DataIndexDirError
    from scmrepo.exceptions import SCMError

    try:
        with DVCFileSystem(str(root), rev=revision).open(_INDEX, mode="rb") as file:
            return polars.read_parquet(file.read(), columns=list(COLUMNS))
    except (FileNotFoundError, DataIndexDirError):
        raise DataError(
            f"{revision}: its packed data is neither in DVC's cache nor in a remote, or it has none. "
            "Fix: `dvc fetch --all-commits` brings what the remote has"
        ) from None
    except (DvcException, SCMError, OSError) as error:
        raise DataError(f"{revision}: {error}. Fix: name a git revision of this project, HEAD~1 for example") from error
