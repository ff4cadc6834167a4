"""Rules about single samples, checked by pandera. A sample that breaks a rule is quarantined.

Each table is checked twice, because a wrong column would hide faults of values. First come the columns and types, which
only a bug in this program can break. Then come the values, with all failures collected. The error of a check is the
name of its rule; refusal_reasons.py has its texts.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl
from pandera import polars as pa
from pandera.errors import SchemaErrors

from ratchet.data import quarantine
from ratchet.data.refusal_reasons import REASONS

__all__ = ["Terms", "failures", "must", "terms"]

Terms = dict[str, list[dict[str, Any]]]
"""Rules as plain data, by column: `rule`, the check's name in pandera as `check`, and its limits."""


def failures(
    frame: pl.DataFrame,
    columns: dict[str, pa.Column],
    value: Callable[[str, str], pl.Expr | None] = lambda rule, column: None,
    *,
    source: str = "id",
) -> pl.DataFrame:
    """Return quarantine rows of the rows of `frame` that break a rule.

    Args:
        frame: has `row` and the checked columns.
        columns: the rules.
        value: gives the expression for a broken rule's value, by rule and column; None: as in refusal_reasons.py.
        source: column with the name of a sample.
    """
    structure = {name: pa.Column(column.dtype, nullable=column.nullable) for name, column in columns.items()}
    # pandera checks only columns and types of a LazyFrame: this is the first pass.
    pa.DataFrameSchema(structure, strict=True).validate(frame.select(sorted(columns)).lazy(), lazy=True)
    try:
        pa.DataFrameSchema(columns).validate(frame, lazy=True)
    except SchemaErrors as error:
        cases = error.failure_cases
        if cases["index"].null_count():  # not about a row, so the schema itself is wrong
            raise
        groups = cases.select(pl.col("index").cast(pl.UInt32), "check", "column").group_by("check", "column")
        content = ["content"] if "content" in frame.columns else []
        tables = []
        for rule, column, places in groups.agg("index").rows():
            text = value(rule, column)
            text = _text(rule) if text is None else text
            tables.append(quarantine.table(frame[places].select(*content, source=source, row="row", value=text), rule))
        return pl.concat(tables).sort("row", "rule", "value")
    return quarantine.rows([])


def must(rule: str, *, be: bool = True) -> pa.Check:
    """Return the check that a boolean column equals `be`, named after the rule."""
    return pa.Check.eq(be, error=rule)


def terms(columns: Mapping[str, pa.Column], names: Sequence[str]) -> Terms:
    """Return the rules of some columns as plain data."""
    return {
        name: [{"rule": check.error, "check": check.name, **check.statistics} for check in columns[name].checks]
        for name in names
    }


def _text(rule: str) -> pl.Expr:
    """Return the expression for the value that breaks a rule, as a text."""
    template = REASONS[rule].value
    return pl.format(re.sub(r"{\w+}", "{}", template), *re.findall(r"{(\w+)}", template)).fill_null("")
