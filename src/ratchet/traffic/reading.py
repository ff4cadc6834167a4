"""Read the request log."""

from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.traffic.schema import SHADOW
from ratchet.workspace import Workspace

if TYPE_CHECKING:
    import polars

__all__ = ["KEY", "find", "log_files", "log_folder", "read", "read_shadow"]

KEY = ("answer", "row", "envelope", "model", "version")
"""Columns that name a row of the log: several versions may have answered it in shadow."""


def log_folder(workspace: Workspace) -> Path:
    """Return the folder of a project's request log."""
    return workspace.state / "requests"


def read(folder: Path) -> "polars.DataFrame":
    """Return all answered rows of the log, in the order of their times; without columns if there are none.

    Columns: see `schema.table_of`. Inputs that were not kept, and columns of other models, are null.
    """
    return _read(folder, shadow=False)


def read_shadow(folder: Path) -> "polars.DataFrame":
    """Return all rows of shadow versions, as `read` returns those that were answered."""
    return _read(folder, shadow=True)


def _read(folder: Path, *, shadow: bool) -> "polars.DataFrame":
    import polars

    frames = [polars.read_parquet(path) for path in log_files(folder)]
    if not frames:
        return polars.DataFrame()
    rows = polars.concat(frames, how="diagonal_relaxed")
    rows = rows.filter((polars.col("envelope") == SHADOW) == shadow)
    return rows.unique(KEY, maintain_order=True).sort("time", "answer", "row")


def find(folder: Path, answer: str) -> "polars.DataFrame":
    """Return the rows of one answer, without inputs; empty if the log does not have it."""
    import polars

    columns = ["answer", "row", "time", "seconds", "envelope", "model", "version", "provenance", "key"]
    wanted = (polars.col("answer") == answer) & (polars.col("envelope") != SHADOW)
    for path in log_files(folder):
        rows = polars.scan_parquet(path).filter(wanted).select(columns).collect()
        if len(rows):
            return rows.unique("row").sort("row")
    return polars.DataFrame()


def log_files(folder: Path) -> list[Path]:
    """Return the files of the log: those of whole hours, then the parts."""
    return [*sorted(folder.glob("*.parquet")), *sorted(folder.glob("*/*.parquet"))]
