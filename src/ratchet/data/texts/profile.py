"""Profile of a packed set of texts."""

import numpy as np
import polars as pl

from ratchet.data.profile import bins
from ratchet.data.reading.pixels import QUANTILES

__all__ = ["text_profile"]


def text_profile(index: pl.DataFrame, *, classes: bool) -> dict[str, object]:
    """Return what profile.json has of texts alone.

    Args:
        index: the packed rows: split, class, characters, words, normal (digest of the normalised text).
        classes: whether the targets are classes.
    """
    known = index.filter(pl.col("split") == "train")
    return {
        "texts": {
            "characters, median": _median(known["characters"]), "characters, longest": known["characters"].max(),
            "words, median": _median(known["words"]), "words, longest": known["words"].max(),
            "copies within splits": index.height - index.select("split", "normal").n_unique(),
        },
        "lengths": {name: _quantiles(known[name]) for name in ("characters", "words")},
        "contract": {
            "request": {"text": [{"rule": name, "check": "text"} for name in ("empty-text", "nul-character")]},
            "drift": {name: bins(known[name]) for name in ("characters", "words", *(["class"] if classes else []))},
        },
    }  # fmt: skip


def _median(values: pl.Series) -> float:
    return float(np.median(values.to_numpy()))


def _quantiles(values: pl.Series) -> dict[str, float]:
    return {str(q): float(values.quantile(q, "nearest") or 0.0) for q in QUANTILES}
