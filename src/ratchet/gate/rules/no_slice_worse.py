"""On no slice is the candidate worse than the champion (gate.slice_tolerance)."""

from dataclasses import dataclass
from typing import Literal

from ratchet.evaluation.answers import ScoreUnit
from ratchet.evaluation.intervals import Interval
from ratchet.evaluation.slices import rows_by_slice
from ratchet.evaluation.wording import gain_text, number
from ratchet.gate.case import Case
from ratchet.gate.result_text import Noun, RuleText, difference_text, points, result_text, tolerance_text

__all__ = ["SlicesResult", "no_slice_worse"]


@dataclass(frozen=True)
class SlicesResult:
    """Slices on which the candidate is significantly worse than the champion."""

    passed: bool
    count: int  # of slices
    worse: tuple[str, ...]  # "column: value"
    worst: str
    difference: Interval  # on the worst slice: mean score of the candidate minus mean score of the champion
    tolerance: float
    unit: ScoreUnit | None = None  # of the difference; None: points of accuracy
    name: Literal["slices"] = "slices"

    def text(self, noun: Noun, kind: str) -> RuleText:
        unit, tolerance = self.unit, tolerance_text(self.tolerance, self.unit)
        change = difference_text(self.difference)
        if unit is not None and not unit.share:
            change = f"{unit.name} {gain_text(self.difference, factor=abs(unit.factor), share=unit.share)}"
        worst = f"{self.worst} {change}"
        if self.passed:
            measured = f"none of {self.count} significantly worse{tolerance}; lowest: {worst}"
        else:
            measured = f"{len(self.worse)} of {self.count} significantly worse{tolerance}: {worst}"
        limit = f"no slice whose interval ends below {points(-self.tolerance)} points"
        if unit is not None and not unit.share:
            limit = f"no slice whose interval ends below {number(-self.tolerance * abs(unit.factor))}"
        fix = "raise gate.slice_tolerance to allow more"
        return result_text(measured, limit, passed=self.passed, fix=fix, short=measured)


def no_slice_worse(case: Case) -> SlicesResult | None:
    """Check that on no slice the candidate is significantly worse than the champion (gate.slice_tolerance).

    None without slices, or without a champion to compare with.
    """
    if case.comparable is None:
        return None
    compared = {name: [values[row] for row in case.compared] for name, values in case.candidate.slices.items()}
    slices = rows_by_slice(compared, least=case.evaluation.slice_rows)
    if not slices:
        return None
    tolerance = case.gate.slice_tolerance
    names = [f"{column}: {value}" for column, value, _ in slices]
    bounds = {name: case.high_bounds(rows, looks=len(slices)) for name, (*_, rows) in zip(names, slices, strict=True)}
    least = min(high for _, high in bounds.values())
    differences = {
        name: case.difference(rows, looks=len(slices))
        for name, (*_, rows) in zip(names, slices, strict=True)
        if bounds[name][0] <= least or bounds[name][0] < -tolerance <= bounds[name][1]
    }
    worst = min(differences, key=lambda name: (differences[name].high, differences[name].value))
    ends = {name: high for name, (_, high) in bounds.items()} | {name: d.high for name, d in differences.items()}
    worse = tuple(name for name, end in ends.items() if end < -tolerance)
    return SlicesResult(not worse, len(slices), worse, worst, differences[worst], tolerance, case.candidate.unit)
