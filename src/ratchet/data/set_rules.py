"""Rules about the whole set. A broken rule stops the run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
from pandera import polars as pa
from pandera.errors import SchemaErrors

from ratchet.data import quarantine
from ratchet.data.split import SPLITS
from ratchet.errors import DataError
from ratchet.settings.model import DataSettings

__all__ = ["SetRules", "check_bad_fraction", "quarantined_by_class"]

_CLASSES_SHOWN = 8


def check_bad_fraction(bad: pl.DataFrame, *, total: int, limit: float, table: Path, notes: Sequence[str] = ()) -> None:
    """Stop if too many samples are bad.

    Raises:
        DataError: more than `limit` of `total` are bad, or all. The message has the counts by rule, the table's
            path and `notes`.
    """
    count = quarantine.samples(bad)
    if count == 0 or (count <= limit * total and count < total):
        return
    by_rule = quarantine.by_rule(bad)
    counts = ", ".join(f"{rule} {number}" for rule, number in by_rule.items())
    first = bad.sort("row", "rule").row(0, named=True)
    value = f" (found {first['value']})" if first["value"] else ""
    value += f": {first['hint']}" if len(by_rule) == 1 else ""
    fix = "correct or remove them" if count == total else "correct or remove them, or raise data.max_bad_fraction"
    text = (
        f"{count} of {total} samples are bad ({count / total:.1%}, data.max_bad_fraction allows {limit:.1%}): {counts}."
        f" The first is {first['source']}, {first['rule']}{value}. {table} lists each with a hint. Fix: {fix}"
    )
    raise DataError("\n".join([text, *notes]))


def quarantined_by_class(facts: pl.DataFrame, bad: pl.DataFrame) -> dict[int, dict[str, int]]:
    """Count quarantined samples by label and rule. A sample that breaks several rules counts in each."""
    rows = facts.select("row", "label").join(bad.select("row", "rule"), on="row").drop_nulls("label")
    counts: dict[int, dict[str, int]] = {}
    for label, rule, count in rows.group_by("label", "rule").len().sort("label", "rule").rows():
        counts.setdefault(label, {})[rule] = count
    return counts


@dataclass(frozen=True)
class SetRules:
    """Rules about the whole set."""

    settings: DataSettings
    classes: Sequence[str]  # empty: the targets are no classes
    table: Path  # of the quarantine
    quarantined: Mapping[int, Mapping[str, int]] = field(default_factory=dict)  # counts by label and rule

    def check_index(self, index: pl.DataFrame) -> None:
        """Check the columns of an index, and its sizes. Only images have brightness and contrast.

        Raises:
            DataError: a duplicate id, an empty split, or a class with too few training examples.
        """
        try:
            columns = {name: rule for name, rule in _index_columns(len(self.classes)).items() if name in index.columns}
            pa.DataFrameSchema(columns).validate(index, lazy=True)
        except SchemaErrors as error:
            cases = error.failure_cases.select("column", "check", "failure_case").unique().sort(pl.all())
            faults = "; ".join(f"{column} {value!r} breaks {check}" for column, check, value in cases.head(5).rows())
            raise DataError(
                f"data.path {self.settings.path}: the set breaks its contract: {faults}. Fix: correct ids and labels"
            ) from None
        self.check_sizes(index)

    def check_sizes(self, index: pl.DataFrame) -> None:
        """Check that no split is empty, and that each class has enough training samples; as `check_index`."""
        sizes = dict(index.group_by("split").len().rows())
        groups = index["group"].drop_nulls().n_unique() if "group" in index.columns else 0
        for split in SPLITS:
            if not sizes.get(split):
                is_whole = groups and groups + index["group"].null_count() < len(SPLITS)
                is_divisible = split != "train" and not is_whole
                fraction = f", or raise data.{split}_fraction" if is_divisible else ""
                undivided = (
                    f", in {groups:,} group{'s' * (groups > 1)} of {self.settings.group_column!r} that stay whole"
                    if groups
                    else ""
                )
                content = next((index[name] for name in ("normal", "content", "packed") if name in index.columns), None)
                distinct = index.height if content is None else content.n_unique()
                if distinct < index.height:
                    undivided += f", of which {distinct:,} are different: equal ones share a split"
                where = "to the source" + " (with split train, if it has splits)" * (split == "train")
                leave = ", or list the column in data.drop" if groups else ""
                raise DataError(
                    f"split {split} is empty ({index.height} good samples in all{undivided}). "
                    f"Fix: add {'other ' if distinct < index.height else ''}samples {where}{fraction}{leave}"
                )
        self._check_class_sizes(index)

    def _check_class_sizes(self, index: pl.DataFrame) -> None:
        least = self.settings.min_per_class
        sizes = dict(index.filter(pl.col("split") == "train").group_by("label").len().rows())
        labels = [label for label in range(len(self.classes)) if sizes.get(label, 0) < least]
        if not labels:
            return
        small = [
            f"{self.classes[label]!r} has {sizes.get(label, 0)}{_quarantine_note(self.quarantined.get(label, {}))}"
            for label in labels[:_CLASSES_SHOWN]
        ]
        more = f" and {len(labels) - _CLASSES_SHOWN} more classes" if len(labels) > _CLASSES_SHOWN else ""
        fix = "add samples, remove the class, or lower it"
        if absent := [label for label in labels if not sizes.get(label)]:  # the setting is 1 or more
            fix = "add training samples, or remove the class"
            fix += ", whose other samples are in validation or test" if index["label"].is_in(absent).any() else ""
        if any(self.quarantined.get(label) for label in labels):
            fix = f"correct the quarantined files, which {self.table} lists with a fix for each; or {fix}"
        raise DataError(
            f"too few training examples: class {', '.join(small)}{more}; data.min_per_class requires {least}. "
            f"Fix: {fix}"
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
