"""Is the model as good for some rows as for others? The figures on each part of the test rows.

Parts may be small and there may be many, so each one's interval is Wilson's, which holds for few rows, and a part is
called worse than the rest only where that outlasts having looked at so many.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ratchet.evaluation.answers import Answers
from ratchet.evaluation.calibration import calibration_error, reliability
from ratchet.evaluation.intervals import Interval, share_difference, share_interval

__all__ = ["Slice", "cut", "parts", "slices"]

Values = Sequence[str | None]

_PARTS = ("low", "middle", "high")
_MOST_VALUES = 50  # different values of a column; with more it names rows and not kinds of them


@dataclass(frozen=True)
class Slice:
    """The test rows that have one value in one column."""

    column: str
    value: str
    rows: int
    accuracy: Interval
    gap: Interval  # accuracy here minus accuracy on all other rows, its interval widened for the number of slices
    macro_f1: float  # over the classes that occur here among rows or answers
    log_loss: float
    ece: float

    @property
    def is_worse(self) -> bool:
        """Whether it is worse than the rest beyond chance."""
        return self.gap.high < 0.0

    def to_json(self) -> dict[str, Any]:
        """Plain data; `from_json` reads it."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Slice":
        """The slice that `to_json` wrote."""
        intervals = {name: Interval.from_json(content[name]) for name in ("accuracy", "gap")}
        return cls(**{**content, **intervals})


def slices(
    answers: Answers, columns: Mapping[str, Values], *, confidence: float, bins: int, least: int
) -> tuple[Slice, ...]:
    """The figures for each value of each column, column by column and in the order of values.

    Args:
        answers: to all test rows.
        columns: by name, the value of each row; None: it has none, and is in no slice of that column.
        confidence: level of the intervals.
        bins: of the calibration error.
        least: rows that a slice needs; smaller ones are left out, as are columns that do not divide the rows.
    """
    found = parts(columns, least=least)
    corrected = 1 - (1 - confidence) / max(1, len(found))  # Bonferroni
    return tuple(
        _figures(answers, name, value, rows, confidence=confidence, corrected=corrected, bins=bins)
        for name, value, rows in found
    )


def parts(columns: Mapping[str, Values], *, least: int) -> list[tuple[str, str, NDArray[np.int64]]]:
    """For each column and value the numbers of the rows that have it, at least so many and not all."""
    found = []
    for name, values in columns.items():
        texts = np.array(["" if value is None else f"={value}" for value in values], dtype=object)
        known = sorted({value for value in texts if value})
        if 2 <= len(known) <= _MOST_VALUES:
            found += [(name, value[1:], np.flatnonzero(texts == value)) for value in known]
    return [(name, value, rows) for name, value, rows in found if least <= len(rows) < len(columns[name])]


def cut(numbers: NDArray[np.float64], *, like: NDArray[np.float64]) -> list[str | None] | None:
    """Numbers as low, middle or high: in which third of the training rows' numbers, `like`, they would lie.

    None where hardly any differ; NaN has no value.
    """
    like = like[np.isfinite(like)]
    if not len(like):
        return None
    edges = np.quantile(like, [1 / 3, 2 / 3], method="nearest")
    parts = np.searchsorted(edges, numbers, side="right")
    if len(np.unique(parts[np.isfinite(numbers)])) < 2:
        return None
    return [_PARTS[part] if np.isfinite(number) else None for part, number in zip(parts, numbers, strict=True)]


def _figures(
    answers: Answers, name: str, value: str, rows: NDArray[np.int64], *, confidence: float, corrected: float, bins: int
) -> Slice:
    part = Answers(answers.logits[rows], answers.labels[rows])
    right, rest = int(part.correct.sum()), int(answers.correct.sum()) - int(part.correct.sum())
    return Slice(
        column=name,
        value=value,
        rows=part.rows,
        accuracy=share_interval(right, part.rows, confidence=confidence),
        gap=share_difference((right, part.rows), (rest, answers.rows - part.rows), confidence=corrected),
        macro_f1=_macro_f1(part),
        log_loss=float(part.losses.mean()),
        ece=calibration_error(reliability(part.confidence, part.correct, bins=bins)),
    )


def _macro_f1(answers: Answers) -> float:
    truth, answered = (np.bincount(values, minlength=answers.classes) for values in (answers.labels, answers.predicted))
    hits = np.bincount(answers.labels[answers.correct], minlength=answers.classes)
    occurs = truth + answered > 0
    return float((2 * hits[occurs] / (truth + answered)[occurs]).mean())
