"""Slices of the test images: rows that share a value in a column, and the metrics on them.

Slices may be small and there may be many. So their intervals are Wilson's, which hold for few rows, and a slice counts
as worse than the rest only where that is significant after a correction for the number of slices.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ratchet.errors import SettingsError
from ratchet.evaluation.calibration import calibration_error, reliability
from ratchet.evaluation.intervals import Interval, share_difference, share_interval
from ratchet.evaluation.predictions import Answers
from ratchet.settings.model import EvaluationSettings

__all__ = ["Slice", "rows_by_slice", "slice_columns", "slices", "thirds"]

Values = Sequence[str | None]

_BUILT_IN = ("brightness", "contrast", "side", "format")
_THIRDS = ("low", "middle", "high")
_MOST_VALUES = 50  # different values of a column; with more they are names of rows, not kinds


@dataclass(frozen=True)
class Slice:
    """The test images that have one value in one column."""

    column: str
    value: str
    rows: int
    accuracy: Interval
    gap: Interval  # accuracy here minus accuracy elsewhere; the interval is corrected for the number of slices
    macro_f1: float  # over the classes that occur here among labels or predictions
    log_loss: float
    ece: float

    @property
    def is_worse(self) -> bool:
        """Whether accuracy is significantly lower than on the other images."""
        return self.gap.high < 0.0


def slices(answers: Answers, columns: Mapping[str, Values], settings: EvaluationSettings) -> tuple[Slice, ...]:
    """Return the metrics for each value of each column, column by column and in the order of values.

    `columns` have the value of each row by name; None: the row is in no slice of that column. Slices with fewer rows
    than evaluation.slice_rows are left out, and so are columns with a single value.
    """
    chosen = rows_by_slice(columns, least=settings.slice_rows)
    corrected = 1 - (1 - settings.confidence) / max(1, len(chosen))  # Bonferroni
    right = int(answers.score.sum())
    measured = []
    for name, value, rows in chosen:
        inside = Answers(answers.logits[rows], answers.labels[rows])
        here = (int(inside.score.sum()), inside.rows)
        elsewhere = (right - here[0], answers.rows - inside.rows)
        bins = reliability(inside.confidence, inside.score, bins=settings.calibration_bins)
        part = Slice(
            column=name,
            value=value,
            rows=inside.rows,
            accuracy=share_interval(*here, confidence=settings.confidence),
            gap=share_difference(here, elsewhere, confidence=corrected),
            macro_f1=_macro_f1(inside),
            log_loss=float(inside.losses.mean()),
            ece=calibration_error(bins),
        )
        measured.append(part)
    return tuple(measured)


def rows_by_slice(columns: Mapping[str, Values], *, least: int) -> list[tuple[str, str, NDArray[np.int64]]]:
    """Return column, value and row numbers of each slice that has at least `least` rows, but not all."""
    chosen = []
    for name, values in columns.items():
        texts = np.array(["" if value is None else f"={value}" for value in values], dtype=object)
        known = sorted({value for value in texts if value})
        if 2 <= len(known) <= _MOST_VALUES:
            chosen += [(name, value[1:], np.flatnonzero(texts == value)) for value in known]
    return [(name, value, rows) for name, value, rows in chosen if least <= len(rows) < len(columns[name])]


def slice_columns(packed: Path, settings: EvaluationSettings) -> dict[str, list[str | None]]:
    """Return the columns that evaluation.slices selects, with a value for each test row; numbers become thirds.

    Args:
        packed: folder data/packed.
        settings: of the evaluation.

    Raises:
        SettingsError: evaluation.slices names a column that the index does not have.
    """
    import polars

    from ratchet.data.pack import extra_columns

    index = polars.read_parquet(packed / "index.parquet").with_columns(
        side=polars.min_horizontal("width", "height").cast(polars.Float64)
    )
    allowed = [*_BUILT_IN, *extra_columns(index.drop("side"))]
    wanted = allowed if settings.slices == "auto" else settings.slices
    unknown = [name for name in wanted if name not in allowed]
    if unknown:
        raise SettingsError(
            f"params.yaml: evaluation.slices: found {unknown[0]}; allowed: auto, or columns of the data: "
            f"{', '.join(allowed)}"
        )
    test, train = (index.filter(polars.col("split") == name).sort("row") for name in ("test", "train"))
    columns: dict[str, list[str | None]] = {}
    for name in wanted:
        if index[name].dtype.is_numeric():
            numbers, reference = (rows[name].cast(polars.Float64).to_numpy() for rows in (test, train))
            values = thirds(numbers, reference=reference)
            if values is not None:
                columns[name] = values
        else:
            columns[name] = test[name].cast(polars.String).to_list()
    return columns


def thirds(numbers: NDArray[np.float64], *, reference: NDArray[np.float64]) -> list[str | None] | None:
    """Return "low", "middle" or "high" for each number: the third of the training rows' numbers that it falls into.

    Args:
        numbers: of the test rows. NaN gives None.
        reference: numbers of the training rows.

    Returns:
        None if all numbers fall into the same third, or there is no reference.
    """
    reference = reference[np.isfinite(reference)]
    if not len(reference):
        return None
    edges = np.quantile(reference, [1 / 3, 2 / 3], method="nearest")
    places = np.searchsorted(edges, numbers, side="right")
    if len(np.unique(places[np.isfinite(numbers)])) < 2:
        return None
    return [_THIRDS[place] if np.isfinite(number) else None for place, number in zip(places, numbers, strict=True)]


def _macro_f1(answers: Answers) -> float:
    labels, predicted = (np.bincount(values, minlength=answers.width) for values in (answers.labels, answers.predicted))
    hits = np.bincount(answers.labels, weights=answers.score, minlength=answers.width)
    occurs = labels + predicted > 0
    return float((2 * hits[occurs] / (labels + predicted)[occurs]).mean())
