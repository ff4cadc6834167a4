"""One judgement's inputs: the candidate, the champion, the test images that both are compared on, and the settings."""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ratchet.evaluation.intervals import Interval, paired_difference
from ratchet.evaluation.latency import Costs
from ratchet.gate.significance import FIRST_TRY, Tries, p_better, p_not_worse, spend
from ratchet.gate.verdict import Comparison, LeftOut, Obstacle, Unused
from ratchet.serving.program import NotExported, Parity
from ratchet.settings.model import EvaluationSettings, GateSettings

__all__ = ["Candidate", "Case", "Champion"]

Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]
Scores = NDArray[np.float64]

_IN_A_TAIL = 200  # resamples that should be outside an interval, so that its bounds do not depend on a few


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """The model that is judged. Row i of every array is test image i."""

    score: Scores  # (rows,), larger is better; the mean is the accuracy: 1 where the answer is right, else 0
    accuracy: Interval
    calibration_error: Interval
    labels: NDArray[np.int64]  # (rows,), indices into `classes`
    classes: tuple[str, ...]  # in the order of the model's outputs
    input_shape: tuple[int, ...]  # height, width, channels
    saw: Mask  # (rows,), used to train or select it
    uniform: NDArray[np.float64]  # (rows,), in [0, 1) by content; below gate.reserved_fraction: reserved
    slices: Mapping[str, Sequence[str | None]] = field(default_factory=dict)  # column -> value of each row
    exported: Parity | NotExported | None = None  # check of its ONNX program; None: it was stored without one


@dataclass(frozen=True, kw_only=True)
class Champion:
    """The champion, measured on the same test images. Its answer is its most probable class among those still used."""

    name: str  # for people: "digits version 3"
    score: Scores
    classes: tuple[str, ...]
    input_shape: tuple[int, ...]
    costs: Costs | None = None  # of both models, measured side by side; None: not measured
    saw: Mask | None  # (rows,), used to train or select it; None: that was not recorded
    mismatch: str = ""  # why it cannot take these images at all


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
        """Mask of the test images that were used to train or select either model."""
        saw, champion = self.candidate.saw, self.champion
        return saw if champion is None or champion.saw is None else saw | champion.saw

    @functools.cached_property
    def unknown(self) -> Mask:
        """Mask of the test images of a class that the champion does not know."""
        ours = self.candidate.classes
        known = self.champion.classes if self.champion else ours
        new = np.array([name not in known for name in ours], np.bool_)
        mask: Mask = new[self.candidate.labels]
        return mask

    @functools.cached_property
    def reserved(self) -> Mask:
        """Mask of the test images that no comparison uses (gate.reserved_fraction)."""
        mask: Mask = self.candidate.uniform < self.gate.reserved_fraction
        return mask

    @functools.cached_property
    def compared(self) -> Rows:
        """Row numbers of the test images that both models are compared on."""
        return np.flatnonzero(~(self.reserved | self.unknown | self.seen))

    @property
    def left_out(self) -> LeftOut:
        """Numbers of the test images that are not compared, by the first reason that applies."""
        unknown = self.unknown & ~self.seen
        reserved = self.reserved & ~self.seen & ~unknown
        return LeftOut(*(int(np.count_nonzero(mask)) for mask in (self.seen, unknown, reserved)))

    @functools.cached_property
    def scores(self) -> tuple[Scores, Scores]:
        """Scores of the candidate and of the champion on the compared images."""
        assert self.comparable is not None, "a rule checks `comparable` first"
        return self.candidate.score[self.compared], self.comparable.score[self.compared]

    @functools.cached_property
    def counts(self) -> tuple[int, int]:
        """Numbers of compared images on which the candidate's score is larger, and on which the champion's is."""
        ours, theirs = self.scores
        return int(np.count_nonzero(ours > theirs)), int(np.count_nonzero(theirs > ours))

    @functools.cached_property
    def comparison(self) -> Comparison | None:
        """The significance test against the champion at the level of this try; None: they cannot be compared."""
        if self.comparable is None:
            return None
        rows = len(self.compared)
        if self.gate.champion == "better":
            p = p_better(*self.counts)
        else:
            p = p_not_worse(*self.counts, rows, tolerance=self.gate.tolerance)
        spent = spend(self.tries, confidence=self.gate.confidence)
        number = self.tries.count + 1
        return Comparison(number, rows, p, level=spent.level, remaining=spent.remaining, won=p <= spent.level)

    @functools.cached_property
    def unused(self) -> Unused | None:
        """The test images that neither this comparison nor an earlier one used; None: there are none."""
        here = 1.0 if self.comparable is None else self.gate.reserved_fraction
        score = self.candidate.score[self.candidate.uniform < min(here, self.tries.reserved)]
        return Unused(len(score), int(score.sum())) if len(score) else None

    def difference(self, rows: Rows | slice = slice(None), *, looks: int = 1) -> Interval:
        """Return the candidate's mean score minus the champion's on some of the compared images, by paired bootstrap.

        Args:
            rows: indices into `compared`; all by default.
            looks: number of such intervals. Each has its share of the error of gate.confidence (Bonferroni), and
                enough resamples that its bounds do not depend on a few of them.
        """
        outside = (1 - self.gate.confidence) / looks
        ours, theirs = self.scores
        return paired_difference(
            ours[rows],
            theirs[rows],
            resamples=max(self.evaluation.resamples, math.ceil(_IN_A_TAIL / outside)),
            confidence=1 - outside,
            seed=self.seed,
        )

    @functools.cached_property
    def obstacle(self) -> Obstacle | None:
        """Why the two models cannot be compared; None if they can be, or if there is no champion."""
        champion, allowed = self.champion, self.gate.classes
        if champion is None:
            return None
        ours, theirs = self.candidate.classes, champion.classes
        new = tuple(name for name in ours if name not in theirs)
        lost = tuple(name for name in theirs if name not in ours)
        if champion.mismatch:
            return Obstacle("input", mismatch=champion.mismatch)
        if not set(ours) & set(theirs):
            return Obstacle("no shared class", lost_classes=lost)
        if (new and allowed == "same") or (lost and allowed != "may-change"):
            return Obstacle("classes", new_classes=new, lost_classes=lost, allowed=allowed)
        if champion.saw is None:
            return Obstacle("no record")
        compared, minimum = len(self.compared), self.gate.minimum_rows
        if compared < min(minimum, len(self.candidate.score) / 2):  # of a small test set, half is enough
            return Obstacle("too few images", compared=compared, minimum=minimum)
        return None
