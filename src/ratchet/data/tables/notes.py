"""Notes about what a column really holds, each with the setting that changes it."""

import json
from collections.abc import Callable, Sequence

import numpy as np
import polars as pl

from ratchet.data.checks.far_values import inner, is_compact
from ratchet.data.sources.table_file import EXACT, largest
from ratchet.data.tables.encode import texts_of
from ratchet.data.tables.number_formats import STAMP, point, seconds

__all__ = ["far_notes", "merged_notes", "missing_fix", "mixed_notes", "point_notes", "stamp_notes", "yaml_list"]

_READ = 1000  # rows that decide about a column
_LISTED = 8  # different texts that a setting can name


def far_notes(
    name: str, cells: pl.Series, numbers: pl.Series, missing: tuple[str, ...], *, effect: str = ""
) -> tuple[str, ...]:
    """Return a note about numbers that are far from all others of a column.

    Args:
        name: of the column.
        cells: as they are in the file.
        numbers: of the cells, Float64; null: missing.
        missing: texts that data.missing has already.
        effect: further text of the note.
    """
    known = numbers.drop_nulls().to_numpy()
    if not len(known) or is_compact(known):
        return ()
    known = np.sort(known)
    core = known[inner(known)]
    if len(core) == len(known):
        return ()
    is_far = ((numbers < core[0]) | (numbers > core[-1])).fill_null(False)
    named = _named(cells.filter(is_far), numbers.filter(is_far)).alias("value")  # value_counts refuses the name count
    far = named.value_counts(sort=True)["value"].to_list()
    low, high = (
        _named(*(values.filter(numbers == end).head(1) for values in (cells, numbers)))[0] for end in core[[0, -1]]
    )
    shown = ", ".join(far[:3]) + (", ..." if len(far) > 3 else "")
    return (
        f"{name}: {int(is_far.sum()):,} of {len(known):,} values are far from the others ({low} to {high}): {shown}."
        f"{effect} {missing_fix(far, missing, 'values')}",
    )


def merged_notes(name: str, cells: pl.Series, numbers: pl.Series) -> tuple[str, ...]:
    """Return a note about different whole numbers of a column that are one Float64 in `numbers`."""
    if largest(numbers) <= EXACT:
        return ()
    whole = cells.cast(pl.Int128, strict=False)
    count, kept = whole.drop_nulls().n_unique(), numbers.filter(whole.is_not_null()).n_unique()
    text = (
        f"{name}: {count:,} different whole numbers become {kept:,} as float64, which keeps 15 digits. If they are "
        f"codes, set data.columns to {{{name}: categorical}}; if they are amounts, subtract one number from all"
    )
    return (text,) if kept < count else ()


def stamp_notes(name: str, numbers: pl.Series) -> tuple[str, ...]:
    """Return a note about numbers that are dates with times, such as 20241022083213, in the digits of each part."""
    known = numbers.drop_nulls().head(_READ)
    if known.is_empty() or not known.is_between(19e12, 21e12).all():
        return ()
    texts = known.cast(pl.Int64).cast(pl.String)
    if seconds(texts, STAMP).null_count():
        return ()
    fix = f"add {{{json.dumps(name, ensure_ascii=False)}: datetime}} to data.columns in params.yaml"
    return (f"{name}: numbers such as {texts[0]} may be dates, and are not evenly spaced as numbers. If so, {fix}",)


def point_notes(name: str, texts: pl.Series) -> tuple[str, ...]:
    """Return a note about numbers, of which none is null, whose points can be between thousands."""
    if (meaning := point(texts)) == "decimal":
        return ()
    text = texts.filter(texts.str.contains(".", literal=True))[0]
    if meaning == "thousands":
        why = "as the other numbers are below 1,000 and have no point"
        fix = f"it is a decimal point, write four decimals, as in {text}0"
        return (f"{name}: the point in {text!r} is read as one between thousands, {why}. If {fix}",)
    fix = f"it is one between thousands, write the numbers without it, as in {text.replace('.', '')}"
    return (f"{name}: the point in {text!r} is read as a decimal point. If {fix}",)


def mixed_notes(name: str, kind: str, others: pl.Series, total: int, fix: Callable[..., str]) -> tuple[str, ...]:
    """Return a note about the texts of a column that are no numbers or dates (`kind`), among `total` values.

    `fix` returns the last sentence about these texts, the most frequent first.
    """
    if not len(others):
        return ()
    texts = others.alias("value").value_counts(sort=True)["value"].to_list()
    shown = ", ".join(map(repr, texts[:3])) + (", ..." if len(texts) > 3 else "")
    return (
        f"{name}: {1 - len(others) / total:.0%} of the values are {kind}, and {len(others):,} are not: {shown}. "
        f"{fix(texts)}",
    )


def missing_fix(texts: list[str], missing: tuple[str, ...], what: str) -> str:
    """Return the sentence with the setting that makes these texts missing values."""
    if len(texts) > _LISTED:
        return f"If they are wrong, correct these {what} in the file, or leave them empty"
    return f'If they mean missing: ratchet set "data.missing=[{yaml_list((*missing, *texts))}]"'


def yaml_list(texts: Sequence[str]) -> str:
    """Return texts for a list in a command in double quotes."""
    quoted = ("'" + text.replace("'", "''") + "'" for text in texts)
    return ", ".join(quoted).replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$").replace("`", "\\`")


def _named(cells: pl.Series, numbers: pl.Series) -> pl.Series:
    """Return values as data.missing names them."""
    if isinstance(cells.dtype, pl.Date | pl.Datetime):
        return cells.dt.to_string("iso").str.strip_suffix(" 00:00:00.000000")
    texts = texts_of(numbers, numbers.name)
    if cells.dtype != pl.String:
        return texts
    is_plain = cells.cast(pl.Float64, strict=False) == numbers
    return pl.select(pl.when(is_plain).then(texts).otherwise(cells.str.strip_chars())).to_series()
