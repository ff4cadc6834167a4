"""Samples released from quarantine by hand, with person, time and reason, in a CSV file under version control.

A release applies to a content and a rule. So it still applies after the file is moved, and ends when it is altered.
"""

import io
from datetime import UTC, datetime
from pathlib import Path

import polars as pl

from ratchet import files
from ratchet.errors import DataError

__all__ = ["RELEASABLE", "add", "apply", "read"]

RELEASABLE = (
    "animated", "bad-aspect", "format-mismatch", "format-not-allowed", "personal-data", "too-large", "too-small"
)  # fmt: skip
"""Rules that can be released. Samples that break another rule cannot be trained on, or would be a leak."""

_COLUMNS = ("source", "rule", "content", "reason", "by", "at")


def read(path: Path | None) -> pl.DataFrame:
    """Read the table of releases; without a file it is empty.

    Raises:
        DataError: the file is not such a table.
    """
    if path is None or not path.exists():
        return pl.DataFrame(schema=dict.fromkeys(_COLUMNS, pl.String))
    try:
        table = pl.read_csv(path, infer_schema=False)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"{path}: cannot be read ({error}). Fix: restore it with git") from error
    if tuple(table.columns) != _COLUMNS:
        raise DataError(f"{path}: has columns {', '.join(table.columns)}; allowed: {', '.join(_COLUMNS)}")
    return table


def apply(bad: pl.DataFrame, released: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the quarantine rows that no release applies to, and the releases that apply to the others."""
    allowed = released.filter(pl.col("rule").is_in(RELEASABLE)).unique(["content", "rule"], keep="last")
    kept = bad.join(allowed, on=["content", "rule"], how="anti", maintain_order="left")
    used = allowed.join(bad, on=["content", "rule"], how="semi").sort("source", "rule")
    return kept, used


def add(path: Path, quarantined: pl.DataFrame, source: str, *, reason: str, by: str) -> list[str]:
    """Release `source` from every rule that it breaks, and return these rules.

    Raises:
        DataError: the sample is not in quarantine, a rule cannot be released, its content is not known, or there is no
            reason.
    """
    if not reason.strip():
        raise DataError("a release needs a reason. Fix: add --reason '...'")
    rows = quarantined.filter(pl.col("source") == source)
    if rows.is_empty():
        listed = ", ".join(quarantined["source"].unique().sort().head(5)) or "nothing"
        raise DataError(f"{source}: not in quarantine, which has {listed}. `ratchet data quarantine` lists all")
    rules = sorted(rows["rule"].unique())
    strict = [rule for rule in rules if rule not in RELEASABLE]
    if strict:
        raise DataError(
            f"{source}: {strict[0]} cannot be released, only {', '.join(RELEASABLE)}. Fix: {rows['hint'][0]}"
        )
    if rows["content"].null_count():
        raise DataError(f"{source}: cannot be released, because its content was not read. Fix: {rows['hint'][0]}")
    at = datetime.now(UTC).isoformat(timespec="seconds")
    new = rows.select(*_COLUMNS[:3]).with_columns(reason=pl.lit(reason.strip()), by=pl.lit(by), at=pl.lit(at))
    content = io.BytesIO()
    with files.locked(path.parent):  # another release must not be lost
        pl.concat([read(path), new.select(_COLUMNS)]).write_csv(content)
        files.write_bytes(path, content.getvalue())
    return rules
