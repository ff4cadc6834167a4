"""Ingest of texts: read, check, split and pack them. All texts are in memory at once.

Two texts are duplicates if they are equal in the Unicode form NFKC, in lower case, with each run of spaces as one. The
split depends on a hash of that form, so duplicates always share a split.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl

from ratchet.data import labelled, overrides, pack, quarantine
from ratchet.data.labelled import LabelledSamples
from ratchet.data.manifest import Manifest, Shard
from ratchet.data.sample_rules import must
from ratchet.data.system_files import Ignored
from ratchet.data.texts.profile import text_profile
from ratchet.data.texts.samples import read_samples
from ratchet.kinds import TextInput
from ratchet.settings.model import DataSettings

__all__ = ["ingest_texts", "normalised"]

Report = Callable[[int, int], None]
_OWN = ("packed", "characters", "words")  # columns of the index


def ingest_texts(
    settings: DataSettings, *, draft: Path, packed: Path, table: Path, root: Path, report: Report, sample: bool = False,
    released: pl.DataFrame | None = None, say_ignored: Callable[[Ignored], None] = lambda _: None,
) -> Manifest:  # fmt: skip
    """Fill the folder `draft`, which becomes `packed`, and the quarantine table. See `ratchet.data.ingest`.

    `released`: table of the samples released by hand. `say_ignored`: called with the files that are no samples.

    Raises:
        SettingsError: a setting names no column, or settings contradict each other.
        DataError: the source has no texts with labels, too many are bad, or the whole set breaks a rule.
    """
    source = read_samples(settings, root=root, report=report, sample=sample)
    say_ignored(source.ignored)
    samples = labelled.assigned(source.table)
    released = overrides.read(None) if released is None else released
    bad, used = overrides.apply(pl.concat([source.refused, _broken(samples, source, settings)]), released)
    good = _described(quarantine.without(samples, bad))
    total = samples.height + source.refused.height
    index, bad = labelled.checked_index(good, bad, source, settings, table=table, total=total)
    profile = text_profile(index, classes=bool(source.classes))
    notes = {"source": settings.path, "released": tuple(used.to_dicts())}
    return labelled.pack_samples(
        draft, index, bad, source, input=TextInput(), profile=profile, own=_OWN, write=_write_texts, notes=notes
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
    return labelled.broken(samples, source, settings, further=rules, value=_value, personal=("text",))


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


def _write_texts(folder: Path, index: pl.DataFrame) -> dict[str, tuple[Shard, ...]]:
    """Write the texts of a split."""
    texts = [text.encode() for text in index["text"]]
    starts = np.zeros(len(texts) + 1, np.int64)
    np.cumsum([len(text) for text in texts], out=starts[1:])
    arrays: dict[str, tuple[Shard, ...]] = {}
    for name, array in (("text", np.frombuffer(b"".join(texts), np.uint8)), ("starts", starts)):
        file = pack.write_array(folder, name, array)
        arrays[name] = (Shard(file.file, len(array), file.sha256),)
    return arrays
