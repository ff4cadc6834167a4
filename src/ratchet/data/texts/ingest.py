"""Ingest of texts: read, check, split and pack them. All texts are in memory at once.

Two texts are duplicates if they are equal in the Unicode form NFKC, in lower case, with each run of spaces as one. The
split depends on a hash of that form, so duplicates always share a split.
"""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pandera import polars as pa

from ratchet import files
from ratchet.data import overrides, pack, quarantine, set_rules, split
from ratchet.data.checks import exact_duplicates
from ratchet.data.manifest import FORMAT, Manifest, Shard, SplitFiles
from ratchet.data.privacy import looks_personal
from ratchet.data.refusal_reasons import REASONS
from ratchet.data.sample_rules import failures, must
from ratchet.data.sources.image_folder import SPLIT_FOLDERS
from ratchet.data.tables.targets import Labelling
from ratchet.data.texts.profile import text_profile
from ratchet.data.texts.samples import read_samples
from ratchet.data.texts.table import TextSamples
from ratchet.kinds import TextInput
from ratchet.settings.model import DataSettings

__all__ = ["ingest_texts", "normalised"]

Report = Callable[[int, int], None]
Targets = NDArray[np.int64] | NDArray[np.float32]


def ingest_texts(
    settings: DataSettings, *, draft: Path, packed: Path, table: Path, root: Path, report: Report, sample: bool = False,
    released: pl.DataFrame | None = None,
) -> Manifest:  # fmt: skip
    """Fill the folder `draft`, which becomes `packed`, and the quarantine table. See `ratchet.data.ingest`.

    `released`: table of the samples released by hand.

    Raises:
        SettingsError: a setting names no column, or settings contradict each other.
        DataError: the source has no texts with labels, too many are bad, or the whole set breaks a rule.
    """
    source = read_samples(settings, root=root, report=report, sample=sample)
    meant = pl.col("split").str.to_lowercase().replace_strict(SPLIT_FOLDERS, default=None, return_dtype=pl.String)
    samples = source.table.with_columns(assigned=meant, place=pl.int_range(pl.len()))
    released = overrides.read(None) if released is None else released
    bad, used = overrides.apply(pl.concat([source.refused, _broken(samples, source, settings)]), released)
    index = _index(quarantine.without(samples, bad), source.labels, settings)
    duplicates = exact_duplicates.cross_split_duplicates(index.with_columns(pixels="normal"))
    bad, index = pl.concat([bad, duplicates]), quarantine.without(index, duplicates)
    quarantine.write(table, bad)  # even if too much is bad, because the table has the reasons
    total = samples.height + source.refused.height
    set_rules.check_bad_fraction(bad, total=total, limit=settings.max_bad_fraction, table=table)
    classes = source.labels.names if source.labels.problem == "classification" else ()
    set_rules.check_index(index.with_columns(pixels="packed"), settings, classes=classes, table=table)
    notes = {"source": settings.path, "released": tuple(used.to_dicts())}
    return _pack(draft, index, bad, source, notes)


def normalised(texts: pl.Expr) -> pl.Expr:
    """Return the form of texts in which duplicates are equal."""
    return texts.str.normalize("NFKC").str.to_lowercase().str.replace_all(r"\s+", " ").str.strip_chars()


def _broken(samples: pl.DataFrame, source: TextSamples, settings: DataSettings) -> pl.DataFrame:
    """Return the quarantine rows of samples that break a rule."""
    named = samples.with_columns(source="id")
    refused = [
        quarantine.table(rows.select("row", "content", "source", value="problem"), str(rule))
        for (rule,), rows in named.drop_nulls("rule").sort("rule", "row").group_by("rule", maintain_order=True)
    ]
    shown = named.with_columns(value=source.labels.shown.cast(pl.String).fill_null("")).select(
        "row", "content", "source", "value"
    )
    refused += [quarantine.table(shown[places], rule) for rule, places in source.labels.faults.items() if len(places)]
    answers = named.filter(pl.col("rule").is_null()).with_columns(
        filled=pl.col("text").str.contains(r"[^\s\p{C}]").fill_null(False),
        clean=~pl.col("text").str.contains("\0", literal=True),
        divided=pl.col("assigned").is_not_null() | pl.col("split").is_null(),
    )
    texts = [name for name in ("text", *source.extra) if samples[name].dtype == pl.String]
    texts = texts if settings.refuse_personal else []
    answers = answers.with_columns(looks_personal(answers[name]).alias(f"personal {name}") for name in texts)
    rules = {
        "filled": must("empty-text"), "clean": must("nul-character"), "divided": must("unknown-split"),
        **{f"personal {name}": must("personal-data", be=False) for name in texts},
    }  # fmt: skip
    columns = {name: pa.Column(pl.Boolean, check, nullable=True) for name, check in rules.items()}
    return pl.concat([*refused, failures(answers, columns, _value)])


def _value(rule: str, column: str) -> pl.Expr | None:
    """Return the value that breaks a rule."""
    match rule:
        case "empty-text":
            length = pl.col("text").str.len_chars()
            return (
                pl.when(length > 0).then(pl.format("{} characters, none visible", length)).otherwise(pl.lit("no text"))
            )
        case "nul-character":
            before = pl.col("text").str.split("\0").list.first().str.len_chars()
            return pl.format("U+0000 as character {}", before + 1)
        case "personal-data":
            return pl.lit(REASONS[rule].value.format(column=column.removeprefix("personal ")))
    return None


def _index(good: pl.DataFrame, labels: Labelling, settings: DataSettings) -> pl.DataFrame:
    """Return one row per good sample with its split: split by split, each in the order of ids."""
    forms = {"packed": good["text"], "normal": good.select(normalised(pl.col("text"))).to_series()}
    digests = {name: [hashlib.sha256(text.encode()).hexdigest() for text in texts] for name, texts in forms.items()}
    index = good.with_columns(pl.Series(name, values, dtype=pl.String) for name, values in digests.items())
    identity = pl.when(pl.col("group").is_null()).then("normal").otherwise("group " + pl.col("group"))
    assigned = split.assign(
        index.select(identity).to_series(), index["assigned"], declared=set(good["assigned"].drop_nulls()),
        validation_fraction=settings.validation_fraction, test_fraction=settings.test_fraction,
        folds=settings.folds, fold=settings.fold,
    )  # fmt: skip
    places = index["place"].to_numpy()
    is_class = labels.problem == "classification"
    index = index.with_columns(
        pl.Series("split", assigned, dtype=pl.String),
        pl.Series("label", labels.values[places] if is_class else [None] * len(places), dtype=pl.Int64),
        labels.shown[places].cast(pl.String).alias("class"),
        source=pl.col("id"),
        characters=pl.col("text").str.len_chars().cast(pl.Int64),
        words=pl.col("text").str.count_matches(r"\S+").cast(pl.Int64),
    ).sort("id")
    return pl.concat([index.filter(pl.col("split") == name) for name in split.SPLITS])


def _pack(draft: Path, index: pl.DataFrame, bad: pl.DataFrame, source: TextSamples, notes: dict[str, Any]) -> Manifest:
    """Write the arrays, the index, the profile and the manifest."""
    kept = index.drop("place", *([] if index["group"].count() else ["group"])).with_columns(pixels="packed")
    pack.write_index(draft, kept, extra=["packed", "characters", "words", *source.extra])
    by_rule = quarantine.by_rule(bad)
    values = source.labels.values[index["place"].to_numpy()]
    train = slice(0, int((index["split"] == "train").sum()))
    labels = replace(source.labels, values=values, shown=index["class"], faults={})
    extra = [*source.extra, *(["group"] if "group" in kept.columns else [])]
    description = text_profile(index, labels=labels, train=train, quarantined=by_rule, extra=extra)
    files.write_json(draft / "profile.json", description)
    notes |= {"quarantined": quarantine.samples(bad), "quarantined_by_rule": by_rule}
    splits = {}
    for name in split.SPLITS:
        chosen = (index["split"] == name).to_numpy()
        splits[name] = _pack_split(draft / name, index.filter(chosen), values[chosen])
    manifest = Manifest.sealed(
        notes, format=FORMAT, name=source.name, input=TextInput(), target=labels.target(train), splits=splits
    )
    manifest.write(draft)
    return manifest


def _pack_split(folder: Path, index: pl.DataFrame, values: Targets) -> SplitFiles:
    """Write the arrays of a split."""
    folder.mkdir()
    texts = [text.encode() for text in index["text"]]
    starts = np.zeros(len(texts) + 1, np.int64)
    np.cumsum([len(text) for text in texts], out=starts[1:])
    arrays = {}
    for name, array in (("text", np.frombuffer(b"".join(texts), np.uint8)), ("starts", starts)):
        file = pack.write_array(folder, name, array)
        arrays[name] = (Shard(file.file, len(array), file.sha256),)
    targets = pack.write_array(folder, "targets", values)
    return SplitFiles(index.height, arrays, targets, pack.write_array(folder, "keys", split.keys(index["id"])))
