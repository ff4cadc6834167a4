"""Why two runs or versions differ: code, settings, data, environment, figures, and which test rows flipped."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ratchet.evaluation.intervals import Interval, paired_difference
from ratchet.evaluation.predictions import Predictions
from ratchet.provenance.changes import Change

if TYPE_CHECKING:
    from ratchet.data.difference import Difference

__all__ = ["CodeChange", "Comparison", "Figure", "Flip", "Rows", "compare_rows", "figures", "patched_files"]

_FIGURE, _BOUND = "test/", "test interval/"
_SETTINGS = ("temperature", "flip_average")  # stand among the figures, and are none


@dataclass(frozen=True)
class CodeChange:
    """Two commits and their difference as `git diff --stat` tells it; files that an uncommitted patch treats otherwise.

    `patched` is file -> where: in A's patch only, in B's only, or in both and not the same.
    """

    commits: tuple[str | None, str | None]
    stat: tuple[str, ...]
    patched: Mapping[str, str]


@dataclass(frozen=True)
class Figure:
    """One test figure of A and of B, with its interval where it has one."""

    name: str
    before: Interval | float | None
    after: Interval | float | None


@dataclass(frozen=True)
class Flip:
    """A test row that one of the two answers rightly and the other does not: its label and both answers."""

    id: str
    label: str
    before: str
    after: str


@dataclass(frozen=True)
class Rows:
    """The test rows that both were asked. `accuracy` is B's minus A's on them; None where there are none."""

    common: int
    asked: tuple[int, int]
    accuracy: Interval | None
    confidence: float
    worse: tuple[Flip, ...]  # right by A, wrong by B
    better: tuple[Flip, ...]  # wrong by A, right by B

    @property
    def words(self) -> str:
        """What the rows say, in one sentence."""
        if self.accuracy is None:
            return "No test row was asked of both, so their accuracies cannot be compared."
        low, value, high = (100 * one for one in (self.accuracy.low, self.accuracy.value, self.accuracy.high))
        said = "better beyond chance" if low > 0 else "worse beyond chance" if high < 0 else "not beyond chance"
        return (
            f"On the {self.common:,} test rows that both were asked, B is {value:+.2f} points in accuracy "
            f"({self.confidence:.0%} interval {low:+.2f} to {high:+.2f}): {said}. "
            f"From wrong to right: {len(self.better):,} rows; from right to wrong: {len(self.worse):,}."
        )


@dataclass(frozen=True)
class Comparison:
    """All that was found. A part that could not be had is None, and `missing` says why.

    `doubts` say where MLflow or a file differs from what the ledger sealed.
    """

    names: tuple[str, str]
    code: CodeChange
    settings: Sequence[Change] | None
    data: tuple[str | None, str | None]  # DVC hashes
    samples: "Difference | None"  # None: the same data, or it is gone
    environment: Sequence[Change]
    figures: Sequence[Figure]
    rows: Rows | None
    missing: Sequence[str]
    doubts: Sequence[str] = ()


def patched_files(before: bytes, after: bytes) -> dict[str, str]:
    """Of two patches: file -> "A only", "B only" or "A and B, not the same"; files treated alike are left out."""
    one, other = _by_file(before), _by_file(after)
    found = {}
    for name in sorted(one.keys() | other.keys()):
        if one.get(name) != other.get(name):
            found[name] = "A and B, not the same" if name in one and name in other else f"{'AB'[name in other]} only"
    return found


def _by_file(patch: bytes) -> dict[str, bytes]:
    parts = (b"\n" + patch).split(b"\ndiff --git ")[1:]
    found = {}
    for part in parts:
        named = part.partition(b"\n")[0]
        found[named[2 : (len(named) - 1) // 2].decode(errors="replace")] = part
    return found


def figures(before: Mapping[str, float], after: Mapping[str, float]) -> list[Figure]:
    """The test figures among two runs' metrics, accuracy first."""
    names = {name.removeprefix(_FIGURE) for name in (*before, *after) if name.startswith(_FIGURE)} - {*_SETTINGS}
    ordered = sorted(names, key=lambda name: (name != "accuracy", name))
    return [Figure(name, _figure(name, before), _figure(name, after)) for name in ordered]


def _figure(name: str, metrics: Mapping[str, float]) -> Interval | float | None:
    value = metrics.get(f"{_FIGURE}{name}")
    low, high = (metrics.get(f"{_BOUND}{name}_{end}") for end in ("low", "high"))
    return value if value is None or low is None or high is None else Interval(low, value, high)


def compare_rows(
    before: Predictions, after: Predictions, settings: Mapping[str, Any], *, altered: frozenset[str] = frozenset()
) -> Rows:
    """The rows with the same id and the same label in both, without those `altered`, whose picture is another.

    `settings` are dotted keys: evaluation.confidence, evaluation.resamples and seed decide the interval.
    """
    at = {id: row for row, id in enumerate(before.ids)}
    pairs = [
        (at[id], row)
        for row, id in enumerate(after.ids)
        if id in at and id not in altered and _label(before, at[id]) == _label(after, row)
    ]
    confidence = float(settings.get("evaluation.confidence", 0.95))
    asked = (len(before.ids), len(after.ids))
    if not pairs:
        return Rows(0, asked, None, confidence, (), ())
    one, other = np.array(pairs).T
    right_before, right_after = before.correct[one], after.correct[other]
    accuracy = paired_difference(
        right_after,
        right_before,
        resamples=int(settings.get("evaluation.resamples", 2000)),
        confidence=confidence,
        seed=int(settings.get("seed", 0)),
    )
    flips = [
        (bool(right), Flip(before.ids[a], _label(before, a), _answer(before, a), _answer(after, b)))
        for (a, b), was, right in zip(pairs, right_before, right_after, strict=True)
        if was != right
    ]
    return Rows(
        len(pairs),
        asked,
        accuracy,
        confidence,
        worse=tuple(flip for right, flip in flips if not right),
        better=tuple(flip for right, flip in flips if right),
    )


def _label(predictions: Predictions, row: int) -> str:
    return str(predictions.classes[predictions.labels[row]])


def _answer(predictions: Predictions, row: int) -> str:
    return str(predictions.classes[predictions.predicted[row]])
