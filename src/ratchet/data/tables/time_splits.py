"""Splits in the order of time, with a gap between them, and with groups that stay whole."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ratchet.data.split import SPLITS
from ratchet.data.tables.columns import TypedColumn
from ratchet.errors import DataError, SettingsError
from ratchet.settings.model import DataSettings

__all__ = ["Assigned", "gap_in_units", "in_order"]

_SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
_LEFT_OUT = -1


@dataclass(frozen=True)
class Assigned:
    """The split of each row.

    Attributes:
        places: int64 (rows,), places in SPLITS; -1: the row is left out.
        left_out: number of rows by reason, then by the split that they are left out of.
        notes: the same as text.
    """

    places: NDArray[np.int64]
    left_out: dict[str, dict[str, int]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def kept(self) -> NDArray[np.bool_]:
        """True for each row that is in a split, (rows,)."""
        return np.not_equal(self.places, _LEFT_OUT)


def gap_in_units(settings: DataSettings, order: TypedColumn) -> float:
    """Return data.gap in the units of the column of data.order_by: seconds for dates.

    Raises:
        SettingsError: a length of time for numbers, or a plain number for dates.
    """
    gap, dates = settings.gap, order.type == "datetime"
    if dates == isinstance(gap, str) or not gap:
        return _seconds(gap)
    values, allowed, fix = "numbers", "a number in its units", "data.gap=NUMBER"
    if dates:
        values, allowed = "dates", "a length of time, such as 30min, 12h or 7d"
        fix = f"data.gap={_shown(gap)}d"
    raise SettingsError(
        f"params.yaml: data.gap: found {_shown(gap)}, and column {order.name!r} of data.order_by has {values}. "
        f"Allowed: {allowed}. Fix: `ratchet set {fix}`"
    )


def _shown(gap: float | str) -> str:
    return gap if isinstance(gap, str) else f"{gap:g}"


def _seconds(gap: float | str) -> float:
    if not isinstance(gap, str):
        return gap
    number = gap.rstrip("".join(_SECONDS))
    return float(number) * _SECONDS[gap.removeprefix(number)]


def in_order(order: pl.Series, settings: DataSettings, *, groups: pl.Series | None, gap: float) -> Assigned:
    """Return the splits of sorted rows: the oldest are train, the latest are test, and equal values share a split.

    With folds, the rows before test are cut into folds + 1 blocks. A fold trains on the blocks before its own.

    Args:
        order: numbers by which rows are sorted, without nulls.
        groups: no group is in two splits: of one that has rows in several, those of the latest stay; null: no group.
        gap: least distance between the last row of a split and the first row of the next one.

    Raises:
        DataError: the gap or the groups leave a split without rows.
    """
    places = _by_shares(order, settings)
    left_out, notes = dict[str, dict[str, int]](), list[str]()
    if later := int((places == _LEFT_OUT).sum()):
        left_out["fold"] = {"later": later}
        notes.append(f"{later:,} rows are left out: they are later than the validation rows of fold {settings.fold}")
    if gap:
        apart = _with_gap(order.to_numpy(), places, gap)
        if lost := _lost(places, apart, partial(_too_wide, order.to_numpy(), places, settings)):
            left_out["gap"] = lost
            notes.append(
                f"{_rows(lost)} are left out: less than {_shown(settings.gap)} before the next split (data.gap)"
            )
        places = apart
    if groups is not None:
        whole = _with_whole_groups(groups, places)
        if lost := _lost(places, whole, partial(_all_cross, groups, places, settings)):
            left_out["group"] = lost
            crossing = groups.filter(pl.Series(places != whole)).n_unique()
            notes.append(
                f"{_rows(lost)} of {crossing:,} group{'s' * (crossing > 1)} are left out: the same value of "
                f"{settings.group_column!r} is in a later split (data.group_column)"
            )
        places = whole
    return Assigned(places, left_out, tuple(notes))


def _by_shares(order: pl.Series, settings: DataSettings) -> NDArray[np.int64]:
    share = (order.rank("min").cast(pl.Float64).to_numpy() - 1) / len(order)
    before_test = 1 - settings.test_fraction
    if not settings.folds:
        train = 1 - settings.validation_fraction - settings.test_fraction
        return np.where(share < train, 0, np.where(share < before_test, 1, 2))
    block = np.floor(share / before_test * (settings.folds + 1)) - settings.fold
    return np.where(share >= before_test, 2, np.where(block < 1, 0, np.where(block < 2, 1, _LEFT_OUT)))


def _with_gap(values: NDArray[np.float64], places: NDArray[np.int64], gap: float) -> NDArray[np.int64]:
    """Leave out the rows of a split that are too close to the first row of a later split."""
    result = places.copy()
    for place in (0, 1):
        if (later := values[places > place]).size:
            result[(places == place) & (values > later.min() - gap)] = _LEFT_OUT
    return result


def _with_whole_groups(groups: pl.Series, places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Leave out the rows of each group that has rows in a later split."""
    rows = pl.DataFrame({"group": groups, "place": places})
    last = rows.select(pl.when(pl.col("group").is_null()).then("place").otherwise(pl.col("place").max().over("group")))
    return np.where(last.to_series().to_numpy() > places, _LEFT_OUT, places)


def _lost(before: NDArray[np.int64], after: NDArray[np.int64], fault: Callable[[str], str]) -> dict[str, int]:
    """Return how many rows each split has lost.

    Raises:
        DataError: `fault` of the name of a split that has lost all its rows.
    """
    counts = {}
    for place, name in enumerate(SPLITS):
        is_lost = (before == place) & (after != place)
        if is_lost.any() and place not in after:
            raise DataError(fault(name))
        counts[name] = int(is_lost.sum())
    return {name: count for name, count in counts.items() if count}


def _rows(lost: dict[str, int]) -> str:
    return " and ".join(f"{count:,} {name}" for name, count in lost.items()) + " rows"


def _too_wide(values: NDArray[np.float64], places: NDArray[np.int64], settings: DataSettings, name: str) -> str:
    starts = [float(values[places == place].min()) for place in range(len(SPLITS)) if place in places]
    widest = min(late - early for early, late in pairwise(starts))
    most, quarter = (_as_gap(settings, distance) for distance in (widest, widest / 4))
    return (
        f"data.gap: found {_shown(settings.gap)}, which leaves no {name} rows. Allowed: at most {most}, the shortest "
        f"distance between the first rows of two splits. Fix: `ratchet set data.gap={quarter}`"
    )


def _as_gap(settings: DataSettings, distance: float) -> str:
    """Return a distance, or a little less, as data.gap is written."""
    if not isinstance(settings.gap, str):
        return f"{0.994 * distance:.3g}"  # three digits round up by at most 0.5 %
    unit = next((unit for unit in ("d", "h", "min") if distance >= _SECONDS[unit]), "s")
    return f"{int(distance / _SECONDS[unit])}{unit}"


def _all_cross(groups: pl.Series, places: NDArray[np.int64], settings: DataSettings, name: str) -> str:
    usual, column = type(settings).model_fields["group_column"].default, settings.group_column
    count = groups.filter(pl.Series(places == SPLITS.index(name))).n_unique()
    alone = "list the column in data.drop" if column == usual else f"`ratchet set data.group_column={usual}`"
    no_gap = " data.gap=0" if settings.gap else ""
    return (
        f"data.group_column: all {count:,} groups of column {column!r} with {name} rows have rows in a later split, so "
        f"no {name} rows are left. Allowed with data.order_by {settings.order_by}: groups that end before the next "
        f"split begins. Fix: `ratchet set data.order_by=none{no_gap}` keeps groups whole without the order of time; "
        f"for the order alone, {alone}"
    )
