"""Rules about tables that list samples."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import polars as pl
from pandera import polars as pa

from ratchet.data import quarantine
from ratchet.data.privacy import looks_personal
from ratchet.data.refusal_reasons import REASONS
from ratchet.data.sample_rules import failures, must
from ratchet.settings.model import DataSettings

__all__ = ["check_table"]


class _Kind(NamedTuple):
    """A kind of text in a column."""

    description: str
    pattern: str
    dtype: type[pl.DataType]


_KINDS = (
    _Kind("whole numbers", r"^\s*[+-]?\d{1,18}\s*$", pl.Int64),
    _Kind("numbers", r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$", pl.Float64),
    _Kind("dates as YYYY-MM-DD", r"^\s*\d{4}-\d{1,2}-\d{1,2}([T ].*)?$", pl.String),
    _Kind("dates with slashes", r"^\s*\d{1,4}/\d{1,2}/\d{1,4}( .*)?$", pl.String),
    _Kind("dates with points", r"^\s*\d{1,2}\.\d{1,2}\.\d{2,4}( .*)?$", pl.String),
)
_NEARLY_ALL = 0.9
_MAX_CHECKED = 10_000  # texts of a column


def check_table(
    table: pl.DataFrame,
    settings: DataSettings,
    *,
    extra: Sequence[str],
    classes: Sequence[str] | None,
    header: pl.Series,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the quarantine rows of wrong rows, and the other rows with typed extra columns.

    Args:
        table: `row`; the texts `path`, `label` and `split`; `known`, the label unless it means a missing one; and
            their meanings: `normal`, the path inside the folder, `means`, a class, `assigned`, a split; `there`,
            whether the file exists. Null: none, or none that is allowed.
        settings: whether texts that look personal are refused.
        extra: further columns. Texts that are nearly all numbers or dates of one form are converted.
        classes: names, by label; None: the labels are no classes, and are not checked here.
        header: whether each row is the header again.
    """
    kinds = {name: kind for name in extra if (kind := _kind(table[name])) is not None}
    texts = [name for name in extra if table[name].dtype == pl.String] if settings.refuse_personal else []
    headers = table.filter(header)
    rows = table.filter(~header) if headers.height else table
    checked = _with_answers(rows, classes)
    checked = checked.with_columns(looks_personal(checked[name]).alias(f"personal {name}") for name in texts)
    headers = headers.select(
        source=pl.lit(settings.manifest), row="row", value=pl.lit(REASONS["repeated-header"].value)
    )
    named = checked.with_columns(source=pl.coalesce("normal", "path", pl.format("row {}", "row")))
    broken = failures(named, _schema(kinds, texts), _values(kinds), source="source")
    refused = pl.concat([quarantine.table(headers, "repeated-header"), broken])
    return refused, checked.with_columns(pl.col(name).cast(kind.dtype, strict=False) for name, kind in kinds.items())


def _with_answers(rows: pl.DataFrame, classes: Sequence[str] | None) -> pl.DataFrame:
    """Add a boolean column for each rule that is not about a column's text."""
    named = pl.col("path").str.strip_chars().fill_null("") != ""
    return rows.with_columns(
        named=named,
        inside=pl.when(named).then(pl.col("normal").is_not_null()),
        there=pl.when(pl.col("normal").is_not_null()).then(pl.col("there").fill_null(False)),
        labelled=pl.lit(True) if classes is None else pl.col("means").is_in(list(classes)).fill_null(False),
        divided=pl.col("assigned").is_not_null() | pl.col("split").is_null(),
    )


def _schema(kinds: dict[str, _Kind], texts: Sequence[str]) -> dict[str, pa.Column]:
    rules: dict[str, tuple[Any, pa.Check | None]] = {
        "row": (pl.Int64, None),
        "named": (pl.Boolean, must("no-path")),
        "inside": (pl.Boolean, must("outside-folder")),
        "there": (pl.Boolean, must("missing-file")),
        "labelled": (pl.Boolean, must("unknown-label")),
        "divided": (pl.Boolean, must("unknown-split")),
        **{name: (pl.String, pa.Check.str_matches(kind.pattern, error="other-type")) for name, kind in kinds.items()},
        **{f"personal {name}": (pl.Boolean, must("personal-data", be=False)) for name in texts},
    }
    return {name: pa.Column(dtype, check, nullable=True) for name, (dtype, check) in rules.items()}


def _values(kinds: Mapping[str, _Kind]) -> Callable[[str, str], pl.Expr | None]:
    """Return the values of the rules whose text depends on more than one column: by rule and column."""
    label = (
        pl.when(pl.col("label").is_not_null() & pl.col("known").is_null())
        .then(pl.format("{}, which means a missing label", "label"))
        .otherwise(pl.col("label").fill_null("none"))
    )

    def value(rule: str, column: str) -> pl.Expr | None:
        if rule == "unknown-label":
            return label
        text = REASONS[rule].value
        if rule == "other-type":
            return pl.format(text.format(column=column, value="{}", kind=kinds[column].description), column)
        if rule == "personal-data":
            return pl.lit(text.format(column=column.removeprefix("personal ")))
        return None

    return value


def _kind(values: pl.Series) -> _Kind | None:
    """Return the kind of nearly all texts of a column; None if they are just texts."""
    texts = values.drop_nulls()
    if values.dtype != pl.String or texts.is_empty():
        return None
    texts = texts.gather_every(max(1, len(texts) // _MAX_CHECKED))  # a part from all over the table is enough
    least = _NEARLY_ALL * len(texts)
    return next((kind for kind in _KINDS if texts.str.contains(kind.pattern).sum() >= least), None)
