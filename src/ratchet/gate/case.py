"""What the rules look at: the candidate, the champion, the rows that both can be compared on, and the settings."""

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
from ratchet.gate.verdict import Comparison, Unused
from ratchet.gate.wording import listed
from ratchet.serving.program import NotExported, Parity
from ratchet.settings.model import EvaluationSettings, GateSettings

__all__ = ["CandidateFigures", "Case", "ChampionRows"]

Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]

_IN_A_TAIL = 200  # resamples that should lie outside an interval, so that its bounds are not of a few
_ANOTHER_TASK = (
    "That is another task: set registry.model to another name, so that the new model gets a place of its own"
)


@dataclass(frozen=True)
class CandidateFigures:
    """The model that is judged: which test rows it answers rightly, and how far to trust its confidence."""

    accuracy: Interval
    ids: tuple[str, ...]  # of the test rows
    labels: NDArray[np.int64]  # (rows,), into `classes`
    correct: Mask  # (rows,), in the order of `ids`
    classes: tuple[str, ...]  # in the order of the model's outputs
    input_shape: tuple[int, ...]  # of one sample, as the model takes it
    calibration_error: Interval
    parts: Mapping[str, Sequence[str | None]] = field(default_factory=dict)  # column -> each row's value
    exported: Parity | NotExported | None = None  # its program's answers; None: it was stored without one
    saw: Mask | None = None  # (rows,), that it was trained or selected on; None: none of them
    uniform: NDArray[np.float64] | None = None  # (rows,), in [0, 1) by content; below gate.reserved_fraction: reserved


@dataclass(frozen=True)
class ChampionRows:
    """The champion, measured on the same test rows. Its answer is its most probable class among those still in use."""

    name: str  # as a person would say it: "digits version 3"
    ids: tuple[str, ...]
    correct: Mask
    classes: tuple[str, ...]
    input_shape: tuple[int, ...]
    costs: Costs | None = None  # both models' side by side; None where they were not measured
    saw: Mask | None = None  # (rows,), that it was trained or selected on; None: that was not recorded
    unable: str = ""  # why it cannot answer these rows at all


@dataclass(frozen=True)
class Case:
    """One judgement: all that a rule may look at. `seed` decides the bootstrap's resamples."""

    candidate: CandidateFigures
    champion: ChampionRows | None
    gate: GateSettings
    evaluation: EvaluationSettings
    tries: Tries = FIRST_TRY
    seed: int = 0

    @functools.cached_property
    def rival(self) -> ChampionRows | None:
        """The champion, where there is one that can be compared with."""
        return None if self.champion is None or self.obstacle else self.champion

    @functools.cached_property
    def reserved(self) -> Mask:
        """The test rows that no comparison uses."""
        uniform = self.candidate.uniform
        none: Mask = np.zeros(len(self.candidate.ids), np.bool_)
        return none if uniform is None else uniform < self.gate.reserved_fraction

    @functools.cached_property
    def unknown(self) -> Mask:
        """The test rows whose class the champion does not know."""
        known = set(self.champion.classes) if self.champion else set(self.candidate.classes)
        new = np.array([name not in known for name in self.candidate.classes], np.bool_)
        mask: Mask = new[self.candidate.labels]
        return mask

    @functools.cached_property
    def seen(self) -> Mask:
        """The test rows that either model was trained or selected on."""
        none: Mask = np.zeros(len(self.candidate.ids), np.bool_)
        masks = [model.saw for model in (self.candidate, self.champion) if model is not None and model.saw is not None]
        seen: Mask = np.logical_or.reduce([none, *masks])
        return seen

    @functools.cached_property
    def compared(self) -> Rows:
        """The numbers of the test rows that both models are compared on."""
        return np.flatnonzero(~(self.reserved | self.unknown | self.seen))

    @functools.cached_property
    def ours(self) -> Mask:
        """The candidate's answers to the compared rows, right or wrong."""
        return self.candidate.correct[self.compared]

    @functools.cached_property
    def theirs(self) -> Mask:
        """The champion's answers to the compared rows, right or wrong."""
        assert self.rival is not None, "a rule asks for the rival first"
        if self.rival.ids == self.candidate.ids:
            return self.rival.correct[self.compared]
        by_id = dict(zip(self.rival.ids, self.rival.correct.tolist(), strict=True))
        return np.array([by_id[self.candidate.ids[row]] for row in self.compared], dtype=np.bool_)

    @functools.cached_property
    def counts(self) -> tuple[int, int]:
        """On how many compared rows only the candidate is right, and only the champion."""
        return int(np.count_nonzero(self.ours & ~self.theirs)), int(np.count_nonzero(self.theirs & ~self.ours))

    @functools.cached_property
    def comparison(self) -> Comparison | None:
        """The test against the champion at the level that this try has; None where nothing can be compared."""
        if self.rival is None:
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
            test_rows=len(self.candidate.ids),
            p=p,
            level=level.level,
            left=level.left,
            won=p <= level.level,
        )

    @functools.cached_property
    def unused(self) -> Unused | None:
        """The test rows that no comparison used, neither this one nor an earlier one; None: there are none."""
        here = 1.0 if self.rival is None else self.gate.reserved_fraction
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

    @functools.cached_property
    def overall(self) -> Interval:
        """The candidate's accuracy minus the champion's on all compared rows."""
        return self.difference()

    def difference(self, rows: Rows | slice = slice(None), *, looks: int = 1) -> Interval:
        """The candidate's accuracy minus the champion's on these of the compared rows, by paired bootstrap.

        Its level is gate.confidence, shared among so many looks (Bonferroni). The resamples are so many that its bounds
        do not depend on a few.
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
    def obstacle(self) -> str | None:
        """Why the two cannot be compared, and the fix; None if they can, or there is no champion."""
        if self.champion is None:
            return None
        return self._other_task(self.champion) or self._other_rows(self.champion)

    def _other_task(self, champion: ChampionRows) -> str | None:
        ours, theirs, allowed = self.candidate.classes, champion.classes, self.gate.classes
        if champion.unable:
            return f"{champion.unable}. {_ANOTHER_TASK}"
        if not set(ours) & set(theirs):
            return f"it knows none of the classes of the new model, but {listed(theirs)}. {_ANOTHER_TASK}"
        new, gone = [name for name in ours if name not in theirs], [name for name in theirs if name not in ours]
        if not (new and allowed == "same") and not (gone and allowed != "may-change"):
            return None
        parts = [f"it does not know {listed(new)}"] if new else []
        parts += [f"it knows {listed(gone)}, which the data no longer has"] if gone else []
        return (
            f"{' and '.join(parts)}, and gate.classes is {allowed}. Fix: `ratchet set gate.classes="
            f"{'may-change' if gone else 'may-grow'}` compares them on the rows of the classes that both know; or, if "
            "that is another task, set registry.model to another name"
        )

    def _other_rows(self, champion: ChampionRows) -> str | None:
        ours, theirs, least = self.candidate.ids, champion.ids, self.gate.minimum_rows
        if ours != theirs and (len(ours) != len(theirs) or set(ours) != set(theirs)):
            missing, extra = len(set(ours) - set(theirs)), len(set(theirs) - set(ours))
            return (
                f"it was measured on other test rows ({missing:,} of {len(ours):,} are missing there, and it has "
                f"{extra:,} of its own). Measure it on these rows and judge again"
            )
        if champion.saw is None:
            return (
                "there is no record of the samples that it was trained on, so test rows may be among them. Fix: "
                "`ratchet rollback` to a version with a record, or set registry.model to another name"
            )
        if len(self.compared) < min(least, len(ours) / 2):  # a small test set need not be whole
            return (
                f"only {len(self.compared):,} of {len(ours):,} test rows can be compared ({self.left_out}), and "
                f"gate.minimum_rows is {least:,}. Fix: add test samples that neither model saw, restore the splits "
                "that the champion was trained with (data.test_fraction, or the split column), or lower "
                "gate.minimum_rows"
            )
        return None

    @property
    def left_out(self) -> str:
        """How many test rows are not compared, and why; empty if all are."""
        seen = self.seen
        unknown = self.unknown & ~seen
        reserved = self.reserved & ~seen & ~unknown
        reasons = (
            (seen, "were used to train or select one of the two models"),
            (unknown, "are of classes that the champion does not know"),
            (reserved, "are reserved (gate.reserved_fraction)"),
        )
        return ", ".join(f"{np.count_nonzero(mask):,} {why}" for mask, why in reasons if mask.any())
