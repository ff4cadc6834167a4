"""Ingest of texts: read, check, split and pack them. All texts are in memory at once.

Two texts are duplicates if they are equal in the Unicode form NFKC, in lower case, with each run of spaces as one. The
split depends on a hash of that form, so duplicates always share a split.
"""

import hashlib
from pathlib import Path

import numpy as np
import polars as pl

from ratchet import files
from ratchet.data import overrides, pack, quarantine, sample_table
from ratchet.data.checks.near_texts import near_pairs
from ratchet.data.manifest import Manifest, Shard
from ratchet.data.packed_set import IngestTask
from ratchet.data.profile import contract, quantiles
from ratchet.data.sample_rules import must
from ratchet.data.sample_table import LabelledSamples
from ratchet.data.texts.samples import read_samples
from ratchet.kinds import TextInput
from ratchet.settings.model import DataSettings

__all__ = ["ingest_texts", "normalised"]

CHOSEN_BY = {"kind": ("text",)}

_LISTED = 100  # near-duplicates
_BEGINNING = 200  # characters of a text


def ingest_texts(task: IngestTask) -> Manifest:
    """Ingest texts with labels; see `ratchet.data.ingest`."""
    source = read_samples(task.settings, root=task.root, report=task.report, sample=task.sample)
    task.say_ignored(source.ignored)
    samples = sample_table.assigned(source.table)
    broken = _broken(samples, source, task.settings)
    bad, used = overrides.apply(pl.concat([source.refused, broken]), task.released)
    good = _described(quarantine.without(samples, bad))
    packed = sample_table.packed_set(task, good, bad, source, used=used, own=("packed", "characters", "words"))
    texts = packed.index["text"]
    with files.draft_directory(task.packed) as draft:
        return packed.write(
            draft,
            arrays=lambda folder, part: _write_texts(folder, texts[part]),
            describe=lambda: (TextInput(), sample_table.common_profile(packed, source) | _text_profile(packed.index)),
        )


def normalised(texts: pl.Expr) -> pl.Expr:
    """Return the form of texts in which duplicates are equal."""
    return texts.str.normalize("NFKC").str.to_lowercase().str.replace_all(r"\s+", " ").str.strip_chars()


def _broken(samples: pl.DataFrame, source: LabelledSamples, settings: DataSettings) -> pl.DataFrame:
    """Return the quarantine rows of samples that break a rule."""
    rules = {
        "filled": (pl.col("text").str.contains(r"[^\s\p{C}]").fill_null(False), must("empty-text")),
        "clean": (~pl.col("text").str.contains("\0", literal=True), must("nul-character")),
    }
    return sample_table.broken(samples, source, settings, further=rules, value=_value, personal=("text",))


def _value(rule: str) -> pl.Expr | None:
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
    return None


def _described(good: pl.DataFrame) -> pl.DataFrame:
    """Add the digests of the texts and of their normalised forms, and their lengths."""
    forms = {"packed": good["text"], "normal": good.select(normalised(pl.col("text"))).to_series()}
    digests = {name: [hashlib.sha256(text.encode()).hexdigest() for text in texts] for name, texts in forms.items()}
    return good.with_columns(
        *(pl.Series(name, values, dtype=pl.String) for name, values in digests.items()),
        characters=pl.col("text").str.len_chars().cast(pl.Int64),
        words=pl.col("text").str.count_matches(r"\S+").cast(pl.Int64),
    )


def _write_texts(folder: Path, values: pl.Series) -> dict[str, tuple[Shard, ...]]:
    """Write the texts of a split."""
    texts = [text.encode() for text in values]
    starts = np.zeros(len(texts) + 1, np.int64)
    np.cumsum([len(text) for text in texts], out=starts[1:])
    arrays: dict[str, tuple[Shard, ...]] = {}
    for name, array in (("text", np.frombuffer(b"".join(texts), np.uint8)), ("starts", starts)):
        file = pack.write_array(folder, name, array)
        arrays[name] = (Shard(file.file, len(array), file.sha256),)
    return arrays


def _text_profile(index: pl.DataFrame) -> dict[str, object]:
    """Return what the profile has of texts alone.

    `index` has the packed rows: split, label (null if it is no class), class, characters, words, normal.
    """
    known = index.filter(pl.col("split") == "train")
    watched = ("characters", "words", *(["class"] if known["label"].count() else []))
    return {
        "texts": {
            "characters, median": _median(known["characters"]),
            "characters, longest": known["characters"].max(),
            "words, median": _median(known["words"]),
            "words, longest": known["words"].max(),
            "copies within splits": index.height - index.select("split", "normal").n_unique(),
        },
        "lengths": {name: quantiles(known[name]) for name in ("characters", "words")},
        "near_duplicates": _near_duplicates(near_pairs(index)),
        **contract(
            {"text": [{"rule": name, "check": "text"} for name in ("empty-text", "nul-character")]},
            known.select(watched),
        ),
    }


def _near_duplicates(pairs: pl.DataFrame) -> dict[str, object]:
    """Return the number of pairs, and the first of them with the beginnings of their texts."""
    across = pl.col("one_split") != pl.col("other_split")
    shown = {f"{part}s": pl.concat_list(f"one_{part}", f"other_{part}") for part in ("id", "split", "text")}
    shown["classes"] = pl.concat_list("one_class", "other_class")
    first = pairs.head(_LISTED).with_columns(pl.col("one_text", "other_text").str.slice(0, _BEGINNING))
    return {
        "pairs": pairs.height,
        "across_splits": pairs.filter(across).height,
        "first": first.select("share", **shown).to_dicts(),
    }


def _median(values: pl.Series) -> float:
    return float(np.median(values.to_numpy()))
