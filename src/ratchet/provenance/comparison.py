"""Why two runs or versions differ: code, settings, data, environment, metrics, and test samples that flipped."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ratchet.counts import count_of
from ratchet.evaluation.intervals import Interval, paired_difference
from ratchet.evaluation.predictions import Predictions
from ratchet.settings import dotted
from ratchet.typed_json import to_plain

if TYPE_CHECKING:
    from ratchet.data.difference import Difference
    from ratchet.registry.provenance_record import Provenance

__all__ = [
    "AnswerComparison",
    "Change",
    "CodeChange",
    "Comparison",
    "Flip",
    "MetricChange",
    "changes",
    "compare_answers",
    "environment_changes",
    "metric_changes",
    "patched_files",
]

_METRIC, _BOUND = "test/", "test interval/"
_SETTINGS = ("temperature", "flip_average")  # logged among the metrics, but not measured
_ENVIRONMENT = ("python", "packages", "lock", "hardware")  # fields of a provenance record


@dataclass(frozen=True)
class Change:
    """A value that differs between A and B, by dotted key; None where it does not exist."""

    name: str
    before: Any
    after: Any


@dataclass(frozen=True)
class CodeChange:
    """Two commits with the lines of `git diff --stat` between them.

    `patched` names files that the uncommitted patches change differently: file -> in A's patch, in B's, or in both.
    """

    commits: tuple[str | None, str | None]
    stat: tuple[str, ...]
    patched: Mapping[str, str]


@dataclass(frozen=True)
class MetricChange:
    """One test metric of A and of B, with its confidence interval where it has one."""

    name: str
    before: Interval | float | None
    after: Interval | float | None


@dataclass(frozen=True)
class Flip:
    """A test sample that only one of A and B classifies correctly: its label and both answers."""

    id: str
    label: str
    before: str
    after: str


@dataclass(frozen=True)
class AnswerComparison:
    """The answers to the test samples that A and B share.

    `totals` are the numbers of test samples of A and of B. `accuracy` is B's minus A's on the shared ones, None if
    there are none; `confidence` is the level of its interval.
    """

    common: int
    totals: tuple[int, int]
    accuracy: Interval | None
    confidence: float
    worse: tuple[Flip, ...]  # correct in A, wrong in B
    better: tuple[Flip, ...]  # wrong in A, correct in B
    terms: tuple[str, str, str]  # see `Answers.change_terms`

    @property
    def summary(self) -> str:
        """The result in two sentences."""
        if self.accuracy is None:
            return "A and B have no test sample in common, so their answers cannot be compared."
        low, value, high = (100 * bound for bound in (self.accuracy.low, self.accuracy.value, self.accuracy.high))
        unit, right, wrong = self.terms
        result = "significantly better" if low > 0 else "significantly worse" if high < 0 else "not significant"
        return (
            f"On the {count_of(self.common, 'test sample')} in common, B is {value:+.2f} {unit} "
            f"({100 * self.confidence:.0f} % CI {low:+.2f} to {high:+.2f}): {result}. "
            f"{right}: {count_of(len(self.better), 'sample')}; {wrong}: {len(self.worse):,}."
        )


@dataclass(frozen=True)
class Comparison:
    """All differences from A to B. One that is unknown is None, and `missing` says why.

    `doubts` say where MLflow or a file differs from what the ledger sealed.
    """

    names: tuple[str, str]
    code: CodeChange
    settings: Sequence[Change] | None
    data: tuple[str | None, str | None]  # DVC hashes
    samples: "Difference | None"  # None if the data is the same or not available
    environment: Sequence[Change]
    metrics: Sequence[MetricChange]
    answers: AnswerComparison | None
    missing: Sequence[str]
    doubts: Sequence[str] = ()


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """Return the differences between two nested mappings, by dotted key, in the order of the keys."""
    a, b = dotted(before), dotted(after)
    names = [*a, *(name for name in b if name not in a)]
    return [Change(name, a.get(name), b.get(name)) for name in names if a.get(name) != b.get(name)]


def environment_changes(before: "Provenance", after: "Provenance") -> list[Change]:
    """Return the differences in Python, packages, lock file and machine."""
    a, b = (to_plain(record) for record in (before, after))
    return changes({name: a[name] for name in _ENVIRONMENT}, {name: b[name] for name in _ENVIRONMENT})


def patched_files(before: bytes, after: bytes) -> dict[str, str]:
    """Return which files two patches change differently: file -> "A only", "B only" or "A and B, not the same"."""
    a, b = _by_file(before), _by_file(after)
    differing = {}
    for name in sorted(a.keys() | b.keys()):
        if a.get(name) != b.get(name):
            both = name in a and name in b
            differing[name] = "A and B, not the same" if both else f"{'AB'[name in b]} only"
    return differing


def _by_file(patch: bytes) -> dict[str, bytes]:
    sections = (b"\n" + patch).split(b"\ndiff --git ")[1:]
    by_file = {}
    for section in sections:
        names = section.partition(b"\n")[0]  # a/NAME b/NAME
        by_file[names[2 : (len(names) - 1) // 2].decode(errors="replace")] = section
    return by_file


def metric_changes(before: Mapping[str, float], after: Mapping[str, float]) -> list[MetricChange]:
    """Return the test metrics among two runs' metrics, accuracy first."""
    names = {name.removeprefix(_METRIC) for name in (*before, *after) if name.startswith(_METRIC)} - {*_SETTINGS}
    ordered = sorted(names, key=lambda name: (name != "accuracy", name))
    return [MetricChange(name, _metric(name, before), _metric(name, after)) for name in ordered]


def _metric(name: str, metrics: Mapping[str, float]) -> Interval | float | None:
    value = metrics.get(f"{_METRIC}{name}")
    low, high = (metrics.get(f"{_BOUND}{name}_{end}") for end in ("low", "high"))
    return value if value is None or low is None or high is None else Interval(low, value, high)


def compare_answers(
    before: Predictions, after: Predictions, settings: Mapping[str, Any], *, altered: frozenset[str] = frozenset()
) -> AnswerComparison:
    """Compare the answers to the samples that have the same id and label in both.

    Args:
        settings: by dotted key; evaluation.confidence, evaluation.resamples and seed decide the interval.
        altered: ids of samples whose image differs, which are not compared.
    """
    position = {id: row for row, id in enumerate(before.ids)}
    pairs = [
        (position[id], row)
        for row, id in enumerate(after.ids)
        if id in position and id not in altered and before.truth(position[id]) == after.truth(row)
    ]
    confidence = float(settings.get("evaluation.confidence", 0.95))
    totals, terms = (len(before.ids), len(after.ids)), after.answers.change_terms
    if not pairs:
        return AnswerComparison(0, totals, None, confidence, (), (), terms)
    rows_a, rows_b = np.array(pairs).T
    score_a, score_b = before.score[rows_a], after.score[rows_b]
    accuracy = paired_difference(
        score_b,
        score_a,
        resamples=int(settings.get("evaluation.resamples", 2000)),
        confidence=confidence,
        seed=int(settings.get("seed", 0)),
    )
    worse = [_flip(before, after, *pairs[index]) for index in np.flatnonzero(score_a > score_b)]
    better = [_flip(before, after, *pairs[index]) for index in np.flatnonzero(score_b > score_a)]
    return AnswerComparison(len(pairs), totals, accuracy, confidence, tuple(worse), tuple(better), terms)


def _flip(before: Predictions, after: Predictions, a: int, b: int) -> Flip:
    return Flip(before.ids[a], before.truth(a), before.answer(a), after.answer(b))
