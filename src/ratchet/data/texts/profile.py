"""Profile of a packed set of texts."""

import numpy as np
import polars as pl

from ratchet.data.checks.near_texts import near_pairs
from ratchet.data.profile import contract, quantiles

__all__ = ["text_profile"]

_LISTED = 100
_BEGINNING = 200  # characters of a text


def text_profile(index: pl.DataFrame) -> dict[str, object]:
    """Return what the profile has of texts alone.

    `index` has the packed rows: split, label (null if it is no class), class, characters, words, normal.
    """
    known = index.filter(pl.col("split") == "train")
    watched = ("characters", "words", *(["class"] if known["label"].count() else []))
    return {
        "texts": {
            "characters, median": _median(known["characters"]), "characters, longest": known["characters"].max(),
            "words, median": _median(known["words"]), "words, longest": known["words"].max(),
            "copies within splits": index.height - index.select("split", "normal").n_unique(),
        },
        "lengths": {name: quantiles(known[name]) for name in ("characters", "words")},
        "near_duplicates": _near_duplicates(near_pairs(index)),
        **contract(
            {"text": [{"rule": name, "check": "text"} for name in ("empty-text", "nul-character")]},
            known.select(watched),
        ),
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


def _median(values: pl.Series) -> float:
    return float(np.median(values.to_numpy()))
