"""What is allowed in. pandera judges; a broken rule about one sample quarantines it, about the whole set stops the run.

Each table is checked twice, because a wrong column would hide the values' faults: first columns and types, which only a
mistake of ours can break, then the values with every failure collected.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import polars as pl
from pandera import polars as pa
from pandera.errors import SchemaErrors

from ratchet.data import quarantine
from ratchet.data.reading.identify import fix_for_format, fix_for_problem
from ratchet.data.reading.images import ARRAY, claimed
from ratchet.data.split import SPLITS
from ratchet.errors import DataError
from ratchet.settings.model import DataSettings

__all__ = [
    "FACTS",
    "check_bad_fraction",
    "check_facts",
    "check_index",
    "check_samples",
    "cross_split_duplicates",
    "duplicate_ids",
    "facts_frame",
    "failures",
    "kept_out",
    "label_conflicts",
    "must",
    "picture_terms",
    "sample_terms",
]

FACTS: dict[str, Any] = {
    "bytes": pl.Int64, "permitted": pl.Boolean, "readable": pl.Boolean, "problem": pl.String, "content": pl.String,
    "format": pl.String, "frames": pl.Int64, "width": pl.Int64, "height": pl.Int64, "grey": pl.Boolean,
    "depth": pl.Int64, "label": pl.Int64, "pixels": pl.String, "brightness": pl.Float64, "contrast": pl.Float64,
    "full_pixels": pl.String,
}  # fmt: skip


_ID = pl.col("id")


def facts_frame(told: Mapping[str, Sequence[Any]]) -> pl.DataFrame:
    """One row per sample, from one list per fact."""
    return pl.DataFrame({name: pl.Series(told[name], dtype=kind) for name, kind in FACTS.items()})


def _with_conclusions(frame: pl.DataFrame) -> pl.DataFrame:
    """The facts with what follows from them and the id."""
    width, height = pl.col("width"), pl.col("height")
    ending = pl.col("id").str.extract(r"(\.[^./]*)$", 1)
    formats = {found: claimed(f"name{found}") for found in frame.select(ending.unique())["id"].to_list() if found}
    means = ending.replace_strict(formats, default=None, return_dtype=pl.String)
    return frame.with_columns(claimed=pl.when(pl.col("format") != ARRAY).then(means)).with_columns(
        agrees=pl.col("claimed") == pl.col("format"),
        side=pl.min_horizontal(width, height),
        area=width * height,
        aspect=pl.max_horizontal(width, height) / pl.min_horizontal(width, height),
    )


def check_facts(frame: pl.DataFrame, settings: DataSettings, *, classes: int) -> pl.DataFrame:
    """The quarantine rows (quarantine.SCHEMA) of the samples that must not be trained on, for what each is alone."""
    return failures(_with_conclusions(frame), _facts_schema(settings, classes))


def check_samples(frame: pl.DataFrame, *, classes: int) -> pl.DataFrame:
    """The quarantine rows of what a user's own Dataset gave and must not be trained on.

    Args:
        frame: per sample whether it `returned` and was `proper`, else the `problem`; `image`, its type and shape in
            words, `finite` and `label`, where they are known.
        classes: how many there are.
    """
    return failures(frame, _samples_schema(frame["image"], classes))


def duplicate_ids(frame: pl.DataFrame) -> pl.DataFrame:
    """The quarantine rows of samples whose id another has; the one in the split that must most stay unseen stays."""
    again = frame.select("row", "id", pl.col("split").fill_null("train")).filter(pl.col("id").is_duplicated())
    ranked = _ranked(again).sort("rank", "row", descending=[True, False])
    leaving = ranked.with_columns(kept=pl.col("split").first().over("id")).filter(~pl.col("id").is_first_distinct())
    return quarantine.rows(
        (one["id"], one["row"], "duplicate-id", f"again in {one['split']}, kept in {one['kept']}")
        for one in leaving.iter_rows(named=True)
    )


def cross_split_duplicates(index: pl.DataFrame) -> pl.DataFrame:
    """The quarantine rows of samples whose exact pixels are also in a split that must stay unseen.

    Of twins, the one in test stays, else the one in validation. Copies within one split all stay.
    """
    ranked = _ranked(index.select("row", "id", "pixels", "split").filter(pl.col("pixels").is_duplicated()))
    ranked = ranked.with_columns(top=pl.col("rank").max().over("pixels"))
    twins = (
        ranked.filter(pl.col("rank") == pl.col("top"))
        .group_by("pixels")
        .agg(twin=pl.col("id").min(), kept=pl.col("split").first())
    )
    leaving = ranked.filter(pl.col("rank") < pl.col("top")).join(twins, on="pixels", how="left").sort("row")
    return quarantine.rows(
        (one["id"], one["row"], "duplicate-across-splits", f"in {one['split']}, as {one['twin']} in {one['kept']}")
        for one in leaving.iter_rows(named=True)
    )


def _ranked(frame: pl.DataFrame) -> pl.DataFrame:
    """With `rank`: the higher, the more a split must stay unseen."""
    ranks = {name: place for place, name in enumerate(SPLITS)}
    return frame.with_columns(rank=pl.col("split").replace_strict(ranks, return_dtype=pl.Int64))


def label_conflicts(index: pl.DataFrame) -> list[dict[str, list[str]]]:
    """Groups of samples with the same pixels and different labels: {"ids": [...], "classes": [...]}, by first id."""
    groups = (
        index.filter(pl.col("pixels").is_duplicated())
        .group_by("pixels")
        .agg(pl.col("id").sort(), pl.col("class").unique().sort())
    )
    found = groups.filter(pl.col("class").list.len() > 1)
    pairs = zip(found["id"].to_list(), found["class"].to_list(), strict=True)
    return [{"ids": ids, "classes": names} for ids, names in sorted(pairs)]


def picture_terms(settings: DataSettings) -> dict[str, list[dict[str, Any]]]:
    """What the contract asks of a picture alone, and so of one that is sent to a model, as plain data.

    By column the checks: `rule`, its name in the quarantine; `check`, pandera's name of it; and the check's limits.
    """
    return _terms(
        _facts_schema(settings, classes=1), ("bytes", "readable", "format", "frames", "side", "area", "aspect")
    )


def sample_terms(images: pl.Series) -> dict[str, list[dict[str, Any]]]:
    """As `picture_terms`, of what a user's own Dataset gives; `images` are type and shape of each, in words."""
    return _terms(_samples_schema(images, classes=1), ("image", "finite"))


def _terms(columns: Mapping[str, pa.Column], asked: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    return {
        name: [{"rule": check.error, "check": check.name, **check.statistics} for check in columns[name].checks]
        for name in asked
    }


def check_bad_fraction(bad: pl.DataFrame, *, total: int, limit: float, table: Path) -> None:
    """Stop when too many samples are bad.

    Raises:
        DataError: more than `limit` of `total`, or all; the message has the counts by rule and the table's path.
    """
    count = quarantine.samples(bad)
    if count == 0 or (count <= limit * total and count < total):
        return
    counts = ", ".join(f"{rule} {number}" for rule, number in quarantine.by_rule(bad).items())
    first = bad.sort("row", "rule").row(0, named=True)
    value = f" (found {first['value']})" if first["value"] else ""
    way_out = "mend or remove them" if count == total else "mend or remove them, or raise data.max_bad_fraction"
    raise DataError(
        f"{count} of {total} are bad ({count / total:.1%}, data.max_bad_fraction allows {limit:.1%}): {counts}. "
        f"The first is {first['source']}, {first['rule']}{value}. Each is listed, with a hint, in {table}: {way_out}"
    )


def kept_out(facts: pl.DataFrame, bad: pl.DataFrame) -> dict[int, dict[str, int]]:
    """By label the samples that were kept out, by rule; a sample that breaks several counts in each."""
    rows = facts.select("row", "label").join(bad.select("row", "rule"), on="row").drop_nulls("label")
    found: dict[int, dict[str, int]] = {}
    for label, rule, count in rows.group_by("label", "rule").len().sort("label", "rule").rows():
        found.setdefault(label, {})[rule] = count
    return found


def check_index(
    index: pl.DataFrame, settings: DataSettings, *, classes: Sequence[str],
    kept_out: Mapping[int, Mapping[str, int]] = MappingProxyType({}), table: Path | None = None,
) -> None:  # fmt: skip
    """The rules about the whole set.

    Args:
        index: the good samples.
        settings: the `data` section.
        classes: names, by label.
        kept_out: by label the samples that are not among them, by rule.
        table: where each of those is listed.

    Raises:
        DataError: a duplicate id, an empty split, or a class with too few training examples.
    """
    try:
        _index_schema(len(classes)).validate(index, lazy=True)
    except SchemaErrors as error:
        cases = error.failure_cases.select("column", "check", "failure_case").unique().sort(pl.all())
        told = "; ".join(f"{column} {value!r} breaks {check}" for column, check, value in cases.head(5).rows())
        raise DataError(
            f"data.source {settings.source}: the set breaks its contract: {told}: mend the source's ids and labels"
        ) from None
    sizes = dict(index.group_by("split").len().rows())
    for split in SPLITS:
        if not sizes.get(split):
            fraction = "" if split == "train" else f", or raise data.{split}_fraction"
            raise DataError(
                f"split {split} is empty ({index.height} good samples in all): add samples to the source{fraction}"
            )
    trained = dict(index.filter(pl.col("split") == "train").group_by("label").len().rows())
    labels = [label for label in range(len(classes)) if trained.get(label, 0) < settings.min_per_class]
    if labels:
        few = [
            f"{classes[label]!r} has {trained.get(label, 0)}{_refused(kept_out.get(label, {}))}" for label in labels[:8]
        ]
        more = f" and {len(labels) - 8} more classes" if len(labels) > 8 else ""
        fix = "add images, remove the class, or lower it"
        if any(kept_out.get(label) for label in labels):
            fix = f"correct the files that were kept out, each is listed with its fix in {table}; or {fix}"
        raise DataError(
            f"too few training examples: class {', '.join(few)}{more}; data.min_per_class asks for "
            f"{settings.min_per_class}: {fix}"
        )


def _refused(rules: Mapping[str, int]) -> str:
    counts = ", ".join(f"{rule} {count:,}" for rule, count in rules.items())
    return f" (kept out: {counts})" if rules else ""


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


def must(rule: str, *, be: bool = True) -> pa.Check:
    """The check that a column of yes and no says what it must, under the rule's name."""
    return pa.Check.eq(be, error=rule)


def _index_schema(classes: int) -> pa.DataFrameSchema:
    columns = {
        "id": pa.Column(pl.String, unique=True),
        "split": pa.Column(pl.String, pa.Check.isin(SPLITS)),
        "label": pa.Column(pl.Int64, pa.Check.in_range(0, classes - 1)),
        "content": pa.Column(pl.String, pa.Check.str_length(64, 64)),
        "pixels": pa.Column(pl.String, pa.Check.str_length(64, 64)),
        "brightness": pa.Column(pl.Float64, pa.Check.in_range(0, 255)),
        "contrast": pa.Column(pl.Float64, pa.Check.in_range(0, 128)),
    }
    return pa.DataFrameSchema(columns)


def failures(
    frame: pl.DataFrame,
    columns: dict[str, pa.Column],
    value: Callable[[str, str], pl.Expr] | None = None,
    *,
    source: pl.Expr = _ID,
) -> pl.DataFrame:
    """The quarantine rows of `frame`'s rows that break a rule; `value` tells, by rule and column, what was found."""
    value = value or _value
    structure = {name: pa.Column(column.dtype, nullable=column.nullable) for name, column in columns.items()}
    # A LazyFrame is checked for its columns and types only: the first pass.
    pa.DataFrameSchema(structure, strict=True).validate(frame.select(sorted(columns)).lazy(), lazy=True)
    try:
        pa.DataFrameSchema(columns).validate(frame, lazy=True)
    except SchemaErrors as error:
        cases = error.failure_cases
        if cases["index"].null_count():  # not about a row: a fault in the schema itself
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


def _with_fixes(bad: pl.DataFrame) -> pl.DataFrame:
    """With the fix that belongs to the kind of file or to the format that was found, where one is known."""
    fixes = {"unreadable": fix_for_problem, "format-not-allowed": fix_for_format}
    fix = fixes.get(bad["rule"][0]) if bad.height else None
    if fix is None:
        return bad
    known = {value: hint for value in bad["value"].unique() if (hint := fix(value))}
    return bad.with_columns(hint=pl.col("value").replace_strict(known, default=pl.col("hint"), return_dtype=pl.String))


def _value(rule: str, column: str) -> pl.Expr:
    """What was found, in words."""
    size = pl.format("{} x {} pixels", "width", "height")
    found = {
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
    return found.get(rule, pl.col("problem").fill_null(""))
