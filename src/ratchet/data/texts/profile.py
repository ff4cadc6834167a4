"""Profile of a packed set of texts."""

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from ratchet.data.checks import exact_duplicates
from ratchet.data.checks.leakage import determining_columns, revealing_columns
from ratchet.data.checks.near_texts import near_pairs
from ratchet.data.profile import bins
from ratchet.data.reading.pixels import QUANTILES
from ratchet.data.split import SPLITS
from ratchet.data.tables.targets import Labelling

__all__ = ["text_profile"]

_LISTED = 100
_BEGINNING = 200  # characters of a text
_NOTABLE = 0.5  # share of the variance of a number that a column alone explains


def text_profile(
    index: pl.DataFrame, *, labels: Labelling, train: slice, quarantined: Mapping[str, int], extra: Sequence[str]
) -> dict[str, object]:
    """Return the content of profile.json.

    Args:
        index: the packed rows: split, label, class, text, characters, words, normal (digest of the normalised text).
        labels: the targets of the same rows.
        train: the training rows.
        quarantined: number of quarantined samples, by rule.
        extra: columns of the index that come from the source.
    """
    classes = labels.names if labels.problem == "classification" else ()
    counted = {(name, label): n for name, label, n in index.group_by("split", "class").len().rows()}
    conflicts = exact_duplicates.label_conflicts(index.with_columns(pixels="normal")) if classes else []
    known = index[train]
    copies = index.height - index.select("split", "normal").n_unique()
    return {
        "rows": {name: int((index["split"] == name).sum()) for name in SPLITS},
        "problem": {"chosen": labels.problem, "why": labels.why, "notes": list(labels.notes)},
        "classes": {name: {label: counted.get((name, label), 0) for label in classes} for name in SPLITS},
        "targets": {} if classes else _targets(labels, train),
        "texts": {
            "characters, median": _median(known["characters"]), "characters, longest": known["characters"].max(),
            "words, median": _median(known["words"]), "words, longest": known["words"].max(),
            "copies within splits": copies, "copies with different labels": len(conflicts),
        },
        "lengths": {name: _quantiles(known[name]) for name in ("characters", "words")},
        "copies_within_splits": copies,
        "label_conflicts": {"groups": len(conflicts), "first": conflicts[:_LISTED]},
        "near_duplicates": _near_duplicates(near_pairs(index)),
        "telling": _leaks(index, labels, extra),
        "quarantined_by_rule": dict(quarantined),
        "contract": {
            "request": {"text": [{"rule": name, "check": "text"} for name in ("empty-text", "nul-character")]},
            "drift": {name: bins(known[name]) for name in ("characters", "words", *(["class"] if classes else []))},
        },
    }  # fmt: skip


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


def _leaks(index: pl.DataFrame, labels: Labelling, columns: Sequence[str]) -> dict[str, object]:
    """Return the constant columns, and those that predict the target without the text."""
    if labels.problem == "classification":
        return revealing_columns(index, extra=columns, built_in=())
    values = labels.values.reshape(index.height, -1)[:, 0]
    rows = index.select("split", *columns).with_columns(label=pl.Series(values).cast(pl.Float64))
    constant = [name for name in columns if index[name].n_unique() == 1]
    return {"constant": constant, "class": determining_columns(rows, columns=columns, least=_NOTABLE)}


def _targets(labels: Labelling, train: slice) -> dict[str, dict[str, float]]:
    """Return the share of each label, or statistics of each number, in the training rows."""
    values = labels.values[train].astype(np.float64)
    if labels.problem == "multi-label":
        return {name: {"share": float(share)} for name, share in zip(labels.names, values.mean(axis=0), strict=True)}
    statistics = {
        "mean": values.mean(axis=0), "std": values.std(axis=0), "min": values.min(axis=0),
        "median": np.median(values, axis=0), "max": values.max(axis=0),
    }  # fmt: skip
    return {
        name: {key: float(numbers[place]) for key, numbers in statistics.items()}
        for place, name in enumerate(labels.names)
    }


def _median(values: pl.Series) -> float:
    return float(np.median(values.to_numpy()))


def _quantiles(values: pl.Series) -> dict[str, float]:
    return {str(q): float(values.quantile(q, "nearest") or 0.0) for q in QUANTILES}
