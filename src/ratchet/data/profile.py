"""What a packed set looks like: the reference that later data is compared with."""

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ratchet.data.checks.leakage import telling
from ratchet.data.reading.images import one_below_the_other
from ratchet.data.split import SPLITS

__all__ = ["channel_statistics", "histogram", "packed_pixels", "profile"]

QUANTILES = (0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)
_CONFLICTS_SHOWN = 100
_WATCHED = ("brightness", "contrast", "width", "height", "format", "class")


def histogram(pixels: NDArray[np.uint8]) -> NDArray[np.int64]:
    """How often each value occurs in pictures, uint8 (n, side, side, channels): int64 (channels, 256)."""
    counted = one_below_the_other(pixels).histogram()  # NumPy is slower
    return np.array(counted, np.int64).reshape(-1, 256)


def channel_statistics(histogram: NDArray[np.int64]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, from int64 (channels, 256); a constant channel's deviation is 1.

    Worked out from whole numbers, so equal pixels give equal bits on every machine.
    """
    means, deviations = [], []
    for counts in histogram.tolist():
        number = sum(counts)
        total = sum(value * count for value, count in enumerate(counts))
        squares = sum(value * value * count for value, count in enumerate(counts))
        variance = (number * squares - total * total) / (number * number)
        means.append(total / number)
        deviations.append(variance**0.5 if variance > 0 else 1.0)
    return tuple(means), tuple(deviations)


def packed_pixels(histogram: NDArray[np.int64]) -> dict[str, object]:
    """What a histogram of the training pixels, int64 (channels, 256), says of them."""
    mean, std = channel_statistics(histogram)
    quantiles = [_channel_quantiles(counts) for counts in histogram]
    return {"mean": mean, "std": std, "quantiles": quantiles, "histogram": histogram.tolist()}


def profile(
    index: pl.DataFrame,
    *,
    classes: Sequence[str],
    pixels: Mapping[str, object],
    conflicts: Sequence[Mapping[str, Sequence[str]]],
    quarantined: Mapping[str, int],
    terms: Mapping[str, object],
    own: Sequence[str] = (),
    alike: pl.DataFrame | None = None,
) -> dict[str, object]:
    """Everything that profile.json holds.

    Args:
        index: the packed rows: split, class, width, height, format, brightness, contrast, pixels.
        classes: names, by label.
        pixels: what is known of the training pixels' values.
        conflicts: groups of samples with the same pixels and different labels.
        quarantined: samples by broken rule.
        terms: what the contract asks of a sample alone.
        own: columns that the source has of its own.
        alike: pairs of samples that look the same, `one_` and `other_` `id` and `split`, and the `change` from one to
            the other; None: not looked for.
    """
    counted = {(split, name): n for split, name, n in index.group_by("split", "class").len().rows()}
    per_split = {split: {name: counted.get((split, name), 0) for name in classes} for split in SPLITS}
    train = index.select("split", *_WATCHED).filter(pl.col("split") == "train")
    return {
        "rows": {split: sum(numbers.values()) for split, numbers in per_split.items()},
        "classes": per_split,
        "pixels": {"of": "train", **pixels},
        "brightness": _column_quantiles(train["brightness"]),
        "contrast": _column_quantiles(train["contrast"]),
        "sizes": {"width": _column_quantiles(index["width"]), "height": _column_quantiles(index["height"])},
        "formats": dict(index.group_by("format").len().sort("format").rows()),
        "copies_within_splits": index.height - index.select("split", "pixels").n_unique(),
        "label_conflicts": {"groups": len(conflicts), "first": list(conflicts[:_CONFLICTS_SHOWN])},
        "near_duplicates": _alike(alike),
        "telling": telling(index, own=own),
        "quarantined_by_rule": dict(quarantined),
        "contract": {"request": dict(terms), "drift": {name: _bins(train[name]) for name in _WATCHED}},
    }


def _bins(values: pl.Series) -> dict[str, object]:
    """How a column is cut for comparison with later data, and how many training samples lie in each part.

    Numbers are cut at their deciles, equal ones once: part k holds values from edge k - 1 to below edge k.
    """
    if values.dtype == pl.String:
        return {"values": dict(values.value_counts().sort(values.name).rows())}
    numbers = values.to_numpy().astype(np.float64)
    edges = np.unique(np.quantile(numbers, np.arange(1, 10) / 10, method="nearest"))
    counts = np.bincount(np.searchsorted(edges, numbers, side="right"), minlength=len(edges) + 1)
    return {"edges": edges.tolist(), "counts": counts.tolist()}


def _alike(found: pl.DataFrame | None) -> dict[str, object] | None:
    if found is None:
        return None
    apart = found.filter(pl.col("one_split") != pl.col("other_split"))
    within = found.filter(pl.col("one_split") == pl.col("other_split"))
    first = [
        {
            "ids": [row["one_id"], row["other_id"]],
            "splits": [row["one_split"], row["other_split"]],
            "change": row["change"],
        }
        for row in pl.concat([apart, within]).head(_CONFLICTS_SHOWN).iter_rows(named=True)
    ]
    changes = dict(found.group_by("change").len().sort("change").rows())
    return {"pairs": found.height, "across_splits": apart.height, "changes": changes, "first": first}


def _channel_quantiles(counts: NDArray[np.int64]) -> dict[str, int]:
    reached = np.cumsum(counts)
    return {str(q): int(np.searchsorted(reached, max(1, int(np.ceil(q * reached[-1]))))) for q in QUANTILES}


def _column_quantiles(values: pl.Series) -> dict[str, float]:
    return {str(q): float(values.quantile(q, "nearest") or 0.0) for q in QUANTILES}
