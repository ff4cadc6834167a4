"""What the rules look at: the model that asks, the one that holds the place, and the settings."""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ratchet.evaluation.intervals import Interval, paired_difference
from ratchet.evaluation.latency import Costs
from ratchet.params import EvaluationSettings, GateSettings
from ratchet.registry.gate.words import listed
from ratchet.serving.program import NotExported, Parity

__all__ = ["CandidateFigures", "Case", "ChampionRows"]

_IN_A_TAIL = 200  # resamples that should lie outside an interval, so that its bounds are not of a few


@dataclass(frozen=True)
class CandidateFigures:
    """The model that asks to be let in: which test rows it answers rightly, and how far to trust its confidence."""

    accuracy: Interval
    ids: tuple[str, ...]  # of the test rows
    correct: NDArray[np.bool_]  # (rows,), in the order of `ids`
    classes: tuple[str, ...]  # in the order of the model's outputs
    input_shape: tuple[int, ...]  # of one sample, as the model takes it
    calibration_error: Interval
    parts: Mapping[str, Sequence[str | None]] = field(default_factory=dict)  # column -> each row's value
    exported: Parity | NotExported | None = None  # its program's answers; None: it was stored without one


@dataclass(frozen=True)
class ChampionRows:
    """The model that now holds the place, measured on the same test rows."""

    name: str  # as a person would say it: "digits version 3"
    ids: tuple[str, ...]
    correct: NDArray[np.bool_]
    classes: tuple[str, ...]
    input_shape: tuple[int, ...]
    costs: Costs | None = None  # both models' side by side; None where it cannot take the same rows


@dataclass(frozen=True)
class Case:
    """One judgement: all that a rule may look at. `seed` decides the bootstrap's resamples."""

    candidate: CandidateFigures
    champion: ChampionRows | None
    gate: GateSettings
    evaluation: EvaluationSettings
    seed: int = 0

    @functools.cached_property
    def rival(self) -> ChampionRows | None:
        """The champion, where there is one that can be compared with."""
        return None if self.champion is None or self.obstacle else self.champion

    @functools.cached_property
    def champion_correct(self) -> NDArray[np.bool_]:
        """The champion's answers, right or wrong, in the order of the candidate's rows."""
        assert self.rival is not None, "a rule asks for the rival first"
        theirs = dict(zip(self.rival.ids, self.rival.correct.tolist(), strict=True))
        return np.array([theirs[one] for one in self.candidate.ids], dtype=np.bool_)

    def difference(self, rows: NDArray[np.int64] | slice = slice(None), *, looks: int = 1) -> Interval:
        """The candidate's accuracy on these rows minus the champion's, with its interval by paired bootstrap.

        Its level is gate.confidence; where one looks at several parts, it is shared among them (Bonferroni). The
        resamples are so many that its bounds can be told.
        """
        outside = (1 - self.gate.confidence) / looks
        return paired_difference(
            self.candidate.correct[rows],
            self.champion_correct[rows],
            resamples=max(self.evaluation.resamples, math.ceil(_IN_A_TAIL / outside)),
            confidence=1 - outside,
            seed=self.seed,
        )

    @functools.cached_property
    def obstacle(self) -> str | None:
        """Why the two cannot be compared row by row, and the way out; None if they can, or nobody holds the place."""
        ours, theirs = self.candidate, self.champion
        if theirs is None:
            return None
        way_out = (
            ". That is another task: set registry.model to another name, so that the new model gets a place of its own"
        )
        if ours.classes != theirs.classes:
            new = [name for name in ours.classes if name not in theirs.classes]
            gone = [name for name in theirs.classes if name not in ours.classes]
            parts = [f"it does not know {listed(new)}"] if new else []
            parts += [f"it knows {listed(gone)}, which the data no longer has"] if gone else []
            return (" and ".join(parts) or "it has the same classes in another order") + way_out
        if ours.input_shape != theirs.input_shape:
            return f"it takes input of {_shape(theirs.input_shape)}, the new model {_shape(ours.input_shape)}{way_out}"
        if len(ours.ids) != len(theirs.ids) or set(ours.ids) != set(theirs.ids):
            missing, extra = len(set(ours.ids) - set(theirs.ids)), len(set(theirs.ids) - set(ours.ids))
            return (
                f"it was measured on other test rows ({missing:,} of {len(ours.ids):,} are missing there, and it has "
                f"{extra:,} of its own). Measure it on these rows and judge again"
            )
        return None


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(str(side) for side in shape)
