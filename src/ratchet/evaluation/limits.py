"""When not to rely on a model: what its figures on the test rows do not show, or show to be weak, in sentences.

A class or a part of the rows is called weak only where that outlasts chance and having looked at so many.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from ratchet.evaluation.figures import ClassFigures, Figures
from ratchet.evaluation.intervals import Interval, share_interval

__all__ = ["WeakClass", "limits", "weak_classes"]

_FEW = 30  # test rows of a class; with fewer, an interval of its recall is wider than a quarter
_WIDE = 0.02  # half an interval of accuracy, above which the test set is called small
_OFF = 0.03  # calibration error that is worth a warning, if chance does not explain it
_LISTED = 5


@dataclass(frozen=True)
class WeakClass:
    """A class that is recognised less often than the rows at large, beyond chance."""

    name: str
    rows: int
    recall: Interval  # Wilson's, widened for the number of classes


def weak_classes(figures: Figures) -> list[WeakClass]:
    """The classes whose recall lies below the accuracy beyond chance, the worst first."""
    tested = [(number, one) for number, one in enumerate(figures.per_class) if one.support]
    level = 1 - (1 - figures.confidence) / max(1, len(tested))  # Bonferroni
    found = [
        WeakClass(one.name, one.support, share_interval(_hits(figures, number), one.support, confidence=level))
        for number, one in tested
    ]
    weak = [one for one in found if one.recall.high < figures.accuracy.value]
    return sorted(weak, key=lambda one: (one.recall.high, one.name))


def limits(figures: Figures) -> list[str]:
    """What the figures warn of, the gravest first; none where they warn of nothing."""
    return [*_classes(figures), *_slices(figures), *_calibration(figures), *_untested(figures), *_size(figures)]


def _classes(figures: Figures) -> Iterator[str]:
    weak = weak_classes(figures)
    for one in weak[:_LISTED]:
        yield (
            f"class {one.name} is recognised in {one.recall.value:.1%} of its {one.rows:,} test rows "
            f"({_span(one.recall)}): less often than the rows at large, beyond chance"
        )
    if len(weak) > _LISTED:
        yield f"{len(weak) - _LISTED:,} more classes are recognised less often than the rows at large, beyond chance"


def _untested(figures: Figures) -> Iterator[str]:
    untested = [one.name for one in figures.per_class if not one.support]
    if untested:
        yield f"not measured at all, without a single test row: {_listed(untested)}"
    few = [one for one in figures.per_class if 0 < one.support < _FEW]
    if few:
        yield f"hardly measured, with fewer than {_FEW} test rows: {_listed([_counted(one) for one in few])}"


def _slices(figures: Figures) -> Iterator[str]:
    worse = sorted((one for one in figures.slices if one.is_worse), key=lambda one: one.gap.high)
    for one in worse[:_LISTED]:
        yield (
            f"where {one.column} is {one.value}, {one.accuracy.value:.1%} of {one.rows:,} rows are answered rightly "
            f"({_span(one.accuracy)}): fewer than of the other rows, beyond chance"
        )
    if len(worse) > _LISTED:
        yield f"{len(worse) - _LISTED:,} more parts of the rows are answered worse than the rest, beyond chance"


def _calibration(figures: Figures) -> Iterator[str]:
    if figures.ece.value >= _OFF and figures.ece.low > 0.0:
        yield (
            f"its probabilities are off by {100 * figures.ece.value:.1f} points on average ({100 * figures.ece.low:.1f}"
            f" to {100 * figures.ece.high:.1f}): do not read them as frequencies; evaluation.temperature_scaling may "
            "mend it"
        )


def _size(figures: Figures) -> Iterator[str]:
    half = (figures.accuracy.high - figures.accuracy.low) / 2
    if half > _WIDE:
        yield (
            f"{figures.rows:,} test rows are few: its accuracy may be anywhere from {_span(figures.accuracy)}, and a "
            "difference smaller than that to another model may be chance"
        )


def _hits(figures: Figures, number: int) -> int:
    return figures.confusion[number][number]


def _span(interval: Interval) -> str:
    return f"{interval.low:.1%} to {interval.high:.1%}"


def _counted(one: ClassFigures) -> str:
    return f"{one.name} ({one.support:,})"


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 2 * _LISTED:,} more" if len(names) > 2 * _LISTED else ""
    return ", ".join(names[: 2 * _LISTED]) + more
