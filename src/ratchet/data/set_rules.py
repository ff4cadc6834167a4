"""Rules about the whole set. A broken rule stops the run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import polars as pl
from pandera import polars as pa
from pandera.errors import SchemaErrors

from ratchet.data import quarantine
from ratchet.data.split import SPLITS
from ratchet.errors import DataError
from ratchet.settings.model import DataSettings

__all__ = ["check_bad_fraction", "check_index", "check_sizes", "quarantined_by_class"]

_CLASSES_SHOWN = 8


def check_bad_fraction(bad: pl.DataFrame, *, total: int, limit: float, table: Path) -> None:
    """Stop if too many samples are bad.

    Raises:
        DataError: more than `limit` of `total` are bad, or all. The message has the counts by rule and the table's
            path.
    """
    count = quarantine.samples(bad)
    if count == 0 or (count <= limit * total and count < total):
        return
    counts = ", ".join(f"{rule} {number}" for rule, number in quarantine.by_rule(bad).items())
    first = bad.sort("row", "rule").row(0, named=True)
    value = f" (found {first['value']})" if first["value"] else ""
    fix = "correct or remove them" if count == total else "correct or remove them, or raise data.max_bad_fraction"
    raise DataError(
        f"{count} of {total} samples are bad ({count / total:.1%}, data.max_bad_fraction allows {limit:.1%}): {counts}."
        f" The first is {first['source']}, {first['rule']}{value}. {table} lists each with a hint. Fix: {fix}"
    )


def quarantined_by_class(facts: pl.DataFrame, bad: pl.DataFrame) -> dict[int, dict[str, int]]:
    """Count quarantined samples by label and rule. A sample that breaks several rules counts in each."""
    rows = facts.select("row", "label").join(bad.select("row", "rule"), on="row").drop_nulls("label")
    counts: dict[int, dict[str, int]] = {}
    for label, rule, count in rows.group_by("label", "rule").len().sort("label", "rule").rows():
        counts.setdefault(label, {})[rule] = count
    return counts


def check_index(
    index: pl.DataFrame, settings: DataSettings, *, classes: Sequence[str],
    quarantined: Mapping[int, Mapping[str, int]] = MappingProxyType({}), table: Path | None = None,
) -> None:  # fmt: skip
    """Check the rules about the whole set. `quarantined`: counts of the bad samples by label and rule.

    `classes` is empty if the targets are no classes. Only images have brightness and contrast.

    Raises:
        DataError: a duplicate id, an empty split, or a class with too few training examples.
    """
    try:
        columns = {name: rule for name, rule in _index_columns(len(classes)).items() if name in index.columns}
        pa.DataFrameSchema(columns).validate(index, lazy=True)
    except SchemaErrors as error:
        cases = error.failure_cases.select("column", "check", "failure_case").unique().sort(pl.all())
        faults = "; ".join(f"{column} {value!r} breaks {check}" for column, check, value in cases.head(5).rows())
        raise DataError(
            f"data.path {settings.path}: the set breaks its contract: {faults}. Fix: correct ids and labels"
        ) from None
    check_sizes(index, settings, classes=classes, quarantined=quarantined, table=table)


def check_sizes(
    index: pl.DataFrame, settings: DataSettings, *, classes: Sequence[str],
    quarantined: Mapping[int, Mapping[str, int]] = MappingProxyType({}), table: Path | None = None,
) -> None:  # fmt: skip
    """Check that no split is empty, and that each class has enough training samples; as `check_index`."""
    sizes = dict(index.group_by("split").len().rows())
    groups = index["group"].drop_nulls().n_unique() if "group" in index.columns else 0
    for split in SPLITS:
        if not sizes.get(split):
            fraction = "" if split == "train" else f", or raise data.{split}_fraction"
            undivided = f", in {groups:,} groups of {settings.group_column!r} that stay whole" if groups else ""
            content = next((index[name] for name in ("normal", "content", "packed") if name in index.columns), None)
            distinct = index.height if content is None else content.n_unique()
            if distinct < index.height:
                undivided += f", of which {distinct:,} are different: equal ones share a split"
            leave = ", or list the column in data.drop" if groups else ""
            raise DataError(
                f"split {split} is empty ({index.height} good samples in all{undivided}). "
                f"Fix: add {'other ' if distinct < index.height else ''}samples to the source{fraction}{leave}"
            )
    _check_class_sizes(index, classes, least=settings.min_per_class, quarantined=quarantined, table=table)


def _check_class_sizes(
    index: pl.DataFrame, classes: Sequence[str], *, least: int,
    quarantined: Mapping[int, Mapping[str, int]], table: Path | None,
) -> None:  # fmt: skip
    """Check that each class has at least `least` training samples."""
    sizes = dict(index.filter(pl.col("split") == "train").group_by("label").len().rows())
    labels = [label for label in range(len(classes)) if sizes.get(label, 0) < least]
    if not labels:
        return
    small = [
        f"{classes[label]!r} has {sizes.get(label, 0)}{_quarantine_note(quarantined.get(label, {}))}"
        for label in labels[:_CLASSES_SHOWN]
    ]
    more = f" and {len(labels) - _CLASSES_SHOWN} more classes" if len(labels) > _CLASSES_SHOWN else ""
    fix = "add samples, remove the class, or lower it"
    if any(quarantined.get(label) for label in labels):
        fix = f"correct the quarantined files, which {table} lists with a fix for each; or {fix}"
    raise DataError(
        f"too few training examples: class {', '.join(small)}{more}; data.min_per_class requires {least}. Fix: {fix}"
    )


def _quarantine_note(rules: Mapping[str, int]) -> str:
    counts = ", ".join(f"{rule} {count:,}" for rule, count in rules.items())
    return f" (quarantined: {counts})" if rules else ""


def _index_columns(classes: int) -> dict[str, pa.Column]:
    return {
        "id": pa.Column(pl.String, unique=True),
        "split": pa.Column(pl.String, pa.Check.isin(SPLITS)),
        **({"label": pa.Column(pl.Int64, pa.Check.in_range(0, classes - 1))} if classes else {}),
        "content": pa.Column(pl.String, pa.Check.str_length(64, 64)),
        "pixels": pa.Column(pl.String, pa.Check.str_length(64, 64)),
        "brightness": pa.Column(pl.Float64, pa.Check.in_range(0, 255)),
        "contrast": pa.Column(pl.Float64, pa.Check.in_range(0, 128)),
    }
