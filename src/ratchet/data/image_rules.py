"""Rules about single images, which also apply to a request to a model."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, get_args

import polars as pl
from pandera import polars as pa

from ratchet.data.reading.images import ARRAY, Facts, format_of_extension
from ratchet.data.sample_rules import Terms, failures, must, terms
from ratchet.settings.model import DataSettings

__all__ = ["FACTS", "check_facts", "facts_frame", "image_terms"]

_TYPES: Mapping[type, Any] = {bool: pl.Boolean, int: pl.Int64, float: pl.Float64, str: pl.String}
FACTS: Mapping[str, Any] = {field.name: _TYPES[get_args(field.type)[0]] for field in fields(Facts)}
"""Name and type of each fact."""


def facts_frame(columns: Mapping[str, Sequence[Any]]) -> pl.DataFrame:
    """Return a frame with one row per sample, from one list per fact."""
    return pl.DataFrame({name: pl.Series(columns[name], dtype=kind) for name, kind in FACTS.items()})


def check_facts(frame: pl.DataFrame, settings: DataSettings, *, classes: int) -> pl.DataFrame:
    """Return quarantine rows (quarantine.SCHEMA) of the samples that break a rule about a single sample."""
    return failures(_with_derived(frame), _facts_schema(settings, classes))


def image_terms(settings: DataSettings) -> Terms:
    """Return the rules that apply to a single image."""
    columns = ("bytes", "readable", "format", "frames", "side", "area", "aspect")
    return terms(_facts_schema(settings, classes=1), columns)


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


def _facts_schema(settings: DataSettings, classes: int) -> dict[str, pa.Column]:
    def column(dtype: type[pl.DataType], *checks: pa.Check) -> pa.Column:
        return pa.Column(dtype, list(checks), nullable=True)  # null: not known, because another rule is broken

    check = pa.Check
    return {
        "id": pa.Column(pl.String),
        "row": pa.Column(pl.Int64),
        "bytes": column(pl.Int64, check.ge(1, error="empty-file")),
        "permitted": column(pl.Boolean, must("permission")),
        "readable": column(pl.Boolean, must("unreadable")),
        "problem": column(pl.String),
        "content": column(pl.String),
        "format": column(pl.String, check.isin([*settings.formats, ARRAY], error="format-not-allowed")),
        "claimed": column(pl.String),
        "agrees": column(pl.Boolean, must("format-mismatch")),
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
