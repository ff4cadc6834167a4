"""Rules about tables that list samples."""

from collections.abc import Sequence
from typing import Any

import polars as pl
from pandera import polars as pa

from ratchet.data import quarantine
from ratchet.data.privacy import looks_personal
from ratchet.data.refusal_reasons import REASONS
from ratchet.data.sample_rules import failures, must
from ratchet.data.sample_table import typed
from ratchet.settings.model import DataSettings

__all__ = ["check_table"]


def check_table(
    table: pl.DataFrame,
    settings: DataSettings,
    *,
    extra: Sequence[str],
    header: pl.Series,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the quarantine rows of wrong rows, and the other rows with typed extra columns.

    Args:
        table: `row`; the texts `path` and `split`, and their meanings: `normal`, the path inside the folder,
            `assigned`, a split; `there`, whether the file exists. Null: none, or none that is allowed.
        settings: whether texts that look personal are refused.
        extra: further columns. Texts that are all numbers are converted.
        header: whether each row is the header again.
    """
    texts = [name for name in extra if table[name].dtype == pl.String] if settings.refuse_personal else []
    headers = table.filter(header)
    rows = table.filter(~header) if headers.height else table
    checked = _with_answers(rows)
    checked = checked.with_columns(looks_personal(checked[name]).alias(f"personal {name}") for name in texts)
    headers = headers.select(
        source=pl.lit(settings.manifest), row="row", value=pl.lit(REASONS["repeated-header"].value)
    )
    named = checked.with_columns(source=pl.coalesce("normal", "path", pl.format("row {}", "row")))
    broken = failures(named, _schema(texts), _value, source="source")
    refused = pl.concat([quarantine.table(headers, "repeated-header"), broken])
    return refused, checked.with_columns(typed(checked[name]) for name in extra)


def _with_answers(rows: pl.DataFrame) -> pl.DataFrame:
    """Add a boolean column for each rule that is not about a column's text."""
    named = pl.col("path").str.strip_chars().fill_null("") != ""
    return rows.with_columns(
        named=named,
        inside=pl.when(named).then(pl.col("normal").is_not_null()),
        there=pl.when(pl.col("normal").is_not_null()).then(pl.col("there").fill_null(False)),
        divided=pl.col("assigned").is_not_null() | pl.col("split").is_null(),
    )


def _schema(texts: Sequence[str]) -> dict[str, pa.Column]:
    rules: dict[str, tuple[Any, pa.Check | None]] = {
        "row": (pl.Int64, None),
        "named": (pl.Boolean, must("no-path")),
        "inside": (pl.Boolean, must("outside-folder")),
        "there": (pl.Boolean, must("missing-file")),
        "divided": (pl.Boolean, must("unknown-split")),
        **{f"personal {name}": (pl.Boolean, must("personal-data", be=False)) for name in texts},
    }
    return {name: pa.Column(dtype, check, nullable=True) for name, (dtype, check) in rules.items()}


def _value(rule: str, column: str) -> pl.Expr | None:
    """Return the value that breaks a rule; None: as in refusal_reasons.py."""
    if rule == "personal-data":
        return pl.lit(REASONS[rule].value.format(column=column.removeprefix("personal ")))
    return None
