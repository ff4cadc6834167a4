"""Coverage of prediction intervals and sets: the share of test rows whose true value they contain."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ratchet.evaluation.intervals import Interval, exact_share
from ratchet.evaluation.slices import Values, rows_by_slice
from ratchet.problems import Target
from ratchet.problems.regions import LEVELS, REGIONS, Calibration, Regions
from ratchet.settings.model import EvaluationSettings

if TYPE_CHECKING:
    from ratchet.evaluation.predictions import Predictions

__all__ = ["MAIN_LEVEL", "Coverage", "CoverageMetrics", "SliceCoverage", "measure_coverage", "served"]

Outputs = tuple[NDArray[np.float32], NDArray[Any]]

MAIN_LEVEL = 90
"""Level, in per cent, of which people read first."""
_MEASURED = (80, MAIN_LEVEL, 95, 99)


@dataclass(frozen=True)
class Coverage:
    """Coverage at one level.

    Attributes:
        name: of the number, if there are several.
        percent: the level.
        share: of the test rows whose true value is inside, with its exact interval.
        size: mean size, as `Regions.sizes`.
    """

    name: str
    percent: int
    share: Interval
    size: float

    @property
    def is_low(self) -> bool:
        """Whether the coverage is significantly below the level."""
        return self.share.high < self.percent / 100

    @property
    def is_high(self) -> bool:
        """Whether the coverage is significantly above the level."""
        return self.share.low > self.percent / 100


@dataclass(frozen=True)
class SliceCoverage:
    """Coverage at the main level on one slice. Its interval is corrected for the number of slices and names."""

    column: str
    value: str
    rows: int
    coverage: Coverage


@dataclass(frozen=True)
class CoverageMetrics:
    """Calibration of the regions on validation rows, and their coverage of the test rows.

    Attributes:
        ordered_by: data.order_by; "none": the splits are drawn.
        levels: those that the calibration has.
        slices: at the main level, or the highest below it.
    """

    calibration: Calibration
    ordered_by: str
    levels: tuple[Coverage, ...]
    slices: tuple[SliceCoverage, ...]

    @property
    def main(self) -> tuple[Coverage, ...]:
        """The coverage at the main level, or the highest below it, of each number; empty: too few validation rows."""
        return tuple(each for each in self.levels if each.percent == _main(self.calibration))

    @property
    def lowest_slices(self) -> list[SliceCoverage]:
        """The slices, those with the lowest coverage first."""
        return sorted(self.slices, key=lambda part: part.coverage.share.value)


def measure_coverage(
    predictions: "Predictions",
    validation: Outputs,
    columns: Mapping[str, Values],
    settings: EvaluationSettings,
    *,
    ordered_by: str,
) -> CoverageMetrics:
    """Calibrate on validation rows and measure on test rows.

    Args:
        predictions: for the test rows, by a problem that has regions.
        validation: outputs and targets of the validation rows.
        columns: as of `slices`.
        ordered_by: data.order_by.
    """
    target, kind = predictions.target, REGIONS[predictions.target.problem]
    calibration = Calibration.of(kind.scores(served(target, validation[0]), validation[1]))
    test, names = served(target, predictions.outputs), kind.names(target)
    by_level = {
        percent: kind(target, calibration.at(percent))
        for percent in sorted({*_MEASURED, _main(calibration)})
        if LEVELS.start <= percent <= calibration.highest
    }
    levels = [
        each
        for percent, regions in by_level.items()
        for each in _coverage(regions, percent, names, test, predictions.targets, settings.confidence)
    ]
    main, slices = _main(calibration), []
    chosen = rows_by_slice(columns, least=settings.slice_rows) if main in by_level else []
    corrected = 1 - (1 - settings.confidence) / max(1, len(chosen) * len(names))  # Bonferroni
    for column, value, rows in chosen:
        here = _coverage(by_level[main], main, names, test[rows], predictions.targets[rows], corrected)
        slices += [SliceCoverage(column, value, len(rows), each) for each in here]
    return CoverageMetrics(calibration, ordered_by, tuple(levels), tuple(slices))


def served(target: Target, outputs: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the predictions in the precision of a served model."""
    return target.predictions(outputs).astype(np.float32)


def _main(calibration: Calibration) -> int:
    return min(MAIN_LEVEL, calibration.highest)


def _coverage(
    regions: Regions,
    percent: int,
    names: Sequence[str],
    predictions: NDArray[np.float32],
    targets: NDArray[Any],
    confidence: float,
) -> list[Coverage]:
    """Return the coverage of each name."""
    inside = regions.covers(predictions, targets).sum(axis=0)
    return [
        Coverage(name, percent, exact_share(int(count), len(predictions), confidence=confidence), float(size))
        for name, count, size in zip(names, inside, regions.sizes(predictions), strict=True)
    ]
