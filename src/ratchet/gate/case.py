"""One judgement's inputs: the candidate, the champion, the test images that both are compared on, and the settings."""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ratchet.evaluation.intervals import Interval, paired_difference
from ratchet.evaluation.latency import Costs
from ratchet.evaluation.significance import p_better, p_not_worse
from ratchet.gate.level import FIRST_TRY, Tries, spend
from ratchet.gate.verdict import Comparison, LeftOut, Obstacle, Unused
from ratchet.serving.program import NotExported, Parity
from ratchet.settings.model import EvaluationSettings, GateSettings

__all__ = ["Candidate", "Case", "Champion"]

Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]

_IN_A_TAIL = 200  # resamples that should be outside an interval, so that its bounds do not depend on a few


@dataclass(frozen=True)
class Candidate:
    """The model that is judged, measured on the test images. Row i of every array is the image `ids[i]`."""

    accuracy: Interval
    ids: tuple[str, ...]
    labels: NDArray[np.int64]  # (rows,), indices into `classes`
    correct: Mask  # (rows,)
    classes: tuple[str, ...]  # in the order of the model's outputs
    input_shape: tuple[int, ...]  # height, width, channels
    calibration_error: Interval
    slices: Mapping[str, Sequence[str | None]] = field(default_factory=dict)  # column -> value of each row
    exported: Parity | NotExported | None = None  # check of its ONNX program; None: it was stored without one
    saw: Mask | None = None  # (rows,), used to train or select it; None: none of them
    uniform: NDArray[np.float64] | None = None  # (rows,), in [0, 1) by content; below gate.reserved_fraction: reserved


@dataclass(frozen=True)
class Champion:
    """The champion, measured on the same test images. Its answer is its most probable class among those still used."""

    name: str  # for people: "digits version 3"
    ids: tuple[str, ...]
    correct: Mask
    classes: tuple[str, ...]
    input_shape: tuple[int, ...]
    costs: Costs | None = None  # of both models, measured side by side; None: not measured
    saw: Mask | None = None  # (rows,), used to train or select it; None: that was not recorded
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

    @property
    def costs(self) -> Costs | None:
        """Latency and size of both models, where they were measured."""
        return self.comparable.costs if self.comparable is not None else None

    @functools.cached_property
    def seen(self) -> Mask:
        """Mask of the test images that were used to train or select either model."""
        none: Mask = np.zeros(len(self.candidate.ids), np.bool_)
        masks = [model.saw for model in (self.candidate, self.champion) if model is not None and model.saw is not None]
        seen: Mask = np.logical_or.reduce([none, *masks])
        return seen

    @functools.cached_property
    def unknown(self) -> Mask:
        """Mask of the test images of a class that the champion does not know."""
        known = set(self.champion.classes) if self.champion else set(self.candidate.classes)
        new = np.array([name not in known for name in self.candidate.classes], np.bool_)
        mask: Mask = new[self.candidate.labels]
        return mask

    @functools.cached_property
    def reserved(self) -> Mask:
        """Mask of the test images that no comparison uses (gate.reserved_fraction)."""
        uniform = self.candidate.uniform
        none: Mask = np.zeros(len(self.candidate.ids), np.bool_)
        return none if uniform is None else uniform < self.gate.reserved_fraction

    @functools.cached_property
    def compared(self) -> Rows:
        """Row numbers of the test images that both models are compared on."""
        return np.flatnonzero(~(self.reserved | self.unknown | self.seen))

    @property
    def left_out(self) -> LeftOut:
        """Numbers of the test images that are not compared, by the first reason that applies."""
        seen = self.seen
        unknown = self.unknown & ~seen
        reserved = self.reserved & ~seen & ~unknown
        return LeftOut(*(int(np.count_nonzero(mask)) for mask in (seen, unknown, reserved)))

    @functools.cached_property
    def ours(self) -> Mask:
        """Correctness of the candidate's answers to the compared images."""
        return self.candidate.correct[self.compared]

    @functools.cached_property
    def theirs(self) -> Mask:
        """Correctness of the champion's answers to the compared images."""
        assert self.comparable is not None, "a rule checks `comparable` first"
        if self.comparable.ids == self.candidate.ids:
            return self.comparable.correct[self.compared]
        by_id = dict(zip(self.comparable.ids, self.comparable.correct.tolist(), strict=True))
        return np.array([by_id[self.candidate.ids[row]] for row in self.compared], dtype=np.bool_)

    @functools.cached_property
    def counts(self) -> tuple[int, int]:
        """Numbers of compared images on which only the candidate is right, and only the champion."""
        return int(np.count_nonzero(self.ours & ~self.theirs)), int(np.count_nonzero(self.theirs & ~self.ours))

    @functools.cached_property
    def comparison(self) -> Comparison | None:
        """The significance test against the champion at the level of this try; None: they cannot be compared."""
        if self.comparable is None:
            return None
        fixed, broken = self.counts
        if self.gate.champion == "better":
            p = p_better(fixed, broken)
        else:
            p = p_not_worse(fixed, broken, len(self.compared), tolerance=self.gate.tolerance)
        level = spend(self.tries, confidence=self.gate.confidence)
        return Comparison(
            number=self.tries.count + 1,
            rows=len(self.compared),
            p=p,
            level=level.level,
            remaining=level.remaining,
            won=p <= level.level,
        )

    @functools.cached_property
    def unused(self) -> Unused | None:
        """The test images that neither this comparison nor an earlier one used; None: there are none."""
        here = 1.0 if self.comparable is None else self.gate.reserved_fraction
        share = min(here, self.tries.reserved)
        uniform = self.candidate.uniform
        if share == 1.0:
            rows = np.ones(len(self.candidate.ids), np.bool_)
        elif uniform is None or share == 0.0:
            return None
        else:
            rows = uniform < share
        count = int(np.count_nonzero(rows))
        return Unused(count, int(np.count_nonzero(self.candidate.correct[rows]))) if count else None

    def difference(self, rows: Rows | slice = slice(None), *, looks: int = 1) -> Interval:
        """Return the candidate's accuracy minus the champion's on some of the compared images, by paired bootstrap.

        Args:
            rows: indices into `compared`; all by default.
            looks: number of such intervals. Each has its share of the error of gate.confidence (Bonferroni), and
                enough resamples that its bounds do not depend on a few of them.
        """
        outside = (1 - self.gate.confidence) / looks
        return paired_difference(
            self.ours[rows],
            self.theirs[rows],
            resamples=max(self.evaluation.resamples, math.ceil(_IN_A_TAIL / outside)),
            confidence=1 - outside,
            seed=self.seed,
        )

    @functools.cached_property
    def obstacle(self) -> Obstacle | None:
        """Why the two models cannot be compared; None if they can be, or if there is no champion."""
        if self.champion is None:
            return None
        return self._other_task(self.champion) or self._other_images(self.champion)

    def _other_task(self, champion: Champion) -> Obstacle | None:
        ours, theirs, allowed = self.candidate.classes, champion.classes, self.gate.classes
        new = tuple(name for name in ours if name not in theirs)
        lost = tuple(name for name in theirs if name not in ours)
        if champion.mismatch:
            return Obstacle("input", mismatch=champion.mismatch)
        if not set(ours) & set(theirs):
            return Obstacle("no shared class", lost_classes=lost)
        if (new and allowed == "same") or (lost and allowed != "may-change"):
            return Obstacle("classes", new_classes=new, lost_classes=lost, allowed=allowed)
        return None

    def _other_images(self, champion: Champion) -> Obstacle | None:
        ours, theirs, minimum = self.candidate.ids, champion.ids, self.gate.minimum_rows
        if ours != theirs and (len(ours) != len(theirs) or set(ours) != set(theirs)):
            missing, extra = len(set(ours) - set(theirs)), len(set(theirs) - set(ours))
            return Obstacle("other images", missing=missing, extra=extra)
        if champion.saw is None:
            return Obstacle("no record")
        if len(self.compared) < min(minimum, len(ours) / 2):  # of a small test set, half is enough
            return Obstacle("too few images", compared=len(self.compared), minimum=minimum)
        return None
