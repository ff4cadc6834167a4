"""The data card: one offline page about one version of a data set, what changed since the one before on top."""

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from PIL import Image

from ratchet import files
from ratchet.data.depth import largest
from ratchet.data.difference import Difference
from ratchet.data.manifest import Manifest
from ratchet.data.split import SPLITS
from ratchet.reports.page import Cell, bars, document, figure, folded, pairs, section, table, text

__all__ = ["card"]

_CLASSES = 40  # shown with pictures; the others are in the table
_PICTURES = 13  # of a class
_LISTED = 24
_SMALL = 96  # pixels: smaller pictures are shown with their pixels


@dataclass(frozen=True)
class _Set:
    """A packed set, opened."""

    packed: Path
    manifest: Manifest
    index: pl.DataFrame
    profile: Mapping[str, Any]

    @classmethod
    def open(cls, packed: Path) -> "_Set":
        return cls(
            packed, Manifest.read(packed), pl.read_parquet(packed / "index.parquet"),
            files.read_json(packed / "profile.json"),
        )  # fmt: skip

    def picture(self, split: str, row: int) -> NDArray[np.uint8] | None:
        """A packed picture; None where pictures are not packed."""
        for shard in self.manifest.splits[split].shards:
            if row < shard.rows:
                return np.asarray(np.load(self.packed / shard.file, mmap_mode="r")[row])
            row -= shard.rows
        return None

    def by_id(self, name: str) -> NDArray[np.uint8] | None:
        """The picture of a sample."""
        found = self.index.filter(pl.col("id") == name)
        return None if found.is_empty() else self.picture(found["split"][0], found["row"][0])


def card(packed: Path, quarantine: Path, *, changed: Difference | None) -> str:
    """The page.

    Args:
        packed: a packed set.
        quarantine: the table of what was kept out of it.
        changed: what differs from the version before; None: there was none.
    """
    one, bad = _Set.open(packed), pl.read_parquet(quarantine)
    rows = one.profile["rows"]
    name = one.manifest.name
    about = f"{sum(rows.values()):,} samples of {len(one.manifest.classes):,} classes"
    head = (
        f'<header class="verdict"><p class="over">data card, version {text(one.manifest.digest[:12])}</p>'
        f'<h1>{text(name)}</h1><p class="words">{text(about)}: '
        f"{text(', '.join(f'{count:,} {split}' for split, count in rows.items()))}</p></header>"
    )
    return document(
        f"{name}: data card",
        [head, _changes(changed), _trouble(one, bad), _classes(one), _pictures(one), _values(one)],
    )


def _changes(changed: Difference | None) -> str:
    if changed is None:
        return section("What changed", "<p>Nothing to compare with: this is the first version here.</p>")
    tables = []
    for kind, count in changed.counts().items():
        found: pl.DataFrame = getattr(changed, kind)
        listed = table(found.columns, found.head(_LISTED).rows(), kind="words")
        more = f"<p>... and {count - _LISTED:,} more</p>" if count > _LISTED else ""
        tables.append(folded(f"{count:,} {kind}", listed + more))
    return section("What changed", *tables, note=f"Since the version before: {changed.summary}.")


def _trouble(one: _Set, bad: pl.DataFrame) -> str:
    profile = one.profile
    parts = [f"<p>{text(words)}</p>" for words in _telling(profile["telling"])]
    counts = {name: count for name, count in profile["classes"]["train"].items() if count}
    if counts and max(counts.values()) > 10 * min(counts.values()):
        least, most = min(counts, key=lambda name: counts[name]), max(counts, key=lambda name: counts[name])
        words = (
            f"{most} has {counts[most]:,} training samples and {least} {counts[least]:,}: "
            "training.class_weights: balanced makes up for it"
        )
        parts.append(f"<p>{text(words)}</p>")
    if bad.height:
        counted = {row["rule"]: row["len"] for row in bad.group_by("rule").len().sort("rule").iter_rows(named=True)}
        shown = [
            (row["source"], Cell(_shown(row["thumbnail"])), row["rule"], row["value"], row["hint"])
            for row in bad.head(_LISTED).iter_rows(named=True)
        ]
        listed = table(("sample", "", "rule", "found", "the way out"), shown, kind="words")
        more = (
            f"<p>... and {bad.height - _LISTED:,} more in data/quarantine.parquet</p>" if bad.height > _LISTED else ""
        )
        parts.append(figure("Kept out, by rule", bars(counted)) + listed + more)
    if one.manifest.released:
        released = [(row["source"], row["rule"], row["reason"], row["by"], row["at"]) for row in one.manifest.released]
        listed = table(("sample", "rule", "why", "by", "at"), released, kind="words")
        parts.append(figure("Let in by hand", listed))
    conflicts = profile["label_conflicts"]
    if conflicts["groups"]:
        both = [(", ".join(group["ids"]), ", ".join(group["classes"])) for group in conflicts["first"][:_LISTED]]
        listed = table(("samples with the same pixels", "labelled"), both, kind="words")
        parts.append(figure(f"{conflicts['groups']:,} pictures stand under several labels", listed))
    alike = profile["near_duplicates"]
    if alike and alike["pairs"]:
        drawn = [_pair(one, found) for found in alike["first"][:_LISTED]]
        words = f"Pairs that look the same: {alike['pairs']:,}, in different splits: {alike['across_splits']:,}"
        parts.append(figure(words, f'<div class="errors">{"".join(drawn)}</div>'))
    return section("What to look at", *(parts or ["<p>Nothing was kept out, and nothing looks wrong.</p>"]))


def _telling(found: Mapping[str, Any]) -> list[str]:
    """What is the same for all samples, and what tells the class without a look at the picture."""
    constant = [f"column {name} is the same for all samples: it tells nothing" for name in found["constant"]]
    return constant + [
        f"{one['column']} tells the class of {100 * one['right']:.0f} % of the validation samples by itself, where the "
        f"commonest class would be right for {100 * one['commonest']:.0f} %: a model may learn that in place of what "
        "the pictures show"
        for one in found["class"]
    ]


def _pair(one: _Set, found: Mapping[str, Any]) -> str:
    drawn = "".join(_picture(one.by_id(name)) for name in found["ids"])
    splits = text(" and ".join(dict.fromkeys(found["splits"])))
    if (change := found.get("change", "none")) != "none":
        splits += f" ({text({'turned': 'mirrored or turned'}.get(change, change))})"
    return (
        f'<div><div class="strip two">{drawn}</div><p>{splits}</p><small>{text(", ".join(found["ids"]))}</small></div>'
    )


def _classes(one: _Set) -> str:
    counts = one.profile["classes"]
    rows = [(name, *(counts[split][name] for split in SPLITS)) for name in one.manifest.classes]
    drawn = bars({name: sum(numbers) for name, *numbers in rows}) if len(rows) <= _CLASSES else ""
    return section("Classes", drawn, folded("in each split", table(("class", *SPLITS), rows)))


def _pictures(one: _Set) -> str:
    parts = []
    for name in one.manifest.classes[:_CLASSES]:
        mine = one.index.filter((pl.col("class") == name) & (pl.col("split") == "train"))
        step = max(1, mine.height // _PICTURES)
        chosen = mine[::step].head(_PICTURES).select("split", "row").rows()
        drawn = [_picture(one.picture(split, row)) for split, row in chosen]
        if any(drawn):
            parts.append(figure(name, f'<div class="strip">{"".join(drawn)}</div>'))
    if one.manifest.factory:
        return section("Pictures", "<p>They stay where your Dataset reads them, and are not packed.</p>")
    return section("Pictures", *parts, note="Of each class some training samples, as they are packed.")


def _values(one: _Set) -> str:
    manifest, profile = one.manifest, one.profile
    scaled = {}
    if manifest.depth is not None:
        deep, limit = profile["depth"]["samples"], largest(manifest.depth)
        over = sum(count for bits, count in deep.items() if int(bits) > manifest.depth)
        cut = f"; {over:,} of them hold larger values, which became 255 too" if over else ""
        scaled["16-bit images"] = (
            f"{sum(deep.values()):,}: values 0..{limit:,} ({manifest.depth} bits) became 0..255{cut}; by bits of the "
            f"largest value: {', '.join(f'{bits} bits {count:,}' for bits, count in deep.items())}"
        )
    told = {
        **scaled,
        "packed as": f"{manifest.width} x {manifest.height} pixels, {manifest.channels} channels, {manifest.dtype}",
        "mean of the training pixels": _numbers(manifest.mean),
        "their standard deviation": _numbers(manifest.std),
        "copies within a split": profile["copies_within_splits"],
        **{f"format {name}": count for name, count in profile["formats"].items()},
    }
    spread = {"brightness": profile["brightness"], "contrast": profile["contrast"], **profile["sizes"]}
    columns = list(next(iter(spread.values())))
    rows = [(name, *(values[column] for column in columns)) for name, values in spread.items()]
    return section("Values", pairs(told), figure("Quantiles", table(("", *columns), rows)))


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.1f}" for value in values)


def _picture(pixels: NDArray[np.uint8] | None) -> str:
    if pixels is None or pixels.dtype != np.uint8:
        return ""
    content = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(content, "PNG")
    return _shown(content.getvalue(), small=pixels.shape[0] < _SMALL)


def _shown(content: bytes | None, *, small: bool = True) -> str:
    if not content:
        return ""
    kind = ' class="small"' if small else ""
    return f'<img{kind} alt="" src="data:image/png;base64,{base64.b64encode(content).decode()}">'
