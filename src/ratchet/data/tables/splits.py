"""The split of each row: as given, by order, by group, or by the digest of the row, in equal shares per class."""

from collections.abc import Collection

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ratchet.combinations import gap_fault
from ratchet.data import split
from ratchet.data.tables.digests import uniform
from ratchet.data.tables.special_columns import SpecialColumns
from ratchet.data.tables.time_splits import Assigned, in_order
from ratchet.errors import SettingsError
from ratchet.settings.model import DataSettings

__all__ = ["assigned", "check_order"]


def check_order(settings: DataSettings, *, given: bool) -> None:
    """Check that the file gives no splits beside data.order_by, and that data.gap has an order.

    Raises:
        SettingsError: both decide the splits, or there is a gap without an order.
    """
    if fault := gap_fault(settings):
        raise SettingsError(f"params.yaml: {fault}")
    if settings.order_by != "none" and given:
        raise SettingsError(
            f"params.yaml: data.order_by: found {settings.order_by}, but column {settings.split_column!r} has the "
            "splits; only one of them decides the splits. Fix: set data.order_by to none, or list the column in "
            "data.drop"
        )


def assigned(
    settings: DataSettings, digests: NDArray[np.uint64], special: SpecialColumns, *, classes: pl.Series | None
) -> Assigned:
    """Return the split of each row.

    Args:
        settings: fractions and folds.
        digests: of the rows, uint64 (n, 2).
        special: the given splits, the groups and the order of the rows.
        classes: name of each row's class; None: the targets are no classes.

    Raises:
        DataError: groups or the gap leave a split without rows, or a group is in several given splits.
    """
    given, groups = special.given, special.groups
    if special.order is not None:
        return in_order(special.order, settings, groups=groups, gap=special.gap)
    u = uniform(digests)
    if groups is not None:
        distinct = groups.unique().drop_nulls().sort()
        places = np.array([split.position(f"group {group}") for group in distinct])
        codes = groups.cast(pl.Enum(distinct)).to_physical().cast(pl.Int64).fill_null(-1).to_numpy()
        u = np.where(codes >= 0, places[codes], u) if len(places) else u
    declared: Collection[split.SplitName] = ()
    if given is not None:
        given, declared = split.for_folds(given, settings, declared=given.unique().drop_nulls().to_list())
    if given is not None and groups is not None:
        given = split.of_groups(given, groups, settings)
    if classes is not None:
        if given is None:
            u = split.even_positions(u, classes)
        else:
            free = given.is_null() | (given == "train").fill_null(False)
            u[free.to_numpy()] = split.even_positions(u[free.to_numpy()], classes.filter(free))
    drawn = split.drawn(u, settings, declared=declared)
    if given is None:
        return Assigned(drawn)
    kept = given.replace_strict({"train": None, "validation": 1, "test": 2}, return_dtype=pl.Int64)
    return Assigned(kept.fill_null(pl.Series(drawn)).to_numpy())
