"""Columns of a table with another role than a feature."""

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ratchet.data.tables.columns import TypedColumn

__all__ = ["SpecialColumns"]


@dataclass(frozen=True)
class SpecialColumns:
    """Columns with another role than a feature, in all rows.

    Attributes:
        given: the split of each row in the file; null: none.
        groups: rows of one group share a split.
        order: numbers or dates by which rows are sorted.
        gap: least distance between two splits, in the units of `order`.
        columns: these columns as they are listed in the profile.
    """

    given: pl.Series | None = None
    groups: pl.Series | None = None
    order: pl.Series | None = None
    columns: tuple[TypedColumn, ...] = ()
    gap: float = 0.0

    def take(self, places: NDArray[np.int64]) -> "SpecialColumns":
        """Return the rows at these places."""
        given, groups, order = (
            values if values is None else values[places] for values in (self.given, self.groups, self.order)
        )
        columns = tuple(column.take(places) for column in self.columns)
        return SpecialColumns(given, groups, order, columns, self.gap)
