"""`ratchet data diff`: the samples that differ between two versions of the packed data, wherever DVC keeps them."""

import sys
from pathlib import Path

import polars as pl

from ratchet.data.difference import COLUMNS, Difference, difference
from ratchet.errors import DataError, RatchetError
from ratchet.workspace import Workspace

__all__ = ["compare", "index_at", "listed"]

_INDEX = "data/packed/index.parquet"


def index_at(root: Path, revision: str) -> pl.DataFrame:
    """The index of the packed data at a git revision, from DVC's cache or remote; "": as it stands in the folder.

    Raises:
        DataError: there is no such revision or no packed data in it, or neither cache nor remote has it.
    """
    if not revision:
        if not (root / _INDEX).exists():
            raise DataError(
                f"{root / _INDEX}: not there: ingest the data first (`ratchet train`), or name two revisions"
            )
        return pl.read_parquet(root / _INDEX, columns=list(COLUMNS))
    from dvc.api import DVCFileSystem
    from dvc.exceptions import DvcException
    from dvc_data.index import DataIndexDirError
    from scmrepo.exceptions import SCMError

    try:
        with DVCFileSystem(str(root), rev=revision).open(_INDEX, mode="rb") as file:
            return pl.read_parquet(file.read(), columns=list(COLUMNS))
    except (FileNotFoundError, DataIndexDirError):
        raise DataError(
            f"{revision}: its packed data is neither in DVC's cache nor in a remote, or it had none: `dvc fetch "
            "--all-commits` brings what the remote has"
        ) from None
    except (DvcException, SCMError, OSError) as error:
        raise DataError(f"{revision}: {error}: name a git revision of this project, HEAD~1 for example") from error


def compare(root: Path, before: str, after: str) -> Difference:
    """What differs between two revisions; "": the folder as it stands."""
    return difference(index_at(root, before), index_at(root, after))


def listed(found: Difference, most: int) -> list[str]:
    """A line for each sample that differs, at most so many of a kind (0: all)."""
    signs = {"added": "+", "removed": "-", "renamed": ">", "altered": "!", "relabelled": "~", "moved": "~"}
    lines = []
    for kind, count in found.counts().items():
        table: pl.DataFrame = getattr(found, kind)
        for row in (table.head(most) if most else table).iter_rows(named=True):
            was = f"{row.pop('before')} -> " if "before" in row else ""
            name = row.pop("id")
            rest = row.get("after") or f"{row.get('class')}, {row.get('split')}"
            line = f"{was}{name}: {rest}" if kind == "renamed" else f"{name}: {was}{rest}"
            lines.append(f"{signs[kind]} {kind:10} {line}")
        if most and count > most:
            lines.append(f"  ... and {count - most:,} more {kind}: --most 0 lists all")
    return lines


def main(before: str, after: str, most: int) -> None:
    """Print what differs."""
    try:
        found = compare(Workspace.find().root, before, after)
    except RatchetError as error:
        sys.exit(f"ratchet: {error}")
    print("\n".join([*listed(found, most), found.summary]))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
