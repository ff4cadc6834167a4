"""Samples let in by hand, against a rule: who did it, when and why. A text file, kept in git beside the settings.

A release names the content and the rule, so it holds wherever the file is moved and is void as soon as it is altered.
"""

import io
from datetime import UTC, datetime
from pathlib import Path

import polars as pl

from ratchet import files
from ratchet.errors import DataError

__all__ = ["RELEASABLE", "add", "apply", "none", "read"]

RELEASABLE = ("animated", "bad-aspect", "format-mismatch", "format-not-allowed", "too-large", "too-small")
"""Rules that are a matter of judgement. The others say that there is nothing to train on, or what would be a leak."""

_COLUMNS = ("source", "rule", "content", "reason", "by", "at")


def none() -> pl.DataFrame:
    """No releases."""
    return pl.DataFrame(schema=dict.fromkeys(_COLUMNS, pl.String))


def read(path: Path) -> pl.DataFrame:
    """What stands in the file; nothing where there is none.

    Raises:
        DataError: it is no such table.
    """
    if not path.exists():
        return none()
    try:
        table = pl.read_csv(path, infer_schema=False)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"{path}: cannot be read ({error}): restore it with git") from error
    if tuple(table.columns) != _COLUMNS:
        raise DataError(f"{path}: has columns {', '.join(table.columns)}; allowed: {', '.join(_COLUMNS)}")
    return table


def apply(bad: pl.DataFrame, released: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The quarantine rows that stay, and the releases that let the others in."""
    allowed = released.filter(pl.col("rule").is_in(RELEASABLE)).unique(["content", "rule"], keep="last")
    kept = bad.join(allowed, on=["content", "rule"], how="anti", maintain_order="left")
    used = allowed.join(bad, on=["content", "rule"], how="semi").sort("source", "rule")
    return kept, used


def add(path: Path, quarantined: pl.DataFrame, source: str, *, reason: str, by: str) -> list[str]:
    """Release every rule that holds `source` in the quarantine table; the rules' names.

    Raises:
        DataError: it is not in quarantine, a rule cannot be released, or no reason is given.
    """
    if not reason.strip():
        raise DataError("a release needs its reason: give one with --reason, for whoever asks later")
    rows = quarantined.filter(pl.col("source") == source)
    if rows.is_empty():
        listed = ", ".join(quarantined["source"].unique().sort().head(5)) or "nothing"
        raise DataError(f"{source}: not in quarantine, which holds {listed}: `ratchet data quarantine` lists all")
    rules = sorted(rows["rule"].unique())
    firm = [rule for rule in rules if rule not in RELEASABLE]
    if firm:
        raise DataError(f"{source}: {firm[0]} cannot be released, only {', '.join(RELEASABLE)}: {rows['hint'][0]}")
    at = datetime.now(UTC).isoformat(timespec="seconds")
    new = rows.select(*_COLUMNS[:3]).with_columns(reason=pl.lit(reason.strip()), by=pl.lit(by), at=pl.lit(at))
    content = io.BytesIO()
    pl.concat([read(path), new.select(_COLUMNS)]).write_csv(content)
    files.write_bytes(path, content.getvalue())
    return rules
