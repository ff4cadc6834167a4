"""One judgement's inputs: the candidate, the champion, the test samples that both are compared on, and the settings."""

import functools
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ratchet.evaluation.answers import ScoreUnit
from ratchet.evaluation.intervals import Interval, high_bounds, mean_of, paired_difference
from ratchet.evaluation.latency import Costs
from ratchet.evaluation.metrics import BaselineResult, ConstantResult, NamedMetric
from ratchet.exports.program import NotExported, Parity
from ratchet.gate.significance import (
    FIRST_TRY,
    Tries,
    p_better,
    p_larger_mean,
    p_not_worse,
    p_unseen_losses,
    rows_showing_failures,
    spend,
)
from ratchet.gate.units import SharedBy, Units, UnitVotes, p_of_both
from ratchet.problems import Target
from ratchet.settings.model import EvaluationSettings, GateSettings

__all__ = ["Candidate", "Case", "Champion", "ChampionTest", "LeftOut", "Obstacle"]

Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]
Scores = NDArray[np.float64]

_IN_A_TAIL = 200  # resamples that should be outside an interval, so that its bounds do not depend on a few


@dataclass(frozen=True)
class ChampionTest:
    """Significance test against the champion, at the level of this try."""

    number: int  # of the try, since the last promotion through the gate
    rows: int  # test samples that were compared
    p: float
    level: float  # largest p-value that wins
    remaining: float  # error that is left for later tries
    won: bool
    votes: Annotated[UnitVotes | None, Field(exclude_if=operator.not_)] = None  # None: each sample is its own unit
    largest: Annotated[int, Field(exclude_if=operator.not_)] = 0  # samples of a unit, if it fails only by unseen ones


@dataclass(frozen=True)
class LeftOut:
    """Numbers of test samples that cannot be compared, by the first reason that applies."""

    seen: int = 0  # used to train or select one of the two models
    unknown: int = 0  # of a class that the champion does not know


@dataclass(frozen=True)
class Obstacle:
    """Reason why candidate and champion cannot be compared."""

    kind: Literal[
        "input",
        "problem",
        "targets",
        "no shared class",
        "classes",
        "same weights",
        "no record",
        "too few images",
        "scores",
    ]
    mismatch: str = ""  # of an input: "it takes float32 pixels, and these are uint8"; of a problem: both
    new_classes: tuple[str, ...] = ()  # that the champion does not know
    lost_classes: tuple[str, ...] = ()  # that the candidate does not know
    allowed: str = ""  # gate.classes
    compared: int = 0
    minimum: int = 0  # that are needed
    setting: int = 0  # gate.minimum_rows; 0 in older verdicts
    by: Annotated[SharedBy | None, Field(exclude_if=operator.not_)] = None  # `compared` counts units; None: samples


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """The model that is judged. Row i of every array is test sample i."""

    score: Scores  # (rows,), larger is better; of classes 1 where the answer is right, else 0
    unit: ScoreUnit  # in which people read the score
    metrics: Mapping[str, NamedMetric]  # by key, for gate.minimum_metric
    default_metric: str = "none"  # that gate.minimum_metric: auto means
    calibration_error: Interval | None = None  # None: its outputs are not probabilities of classes
    target: Target
    labels: NDArray[np.int64] | None = None  # (rows,), indices into the classes; None: it does not predict classes
    kind: str = "image"  # of its input
    input_shape: tuple[int, ...] = ()  # height, width, channels of images
    saw: Mask  # (rows,), used to train or select it
    units: tuple[Units, ...] = ()  # of the rows: each counts them in another way; empty: each row is its own unit
    slices: Mapping[str, Sequence[str | None]] = field(default_factory=dict)  # column -> value of each row
    exported: Parity | NotExported | None = None  # check of its ONNX program; None: it was stored without one
    baseline: BaselineResult | None = None  # None: no baseline was measured
    constant: ConstantResult | None = None  # None: it was not compared with the best constant answer


@dataclass(frozen=True, kw_only=True)
class Champion:
    """The champion, measured on the same test samples. Of classes it answers the most probable that is still used."""

    name: str  # for people: "digits version 3"
    score: Scores
    target: Target
    input_shape: tuple[int, ...] = ()
    costs: Costs | None = None  # of both models, measured side by side; None: not measured
    saw: Mask | None  # (rows,), used to train or select it; None: that is not known
    unknown: str = ""  # why not; empty: it was not recorded
    mismatch: str = ""  # why it cannot take these samples at all
    same_weights: bool = False  # as the candidate's


@dataclass(frozen=True)
class Case:
    """All that a rule may use. `seed` decides the bootstrap's resamples."""

    candidate: Candidate
    champion: Champion | None
    gate: GateSettings
    evaluation: EvaluationSettings
    tries: Tries = FIRST_TRY
    seed: int = 0

    @functools.cached_property
    def comparable(self) -> Champion | None:
        """The champion, where there is one that can be compared with."""
        return None if self.champion is None or self.obstacle else self.champion

    @functools.cached_property
    def seen(self) -> Mask:
        """Mask of the test samples that were used to train or select either model."""
        saw, champion = self.candidate.saw, self.champion
        return saw if champion is None or champion.saw is None else saw | champion.saw

    @functools.cached_property
    def unknown(self) -> Mask:
        """Mask of the test samples of a class that the champion does not know."""
        ours, labels = self.candidate.target.names, self.candidate.labels
        if labels is None:
            return np.zeros(len(self.candidate.score), np.bool_)
        their_names = self.champion.target.names if self.champion else ours
        new = np.array([name not in their_names for name in ours], np.bool_)
        mask: Mask = new[labels]
        return mask

    @functools.cached_property
    def compared(self) -> Rows:
        """Row numbers of the test samples that both models are compared on."""
        return np.flatnonzero(~(self.unknown | self.seen))

    @functools.cached_property
    def units(self) -> tuple[Units, ...]:
        """The units of the compared samples; empty: each sample is one."""
        return tuple(units for all_rows in self.candidate.units if (units := all_rows.at(self.compared)))

    @property
    def left_out(self) -> LeftOut:
        """Numbers of the test samples that are not compared, by the first reason that applies."""
        return LeftOut(*(int(np.count_nonzero(mask)) for mask in (self.seen, self.unknown & ~self.seen)))

    @functools.cached_property
    def scores(self) -> tuple[Scores, Scores]:
        """Scores of the candidate and of the champion on the compared samples."""
        assert self.comparable is not None, "a rule checks `comparable` first"
        return self.candidate.score[self.compared], self.comparable.score[self.compared]

    @functools.cached_property
    def is_exact(self) -> bool:
        """Whether all compared scores are 0 or 1, so that the exact test applies."""
        return all(bool(((score == 0.0) | (score == 1.0)).all()) for score in self.scores)

    @functools.cached_property
    def counts(self) -> tuple[int, int]:
        """Numbers of compared samples on which the candidate's score is larger, and on which the champion's is."""
        ours, theirs = self.scores
        return int(np.count_nonzero(ours > theirs)), int(np.count_nonzero(theirs > ours))

    @functools.cached_property
    def comparison(self) -> ChampionTest | None:
        """The significance test against the champion at the level of this try; None: they cannot be compared."""
        if self.comparable is None:
            return None
        rows, tolerance = len(self.compared), self.gate.tolerance if self.gate.champion == "not-worse" else 0.0
        gains, votes, largest = self.scores[0] - self.scores[1], None, 0
        spent = spend(self.tries, confidence=self.gate.confidence)
        if self.is_exact:
            p = p_not_worse(*self.counts, rows, tolerance=tolerance)
        else:
            p = p_larger_mean(gains, tolerance=tolerance)
        tests = [(*self._p_of_units(units, gains, tolerance), units) for units in self.units]
        if tests:
            two_ways = p_of_both(self.units[0], self.units[1], gains + tolerance) if tests[1:] else 0.0
            p = max(p, two_ways, *(test[0] for test in tests))
            _, unseen, units = max(tests, key=lambda test: max(test[:2]))
            votes, size = units.votes(gains), int(units.sizes().max())
            is_only = p <= spent.level < unseen and sum(test[1] > spent.level for test in tests) == 1
            largest, p = size if size > 1 and is_only else 0, max(p, *(test[1] for test in tests))
        number, level = self.tries.count + 1, spent.level
        return ChampionTest(number, rows, p, level, spent.remaining, p <= level, votes, largest)

    def _p_of_units(self, units: Units, gains: Scores, tolerance: float) -> tuple[float, float]:
        """Return the p-value of the measured units, and that of those that the test set lacks."""
        sums, votes = units.sums(gains + tolerance), units.votes(gains)
        p = p_larger_mean(sums)
        if not self.is_exact:  # real scores have so many units that they show failures
            return p, 0.0
        p = p if tolerance else max(p, p_better(votes.better, votes.worse))
        return p, p_unseen_losses(float(sums.sum()), (1 - tolerance) * units.sizes())

    def mean(self, score: Scores) -> NamedMetric:
        """Return the mean of some rows' scores in the units that people read, with its interval."""
        unit = self.candidate.unit
        return unit.metric("score", mean_of(unit.factor * score, confidence=self.evaluation.confidence))

    def difference(self, rows: Rows | slice = slice(None), *, looks: int = 1) -> Interval:
        """Return the candidate's mean score minus the champion's on some of the compared samples, by paired bootstrap.

        Args:
            rows: indices into `compared`; all by default.
            looks: number of such intervals. Each has its share of the error of gate.confidence (Bonferroni), and
                enough resamples that its bounds do not depend on a few of them.
        """
        outside = (1 - self.gate.confidence) / looks
        return paired_difference(
            *(score[rows] for score in self.scores),
            resamples=max(self.evaluation.resamples, math.ceil(_IN_A_TAIL / outside)),
            confidence=1 - outside,
            seed=self.seed,
        )

    def high_bounds(self, rows: Rows, *, looks: int) -> tuple[float, float]:
        """Return numbers between which the upper end of `difference` is: its draws take long for many looks."""
        return high_bounds(*(score[rows] for score in self.scores), confidence=1 - (1 - self.gate.confidence) / looks)

    @functools.cached_property
    def not_finite(self) -> tuple[tuple[str, int], ...]:
        """The models with scores that are not finite numbers, and on how many test samples."""
        scores = [("the model", self.candidate.score)]
        if self.champion is not None:
            scores.append((self.champion.name, self.champion.score))
        counts = ((name, int(np.count_nonzero(~np.isfinite(score)))) for name, score in scores)
        return tuple((name, count) for name, count in counts if count)

    @functools.cached_property
    def obstacle(self) -> Obstacle | None:
        """Why the two models cannot be compared; None if they can be, or if there is no champion."""
        champion, allowed = self.champion, self.gate.classes
        if champion is None:
            return None
        ours, theirs = self.candidate.target.names, champion.target.names
        new = tuple(name for name in ours if name not in theirs)
        lost = tuple(name for name in theirs if name not in ours)
        if champion.mismatch:
            return Obstacle("input", mismatch=champion.mismatch)
        if self.not_finite:
            return Obstacle("scores", mismatch=" and ".join(name for name, _ in self.not_finite))
        if self.candidate.target.problem != champion.target.problem:
            return Obstacle("problem", mismatch=f"{champion.target.problem}, not {self.candidate.target.problem}")
        if self.candidate.labels is None:
            if new or lost:
                return Obstacle("targets", new_classes=new, lost_classes=lost)
        elif not set(ours) & set(theirs):
            return Obstacle("no shared class", lost_classes=lost)
        elif (new and allowed == "same") or (lost and allowed != "may-change"):
            return Obstacle("classes", new_classes=new, lost_classes=lost, allowed=allowed)
        if champion.same_weights:
            return Obstacle("same weights")
        if champion.saw is None:
            return Obstacle("no record", mismatch=champion.unknown)
        minimum, compared, by = self.gate.minimum_rows, len(self.compared), None
        for units in self.units:
            compared, by = min((compared, by), (units.count, units.by), key=operator.itemgetter(0))
        if self.candidate.labels is None:
            level = spend(self.tries, confidence=self.gate.confidence).level
            minimum = max(minimum, rows_showing_failures(1 / minimum, level=level))
        if compared < minimum:
            setting = self.gate.minimum_rows
            return Obstacle("too few images", compared=compared, minimum=minimum, setting=setting, by=by)
        return None
