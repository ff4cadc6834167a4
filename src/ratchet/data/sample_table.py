"""Samples with labels that are read one by one: texts, and samples of a user's own kind.

Their columns, rules, splits, index, profile and packing are the same; only their arrays differ.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl
from pandera import polars as pa

from ratchet.data import quarantine
from ratchet.data.packed_set import LABEL_PLACE, IngestTask, PackedSet, divide, without_copies
from ratchet.data.privacy import looks_personal
from ratchet.data.profile import copies, leaking_columns
from ratchet.data.refusal_reasons import REASONS
from ratchet.data.sample_rules import failures, must
from ratchet.data.set_rules import SetRules
from ratchet.data.sources.image_folder import SPLIT_FOLDERS
from ratchet.data.sources.table_file import MISSING, require_column
from ratchet.data.system_files import Ignored
from ratchet.data.tables.targets import TargetTable
from ratchet.settings.model import DataSettings

__all__ = [
    "SAMPLE", "LabelledSamples", "assigned", "broken", "common_profile", "index_names",
    "optional_columns", "packed_set", "typed", "without_missing",
]  # fmt: skip

SAMPLE: dict[str, Any] = {
    "row": pl.Int64, "id": pl.String, "rule": pl.String, "problem": pl.String, "content": pl.String,
    "split": pl.String, "group": pl.String,
}  # fmt: skip
"""Columns of the samples of every source, beside those of their kind.

row: number of the sample in its source. id: unique, and the same on every machine. rule, problem: the rule that it
breaks, and the value; null: none. content: SHA-256 (hex) of its bytes. split, group: as they are written; null: none.
"""
_RESERVED = frozenset(
    [*SAMPLE, "source", "label", "class", "packed", "pixels", "place", "text", "characters", "words", "normal",
     "assigned", LABEL_PLACE]
)  # fmt: skip


@dataclass(frozen=True)
class LabelledSamples:
    """The samples of a source, with its name and place; `labels` and `table` have the same rows.

    `refused` has quarantine rows of what cannot be a sample. `extra` are further columns of the table.
    `ignored` are the files of a folder that are no samples.
    """

    name: str
    where: str
    table: pl.DataFrame
    labels: TargetTable
    refused: pl.DataFrame
    extra: tuple[str, ...] = ()
    ignored: Ignored = field(default_factory=Ignored)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes; empty if the targets are none."""
        return self.labels.classes


def optional_columns(frame: pl.DataFrame, settings: DataSettings, where: str) -> dict[str, str]:
    """Return the columns of split and group. A column that a setting names must be there; a default may be absent."""
    columns = {"split": settings.split_column, "group": settings.group_column}
    for name, column in columns.items():
        if column != type(settings).model_fields[f"{name}_column"].default:
            require_column(column, f"data.{name}_column", frame.columns, where)
    return {name: column for name, column in columns.items() if column in frame.columns}


def index_names(extra: Sequence[str], columns: Sequence[str]) -> dict[str, str]:
    """Return the name in the index of each extra column: one that the index has gets `_` at its end.

    `columns` are all names of the table.
    """
    taken, kept = {*_RESERVED, *columns}, {}
    for name in extra:
        new = name
        while new in _RESERVED or (new != name and new in taken):
            new += "_"
        kept[name] = new
        taken.add(new)
    return kept


def without_missing(texts: pl.Series) -> pl.Series:
    """Return null for the texts that mean a missing value."""
    return texts.to_frame("").select(pl.when(~pl.col("").str.strip_chars().is_in(list(MISSING))).then("")).to_series()


def typed(values: pl.Series) -> pl.Series:
    """Return a column of texts as numbers if all are numbers."""
    if values.dtype != pl.String:
        return values
    texts = without_missing(values).alias(values.name)
    for dtype in (pl.Int64, pl.Float64):
        numbers = texts.str.strip_chars().cast(dtype, strict=False)
        if numbers.null_count() == texts.null_count() < len(texts):
            return numbers
    return texts


def assigned(table: pl.DataFrame) -> pl.DataFrame:
    """Add `assigned`, the split that `split` means, and `place`, the number of the row."""
    written = pl.col("split").str.strip_chars().str.to_lowercase()
    meant = written.replace_strict(SPLIT_FOLDERS, default=None, return_dtype=pl.String)
    return table.with_columns(assigned=meant, place=pl.int_range(pl.len()))


def broken(
    samples: pl.DataFrame, source: LabelledSamples, settings: DataSettings, *,
    further: Mapping[str, tuple[pl.Expr, pa.Check]] | None = None,
    value: Callable[[str], pl.Expr | None] = lambda rule: None, personal: Sequence[str] = (),
) -> pl.DataFrame:  # fmt: skip
    """Return the quarantine rows of the samples of `assigned` that break a rule.

    Args:
        further: rules of the kind: a boolean expression, which is null where the rule does not apply, and its check.
        value: the value that breaks one of them; None: as in refusal_reasons.py.
        personal: columns with texts, beside the extra ones, that must not look personal.
    """
    named = samples.with_columns(source="id")
    refused = [
        quarantine.table(rows.select("row", "content", "source", value="problem"), str(rule))
        for (rule,), rows in named.drop_nulls("rule").sort("rule", "row").group_by("rule", maintain_order=True)
    ]
    shown = named.select("row", "content", "source", value=source.labels.shown.cast(pl.String).fill_null(""))
    refused += [quarantine.table(shown[places], rule) for rule, places in source.labels.faults.items() if len(places)]
    own = further or {}
    answers = named.filter(pl.col("rule").is_null()).with_columns(
        divided=pl.col("assigned").is_not_null() | pl.col("split").is_null(),
        **{name: answer for name, (answer, _) in own.items()},
    )
    texts = [name for name in (*personal, *source.extra) if samples[name].dtype == pl.String]
    texts = texts if settings.refuse_personal else []
    answers = answers.with_columns(looks_personal(answers[name]).alias(f"personal {name}") for name in texts)
    rules = {
        **{name: check for name, (_, check) in own.items()},
        "divided": must("unknown-split"),
        **{f"personal {name}": must("personal-data", be=False) for name in texts},
    }

    def shown_value(rule: str, column: str) -> pl.Expr | None:
        if rule == "personal-data":
            return pl.lit(REASONS[rule].value.format(column=column.removeprefix("personal ")))
        return value(rule)

    columns = {name: pa.Column(pl.Boolean, check, nullable=True) for name, check in rules.items()}
    return pl.concat([*refused, failures(answers, columns, shown_value)])


def packed_set(
    task: IngestTask, good: pl.DataFrame, bad: pl.DataFrame, source: LabelledSamples, *, used: pl.DataFrame,
    own: Sequence[str], least: int | None = None,
) -> PackedSet:  # fmt: skip
    """Divide the good samples, write the quarantine table, and check the rules about the whole set.

    Args:
        good: samples of `assigned`, with the digests `packed`, of the packed sample, and `normal`. Samples with an
            equal `normal` are duplicates, and share a split.
        bad: quarantine rows of the others.
        used: the releases that let samples in.
        own: columns of the kind that the index keeps.
        least: training samples that each class needs; None: data.min_per_class.

    Raises:
        DataError: too many samples are bad, or the whole set breaks a rule.
    """
    good = good.sort("id").with_columns(split="assigned")
    labels, declared = source.labels.take(good["place"].to_numpy()), set(good["assigned"].drop_nulls())
    index, bad = without_copies(divide(good, labels, task.settings, declared=declared), bad, digest="normal")
    total = source.table.height + quarantine.samples(source.refused)
    task.check_quarantine(bad, total=total, notes=source.labels.fault_notes)
    index = index.drop("place").with_columns(pixels="packed")
    settings = task.settings if least is None else task.settings.model_copy(update={"min_per_class": least})
    SetRules(settings, source.classes, task.quarantine).check_index(index)
    return PackedSet(
        name=source.name, source=task.settings.path, index=index, labels=labels.take(index[LABEL_PLACE].to_numpy()),
        bad=bad, released=used, extra=(*own, *source.extra),
    )  # fmt: skip


def common_profile(packed: PackedSet, source: LabelledSamples) -> dict[str, object]:
    """Return what the profiles of all samples with labels have."""
    columns = [*source.extra, *(["group"] if packed.index["group"].count() else [])]
    return {
        **copies(packed.index, packed.labels, digest="normal"),
        "near_duplicates": None,
        "telling": leaking_columns(packed.index, packed.labels, columns),
    }
