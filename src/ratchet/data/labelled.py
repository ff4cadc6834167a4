"""Samples with labels that are read one by one: texts, and samples of a user's own kind.

Their columns, rules, splits, index, profile and packing are the same; only their arrays differ.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl
from pandera import polars as pa

from ratchet import files
from ratchet.data import pack, quarantine, set_rules, split
from ratchet.data.checks import exact_duplicates
from ratchet.data.manifest import FORMAT, Manifest, Shard, SplitFiles
from ratchet.data.privacy import looks_personal
from ratchet.data.profile import telling_columns
from ratchet.data.refusal_reasons import REASONS
from ratchet.data.sample_rules import failures, must
from ratchet.data.sources.image_folder import SPLIT_FOLDERS
from ratchet.data.sources.table_file import MISSING
from ratchet.data.system_files import Ignored
from ratchet.data.tables.targets import Labelling
from ratchet.errors import DataError
from ratchet.kinds import Input
from ratchet.settings.model import DataSettings

__all__ = [
    "SAMPLE", "LabelledSamples", "assigned", "broken", "check_columns", "checked_index", "common_profile",
    "index_names", "optional_columns", "pack_samples", "typed", "without_missing",
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
     "assigned"]
)  # fmt: skip
_LISTED = 100


@dataclass(frozen=True)
class LabelledSamples:
    """The samples of a source, with its name and place; `labels` and `table` have the same rows.

    `refused` has quarantine rows of what cannot be a sample. `extra` are further columns of the table.
    `ignored` are the files of a folder that are no samples.
    """

    name: str
    where: str
    table: pl.DataFrame
    labels: Labelling
    refused: pl.DataFrame
    extra: tuple[str, ...] = ()
    ignored: Ignored = field(default_factory=Ignored)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes; empty if the targets are none."""
        return self.labels.classes


def optional_columns(frame: pl.DataFrame, settings: DataSettings) -> dict[str, str]:
    """Return the columns of split and group. A column that a setting names must be there; a default may be absent."""
    columns = {"split": settings.split_column, "group": settings.group_column}
    present = {name: column for name, column in columns.items() if column in frame.columns}
    for name, column in columns.items():
        if name not in present and column != type(settings).model_fields[f"{name}_column"].default:
            raise DataError(
                f"data.{name}_column: the table has no column {column!r}; it has {', '.join(frame.columns[:40])}. "
                f"Fix: correct data.{name}_column"
            )
    return present


def check_columns(table: pl.DataFrame, where: str, *, of_values: str = "") -> None:
    """Check that no column has lists, records or bytes.

    `of_values` is the column with the samples themselves.
    """
    for name, dtype in table.schema.items():
        if dtype.is_nested() or dtype == pl.Binary or dtype == pl.Object:
            fix = "save one text in each row" if name == of_values else f"set data.drop=[{name}]"
            raise DataError(f"{where}: column {name!r} has {dtype}, not single values. Fix: {fix}")


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
        **{name: check for name, (_, check) in own.items()}, "divided": must("unknown-split"),
        **{f"personal {name}": must("personal-data", be=False) for name in texts},
    }  # fmt: skip

    def shown_value(rule: str, column: str) -> pl.Expr | None:
        if rule == "personal-data":
            return pl.lit(REASONS[rule].value.format(column=column.removeprefix("personal ")))
        return value(rule)

    columns = {name: pa.Column(pl.Boolean, check, nullable=True) for name, check in rules.items()}
    return pl.concat([*refused, failures(answers, columns, shown_value)])


def checked_index(
    good: pl.DataFrame, bad: pl.DataFrame, source: LabelledSamples, settings: DataSettings, *, table: Path, total: int
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the index, split by split and each in the order of ids, and the quarantine table, which is written too.

    Args:
        good: samples of `assigned`, with the digests `packed`, of the packed sample, and `normal`. Samples with an
            equal `normal` are duplicates, and share a split.
        bad: quarantine rows of the others.
        total: number of all samples.

    Raises:
        DataError: too many samples are bad, or the whole set breaks a rule.
    """
    index = _split(good, source.labels, settings)
    duplicates = exact_duplicates.cross_split_duplicates(index.with_columns(pixels="normal"))
    bad, index = pl.concat([bad, duplicates]), quarantine.without(index, duplicates)
    quarantine.write(table, bad)  # even if too much is bad, because the table has the reasons
    set_rules.check_bad_fraction(bad, total=total, limit=settings.max_bad_fraction, table=table)
    set_rules.check_index(index.with_columns(pixels="packed"), settings, classes=source.classes, table=table)
    return index, bad


def _split(good: pl.DataFrame, labels: Labelling, settings: DataSettings) -> pl.DataFrame:
    identity = pl.when(pl.col("group").is_null()).then("normal").otherwise("group " + pl.col("group"))
    places = good["place"].to_numpy()
    shown = labels.shown[places].cast(pl.String)
    drawn = split.assign(
        good.select(identity).to_series(), good["assigned"], declared=set(good["assigned"].drop_nulls()),
        validation_fraction=settings.validation_fraction, test_fraction=settings.test_fraction,
        folds=settings.folds, fold=settings.fold, classes=shown if labels.classes else None,
    )  # fmt: skip
    index = good.with_columns(
        pl.Series("split", drawn, dtype=pl.String),
        pl.Series("label", labels.values[places] if labels.classes else [None] * len(places), dtype=pl.Int64),
        shown.alias("class"),
        source=pl.col("id"),
    ).sort("id")
    return pl.concat([index.filter(pl.col("split") == name) for name in split.SPLITS])


def pack_samples(
    draft: Path, index: pl.DataFrame, bad: pl.DataFrame, source: LabelledSamples, *, input: Input,
    profile: Mapping[str, object], own: Sequence[str],
    write: Callable[[Path, pl.DataFrame], dict[str, tuple[Shard, ...]]], notes: Mapping[str, Any],
) -> Manifest:  # fmt: skip
    """Write the arrays, the index, the profile and the manifest.

    Args:
        index: of `checked_index`.
        profile: what the kind adds to `common_profile`.
        own: columns of the kind that the index keeps.
        write: writes the arrays of the given rows of the index into a folder.
        notes: of the manifest, beside those of the quarantine.
    """
    kept = index.drop("place", *([] if index["group"].count() else ["group"])).with_columns(pixels="packed")
    pack.write_index(draft, kept, extra=[*own, *source.extra])
    values = source.labels.values[index["place"].to_numpy()]
    train = slice(0, int((index["split"] == "train").sum()))
    labels = replace(source.labels, values=values, shown=index["class"], faults={})
    extra = [*source.extra, *(["group"] if "group" in kept.columns else [])]
    by_rule = quarantine.by_rule(bad)
    common = common_profile(index, labels=labels, train=train, quarantined=by_rule, extra=extra)
    files.write_json(draft / "profile.json", {**common, **profile})
    splits = {}
    for name in split.SPLITS:
        chosen, folder = (index["split"] == name).to_numpy(), draft / name
        folder.mkdir()
        rows = index.filter(chosen)
        arrays, targets = write(folder, rows), pack.write_array(folder, "targets", values[chosen])
        keys = pack.write_array(folder, "keys", split.keys(rows["id"]))
        splits[name] = SplitFiles(rows.height, arrays, targets, keys)
    counts = {"quarantined": quarantine.samples(bad), "quarantined_by_rule": by_rule}
    manifest = Manifest.sealed(
        {**notes, **counts}, format=FORMAT, name=source.name, input=input, target=labels.target(train), splits=splits
    )
    manifest.write(draft)
    return manifest


def common_profile(
    index: pl.DataFrame, *, labels: Labelling, train: slice, quarantined: Mapping[str, int], extra: Sequence[str]
) -> dict[str, object]:
    """Return the part of profile.json that does not depend on the kind.

    Args:
        index: of `checked_index`.
        labels: the targets of the same rows.
        train: the training rows.
        quarantined: number of quarantined samples, by rule.
        extra: columns of the index that come from the source.
    """
    counted = {(name, label): n for name, label, n in index.group_by("split", "class").len().rows()}
    conflicts = exact_duplicates.label_conflicts(index.with_columns(pixels="normal")) if labels.classes else []
    return {
        "rows": {name: int((index["split"] == name).sum()) for name in split.SPLITS},
        **labels.described(train),
        "classes": {name: {label: counted.get((name, label), 0) for label in labels.classes} for name in split.SPLITS},
        "copies_within_splits": index.height - index.select("split", "normal").n_unique(),
        "label_conflicts": {"groups": len(conflicts), "first": conflicts[:_LISTED]},
        "near_duplicates": None,
        "telling": telling_columns(index, labels, extra),
        "quarantined_by_rule": dict(quarantined),
    }
