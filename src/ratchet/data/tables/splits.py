"""The split of each row: as given, by order, by group, or by the digest of the row, in equal shares per class."""

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ratchet.combinations import order_fault
from ratchet.data import split
from ratchet.data.tables.digests import uniform
from ratchet.errors import SettingsError
from ratchet.settings.model import DataSettings

__all__ = ["assigned", "check_order"]


def check_order(settings: DataSettings, *, given: bool, grouped: bool) -> None:
    """Check that data.order_by is the only rule about splits.

    Raises:
        SettingsError: splits are also given, by group, or by folds.
    """
    if settings.order_by == "none":
        return
    if fault := order_fault(settings):
        raise SettingsError(f"params.yaml: {fault}")
    others = {
        f"column {settings.split_column!r} has the splits": given,
        f"column {settings.group_column!r} has groups": grouped,
    }
    for other, there in others.items():
        if there:
            raise SettingsError(
                f"params.yaml: data.order_by: found {settings.order_by}, but {other}; only one of them decides the "
                "splits. Fix: set data.order_by to none, or list the column in data.drop"
            )


def assigned(
    settings: DataSettings, digests: NDArray[np.uint64], *, given: pl.Series | None, groups: pl.Series | None,
    order: pl.Series | None, classes: pl.Series | None,
) -> NDArray[np.int64]:  # fmt: skip
    """Return the split of each row, its place in SPLITS.

    Args:
        settings: fractions and folds.
        digests: of the rows, uint64 (n, 2).
        given: the split of each row in the file; null: none.
        groups: rows of one group share a split; null: none.
        order: rows are sorted by it, and equal values share a split.
        classes: name of each row's class; None: the targets are no classes.
    """
    if order is not None:
        return _ordered(order, settings)
    u = uniform(digests)
    if groups is not None:
        distinct = groups.unique().drop_nulls().sort()
        places = np.array([split.position(f"group {group}") for group in distinct])
        codes = groups.cast(pl.Enum(distinct)).to_physical().cast(pl.Int64).fill_null(-1).to_numpy()
        u = np.where(codes >= 0, places[codes], u) if len(places) else u
    if given is not None and groups is not None:
        given = split.of_groups(given, groups, settings)
    declared = set(given.unique().drop_nulls()) if given is not None else set()
    if classes is not None:
        if given is None:
            u = split.even_positions(u, classes)
        else:
            free = given.is_null() | (given == "train").fill_null(False)
            u[free.to_numpy()] = split.even_positions(u[free.to_numpy()], classes.filter(free))
    drawn = split.drawn(u, settings, declared=declared)
    if given is None:
        return drawn
    kept = given.replace_strict({"train": None, "validation": 1, "test": 2}, return_dtype=pl.Int64)
    return kept.fill_null(pl.Series(drawn)).to_numpy()


def _ordered(order: pl.Series, settings: DataSettings) -> NDArray[np.int64]:
    """Return the splits of sorted rows: the oldest are train, the latest are test."""
    share = (order.rank("min").cast(pl.Float64).to_numpy() - 1) / len(order)
    train = 1 - settings.validation_fraction - settings.test_fraction
    return np.where(share < train, 0, np.where(share < 1 - settings.test_fraction, 1, 2))
