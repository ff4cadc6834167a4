"""What is allowed in a table that lists samples."""

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl
from pandera import polars as pa

from ratchet.data import quarantine
from ratchet.data.contract import failures, must
from ratchet.data.privacy import looks_personal
from ratchet.settings.model import DataSettings

__all__ = ["check_table"]


@dataclass(frozen=True)
class _Kind:
    """What nearly all texts of a column are: in words, by pattern, and as a type."""

    words: str
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
_LOOKED_AT = 10_000


def check_table(
    table: pl.DataFrame, settings: DataSettings, *, own: Sequence[str], classes: Sequence[str]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The quarantine rows of what a table of samples says wrongly, and the table with its own columns typed.

    Args:
        table: `row`, the texts `path`, `label` and `split`, `known`, the label unless it stands for none; what they
            mean: `normal`, the path inside the folder, `means`, a class, `assigned`, a split; `there`, whether the file
            is. Null: nothing, or none that is allowed.
        settings: whether texts that look personal are refused.
        own: further columns of the table; texts in which nearly all are numbers or dates of one form become such.
        classes: names, by label.
    """
    kinds = {name: kind for name in own if (kind := _kind(table[name])) is not None}
    texts = [name for name in own if table[name].dtype == pl.String] if settings.refuse_personal else []
    again = ((pl.col("path") == settings.path_column) & (pl.col("label") == settings.label_column)).fill_null(False)
    named = pl.col("path").str.strip_chars().fill_null("") != ""
    headers = table.filter(again)
    rows = table.filter(~again) if headers.height else table
    judged = rows.with_columns(
        named=named,
        inside=pl.when(named).then(pl.col("normal").is_not_null()),
        there=pl.when(pl.col("normal").is_not_null()).then(pl.col("there").fill_null(False)),
        labelled=pl.col("means").is_in(list(classes)).fill_null(False),
        divided=pl.col("assigned").is_not_null() | pl.col("split").is_null(),
    )
    judged = judged.with_columns(looks_personal(judged[name]).alias(f"personal {name}") for name in texts)
    rules = {
        "row": (pl.Int64, None),
        "named": (pl.Boolean, must("no-path")),
        "inside": (pl.Boolean, must("outside-folder")),
        "there": (pl.Boolean, must("missing-file")),
        "labelled": (pl.Boolean, must("unknown-label")),
        "divided": (pl.Boolean, must("unknown-split")),
        **{name: (pl.String, pa.Check.str_matches(kind.pattern, error="other-type")) for name, kind in kinds.items()},
        **{f"personal {name}": (pl.Boolean, must("personal-data", be=False)) for name in texts},
    }
    columns = {name: pa.Column(dtype, check, nullable=True) for name, (dtype, check) in rules.items()}
    found = {
        "no-path": pl.lit(""),
        "outside-folder": pl.col("path"),
        "missing-file": pl.col("path"),
        "unknown-label": pl.when(pl.col("label").is_not_null() & pl.col("known").is_null())
        .then(pl.format("{}, which means that there is none", "label"))
        .otherwise(pl.col("label").fill_null("none")),
        "unknown-split": pl.col("split"),
    }

    def value(rule: str, column: str) -> pl.Expr:
        if rule == "other-type":
            return pl.format(f"{column} {{}}, where nearly all are {kinds[column].words}", column)
        if rule == "personal-data":
            return pl.lit(f"{column.removeprefix('personal ')} looks like a person's address or number")
        return found[rule]

    headers = headers.select(source=pl.lit(settings.manifest), row="row", value=pl.lit("the header again"))
    source = pl.coalesce("normal", "path", pl.format("row {}", "row"))
    refused = pl.concat([quarantine.table(headers, "repeated-header"), failures(judged, columns, value, source=source)])
    return refused, judged.with_columns(pl.col(name).cast(kind.dtype, strict=False) for name, kind in kinds.items())


def _kind(values: pl.Series) -> _Kind | None:
    """What nearly all of a column's texts are, if that is anything but texts."""
    texts = values.drop_nulls()
    if values.dtype != pl.String or texts.is_empty():
        return None
    texts = texts.gather_every(max(1, len(texts) // _LOOKED_AT))  # some from all over the table will do
    least = _NEARLY_ALL * len(texts)
    return next((kind for kind in _KINDS if texts.str.contains(kind.pattern).sum() >= least), None)
