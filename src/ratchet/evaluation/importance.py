"""Permutation importance: how much the mean score falls when the values of one column are shuffled.

After Breiman, "Random Forests" (2001), and Fisher, Rudin and Dominici, "All Models are Wrong, but Many are Useful"
(2019). It holds for any model, because it needs only predictions. A column whose information is in others, too, looks
less important than it is.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ratchet.evaluation.answers import ScoreUnit
from ratchet.evaluation.intervals import Interval, mean_of

__all__ = ["ColumnImportance", "Importance", "following_columns", "measure_importance"]

Arrays = tuple[NDArray[Any], ...]


@dataclass(frozen=True)
class ColumnImportance:
    """Importance of one column."""

    name: str
    drop: Interval  # mean over rows, in the units of the metric; above 0: the model is worse without the column


@dataclass(frozen=True)
class Importance:
    """Importance of every column."""

    metric: str  # such as "MAE"
    rows: int
    repeats: int
    confidence: float
    columns: tuple[ColumnImportance, ...]  # in the order of the columns
    left_out: int = 0  # columns of a wide table that were not measured


def following_columns(
    arrays: Arrays, columns: Sequence[tuple[str, int, int]], outputs: NDArray[np.floating], *, most: int
) -> list[tuple[str, int, int]]:
    """Return at most `most` of the columns, in their order: those that correlate most with an output of the model.

    Args:
        arrays: of a model's input, each (rows, columns of its kind); NaN: missing.
        columns: name, number of the array, and number of the column in it.
    """
    if len(columns) <= most:
        return list(columns)
    answers = _standardised(outputs.reshape(len(outputs), -1).astype(np.float64))
    related = [np.abs(_standardised(array.astype(np.float64)).T @ answers).max(axis=1) for array in arrays]
    strength = np.array([related[array][column] for _, array, column in columns])
    chosen = np.sort(np.argsort(-strength, kind="stable")[:most])
    return [columns[place] for place in chosen]


def _standardised(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return columns with mean 0 and length 1; missing values, and columns without spread, are 0."""
    known = np.isfinite(values)
    mean = np.where(known, values, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    centred = np.where(known, values - mean, 0.0)
    length = np.sqrt(np.square(centred).sum(axis=0))
    result: NDArray[np.float64] = centred / np.where(length > 0, length, 1.0)
    return result


def measure_importance(
    score: Callable[[Arrays], NDArray[np.float64]],
    arrays: Arrays,
    columns: Sequence[tuple[str, int, int]],
    *,
    unit: ScoreUnit,
    confidence: float,
    repeats: int = 3,
    seed: int = 0,
    report: Callable[[int], None] = lambda done: None,
) -> Importance:
    """Return the drop of the mean score for each column, with its interval over rows.

    Equal arguments give equal results: the shuffle depends only on the seed, the column's place and the repetition.

    Args:
        score: arrays -> score of each row, (rows,), larger is better. The rows keep their targets.
        arrays: of a model's input, such as numbers and codes, each (rows, columns of its kind).
        columns: name, number of the array, and number of the column in it.
        repeats: shuffles of each column, whose scores are averaged.
        report: called with the number of columns done.
    """
    clean, rows, measured = score(arrays), len(arrays[0]), []
    for place, (name, array, column) in enumerate(columns):
        drops = np.zeros(rows)
        for repetition in range(repeats):
            generator = np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, place, repetition]))
            shuffled = arrays[array].copy()
            shuffled[:, column] = shuffled[generator.permutation(rows), column]
            drops += (clean - score((*arrays[:array], shuffled, *arrays[array + 1 :]))) / repeats
        measured.append(ColumnImportance(name, mean_of(abs(unit.factor) * drops, confidence=confidence)))
        report(place + 1)
    return Importance(unit.name, rows, repeats, confidence, tuple(measured))
