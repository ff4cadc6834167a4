"""Rules about single samples, checked by pandera. A sample that breaks a rule is quarantined.

Each table is checked twice, because a wrong column would hide faults of values. First come the columns and types, which
only a bug in this program can break. Then come the values, with all failures collected.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, get_args

import polars as pl
from pandera import polars as pa
from pandera.errors import SchemaErrors

from ratchet.data import quarantine
from ratchet.data.reading.identify import fix_for_format, fix_for_problem
from ratchet.data.reading.images import ARRAY, Facts, format_of_extension
from ratchet.settings.model import DataSettings

__all__ = [
    "FACTS",
    "check_facts",
    "check_samples",
    "facts_frame",
    "failures",
    "image_terms",
    "must",
    "sample_terms",
]

_TYPES: Mapping[type, Any] = {bool: pl.Boolean, int: pl.Int64, float: pl.Float64, str: pl.String}
FACTS: Mapping[str, Any] = {field.name: _TYPES[get_args(field.type)[0]] for field in fields(Facts)}
"""Name and type of each fact."""

_ID = pl.col("id")


def facts_frame(columns: Mapping[str, Sequence[Any]]) -> pl.DataFrame:
    """Return a frame with one row per sample, from one list per fact."""
    return pl.DataFrame({name: pl.Series(columns[name], dtype=kind) for name, kind in FACTS.items()})


def check_facts(frame: pl.DataFrame, settings: DataSettings, *, classes: int) -> pl.DataFrame:
    """Return quarantine rows (quarantine.SCHEMA) of the samples that break a rule about a single sample."""
    return failures(_with_derived(frame), _facts_schema(settings, classes))


def check_samples(frame: pl.DataFrame, *, classes: int) -> pl.DataFrame:
    """Return quarantine rows of the samples of a user's own Dataset that break a rule.

    Args:
        frame: per sample whether it `returned` and was `proper`, else the `problem`; `image`, a text with its type and
            shape, `finite` and `label`, where they are known.
        classes: number of classes.
    """
    return failures(frame, _samples_schema(frame["image"], classes))


def image_terms(settings: DataSettings) -> dict[str, list[dict[str, Any]]]:
    """Return the rules that apply to a single image, and so also to a request to a model, as plain data.

    By column the checks: `rule`, its name in the quarantine table; `check`, its name in pandera; and its limits.
    """
    columns = ("bytes", "readable", "format", "frames", "side", "area", "aspect")
    return _terms(_facts_schema(settings, classes=1), columns)


def sample_terms(images: pl.Series) -> dict[str, list[dict[str, Any]]]:
    """Return the same as `image_terms` for a user's own Dataset. `images`: a text with type and shape of each image."""
    return _terms(_samples_schema(images, classes=1), ("image", "finite"))


def failures(
    frame: pl.DataFrame,
    columns: dict[str, pa.Column],
    value: Callable[[str, str], pl.Expr] | None = None,
    *,
    source: pl.Expr = _ID,
) -> pl.DataFrame:
    """Return quarantine rows of the rows of `frame` that break a rule.

    Args:
        frame: has `row` and the checked columns.
        columns: the rules; each check's error is the name of its rule.
        value: gives the expression for a broken rule's value, by rule and column.
        source: expression for the name of a sample.
    """
    value = value or _value
    structure = {name: pa.Column(column.dtype, nullable=column.nullable) for name, column in columns.items()}
    # pandera checks only columns and types of a LazyFrame: this is the first pass.
    pa.DataFrameSchema(structure, strict=True).validate(frame.select(sorted(columns)).lazy(), lazy=True)
    try:
        pa.DataFrameSchema(columns).validate(frame, lazy=True)
    except SchemaErrors as error:
        cases = error.failure_cases
        if cases["index"].null_count():  # not about a row, so the schema itself is wrong
            raise
        content = [name for name in ("content",) if name in frame.columns]
        groups = cases.select(pl.col("index").cast(pl.UInt32), "check", "column").group_by("check", "column")
        return pl.concat(
            _with_fixes(
                quarantine.table(
                    frame[places].select(*content, source=source, row="row", value=value(rule, column)), rule
                )
            )
            for rule, column, places in groups.agg("index").rows()
        ).sort("row", "rule", "value")
    return quarantine.rows([])


def must(rule: str, *, be: bool = True) -> pa.Check:
    """Return the check that a boolean column equals `be`, named after the rule."""
    return pa.Check.eq(be, error=rule)


def _with_derived(frame: pl.DataFrame) -> pl.DataFrame:
    """Add the columns that follow from the facts and the id."""
    width, height = pl.col("width"), pl.col("height")
    extension = pl.col("id").str.extract(r"(\.[^./]*)$", 1)
    extensions = [name for name in frame.select(extension.unique())["id"].to_list() if name]
    formats = {name: format_of_extension(f"name{name}") for name in extensions}
    claimed = extension.replace_strict(formats, default=None, return_dtype=pl.String)
    return frame.with_columns(claimed=pl.when(pl.col("format") != ARRAY).then(claimed)).with_columns(
        agrees=pl.col("claimed") == pl.col("format"),
        side=pl.min_horizontal(width, height),
        area=width * height,
        aspect=pl.max_horizontal(width, height) / pl.min_horizontal(width, height),
    )


def _terms(columns: Mapping[str, pa.Column], names: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    return {
        name: [{"rule": check.error, "check": check.name, **check.statistics} for check in columns[name].checks]
        for name in names
    }


def _facts_schema(settings: DataSettings, classes: int) -> dict[str, pa.Column]:
    def column(dtype: type[pl.DataType], *checks: pa.Check) -> pa.Column:
        return pa.Column(dtype, list(checks), nullable=True)  # null: not known, because another rule is broken

    check = pa.Check
    return {
        "id": pa.Column(pl.String),
        "row": pa.Column(pl.Int64),
        "bytes": column(pl.Int64, check.ge(1, error="empty-file")),
        "permitted": column(pl.Boolean, check.eq(True, error="permission")),
        "readable": column(pl.Boolean, check.eq(True, error="unreadable")),
        "problem": column(pl.String),
        "content": column(pl.String),
        "format": column(pl.String, check.isin([*settings.formats, ARRAY], error="format-not-allowed")),
        "claimed": column(pl.String),
        "agrees": column(pl.Boolean, check.eq(True, error="format-mismatch")),
        "frames": column(pl.Int64, check.le(1, error="animated")),
        "width": column(pl.Int64),
        "height": column(pl.Int64),
        "side": column(pl.Int64, check.ge(settings.min_side, error="too-small")),
        "area": column(pl.Int64, check.le(settings.max_pixels, error="too-large")),
        "aspect": column(pl.Float64, check.le(settings.max_aspect, error="bad-aspect")),
        "grey": column(pl.Boolean),
        "depth": column(pl.Int64),
        "label": column(pl.Int64, check.in_range(0, classes - 1, error="unknown-label")),
    }


def _samples_schema(images: pl.Series, classes: int) -> dict[str, pa.Column]:
    common = images.drop_nulls().mode().sort().head(1).to_list()
    return {
        "id": pa.Column(pl.String),
        "row": pa.Column(pl.Int64),
        "returned": pa.Column(pl.Boolean, must("raised")),
        "proper": pa.Column(pl.Boolean, must("not-a-sample")),
        "problem": pa.Column(pl.String, nullable=True),
        "image": pa.Column(pl.String, pa.Check.isin(common, error="other-shape"), nullable=True),
        "finite": pa.Column(pl.Boolean, must("not-finite"), nullable=True),
        "label": pa.Column(pl.Int64, pa.Check.in_range(0, classes - 1, error="unknown-label"), nullable=True),
    }


def _with_fixes(bad: pl.DataFrame) -> pl.DataFrame:
    """Replace the hint by the fix for the kind of file or the format, where there is one."""
    fixes = {"unreadable": fix_for_problem, "format-not-allowed": fix_for_format}
    fix = fixes.get(bad["rule"][0]) if bad.height else None
    if fix is None:
        return bad
    known = {value: hint for value in bad["value"].unique() if (hint := fix(value))}
    return bad.with_columns(hint=pl.col("value").replace_strict(known, default=pl.col("hint"), return_dtype=pl.String))


def _value(rule: str, column: str) -> pl.Expr:
    """Return the expression for the value that breaks a rule, as a text."""
    size = pl.format("{} x {} pixels", "width", "height")
    values = {
        "empty-file": pl.lit("0 bytes"),
        "format-not-allowed": pl.col("format"),
        "animated": pl.format("{} frames", "frames"),
        "unknown-label": pl.col("label").cast(pl.String),
        "format-mismatch": pl.format("{} in a file named as {}", "format", "claimed"),
        "other-shape": pl.col("image"),
        "not-finite": pl.format("nan or infinity in {}", "image"),
        "too-small": size,
        "too-large": size,
        "bad-aspect": size,
    }
    return values.get(rule, pl.col("problem").fill_null(""))
