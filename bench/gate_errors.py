"""How often the gate is wrong, by simulation (G1).

    python -m bench.gate_errors [--rounds 2000]

Two models answer the same test rows and the gate's own `judge` says whether the new one may take the other's place.
Their errors fall together as those of one recipe with two seeds do: some rows are hard, and 65 % of what one gets
wrong the other does too. Told are the shares of the rounds in which the new model is promoted: one that is equal, one
that is better and one that is worse by a point; and how often one of ten equal models is that try one after the other
on the same rows.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.report import Row, alone, options
from ratchet.evaluation.intervals import Interval
from ratchet.params import EvaluationSettings, GateSettings
from ratchet.registry.gate import CandidateFigures, ChampionRows, answers_rule, judge

__all__ = ["PAIRS", "Pair", "measure", "share_of_tries", "share_promoted"]

Answers = NDArray[np.bool_]

_PARTS = 10
_BETTER = GateSettings(minimum_accuracy=0.0)
_NOT_WORSE = GateSettings(minimum_accuracy=0.0, champion="not-worse", tolerance=0.01)
_POWER = 0.8


@dataclass(frozen=True)
class Pair:
    """A champion that is right on the share `accuracy` of all rows, and a model better than it by `better`."""

    accuracy: float
    better: float

    @property
    def name(self) -> str:
        """Both figures."""
        return f"champion {self.accuracy:.0%} right, the new model {self.better * 100:+.1f} points"

    @property
    def hard(self) -> tuple[float, float, float]:
        """Share of rows that are hard; how often the champion errs there; and on the others.

        So chosen that of two equal models each shares 65 % of its errors with the other.
        """
        errors = 1 - self.accuracy
        share = 1.404 * errors
        return share, 0.68, errors * (1 - 1.404 * 0.68) / (1 - share)

    def chances(self, generator: np.random.Generator, rows: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """For each of `rows` fresh rows, how likely the new model is right and how likely the champion."""
        share, on_hard, elsewhere = self.hard
        is_hard = generator.random(rows) < share
        old = np.where(is_hard, on_hard, elsewhere)
        return 1 - np.where(is_hard, on_hard - self.better / share, elsewhere), 1 - old

    def draw(self, generator: np.random.Generator, rows: int) -> tuple[Answers, Answers]:
        """On which of `rows` fresh rows the new model is right, and the champion."""
        new, old = self.chances(generator, rows)
        return generator.random(rows) < new, generator.random(rows) < old

    @property
    def differing(self) -> float:
        """The share of rows on which exactly one of the two is right."""
        share, on_hard, elsewhere = self.hard
        new = on_hard - self.better / share
        either = on_hard + new - 2 * on_hard * new
        return share * either + (1 - share) * 2 * elsewhere * (1 - elsewhere)


PAIRS = (Pair(0.9, 0.0), Pair(0.9, 0.01), Pair(0.95, 0.0), Pair(0.95, 0.01), Pair(0.99, 0.0))


def promoted(new: Answers, old: Answers, gate: GateSettings, *, parts: int = 0, seed: int) -> bool:
    """Whether the gate lets the new model in, by its answers alone; on `parts` parts of the rows too, if any."""
    ids, classes, shape = tuple(map(str, range(len(new)))), ("a", "b"), (8, 8, 1)
    columns: dict[str, Sequence[str]] = {"part": [str(row % parts) for row in range(len(new))]} if parts else {}
    unsure = Interval(0.0, 0.0, 0.0)
    asking = CandidateFigures(unsure, ids, new, classes, shape, calibration_error=unsure, parts=columns)
    holding = ChampionRows("the champion", ids, old, classes, shape)
    answers = answers_rule(rows=1, largest_difference=0.0, tolerance=0.0)
    return judge(asking, holding, gate, EvaluationSettings(), answers=answers, seed=seed).passed


def share_promoted(
    pair: Pair, gate: GateSettings = _BETTER, *, rows: int, sets: int, parts: int = 0, seed: int = 4
) -> float:
    """The share of `sets` fresh test sets of `rows` rows on which the gate promotes the new model."""
    generator = np.random.default_rng(seed)
    return float(
        np.mean([promoted(*pair.draw(generator, rows), gate, parts=parts, seed=number) for number in range(sets)])
    )


def share_of_tries(
    accuracy: float, gate: GateSettings = _BETTER, *, rows: int, sets: int, tries: int, seed: int = 5
) -> float:
    """The share of test sets on which one of so many equal models, all against one champion, is promoted."""
    generator, pair, found = np.random.default_rng(seed), Pair(accuracy, 0.0), 0
    for number in range(sets):
        new, old = pair.chances(generator, rows)
        champion = generator.random(rows) < old
        found += any(
            promoted(generator.random(rows) < new, champion, gate, seed=number * tries + one) for one in range(tries)
        )
    return found / sets


def detectable(accuracy: float, rows: int, *, confidence: float = 0.95) -> float:
    """The improvement that `better` promotes four times in five: (z of the level + z of 0.8) standard errors."""
    from scipy.stats import norm

    reach, better = float(norm.ppf((1 + confidence) / 2) + norm.ppf(_POWER)), 0.0
    for _ in range(20):  # the standard error depends on the improvement a little
        better = reach * math.sqrt((Pair(accuracy, better).differing - better**2) / rows)
    return better


def measure(rounds: int, *, quick: bool) -> list[Row]:
    """The table's rows."""
    sets, sizes = (20, (100,)) if quick else (rounds, (300, 1000, 3000, 10_000))
    rows = []
    for size, better, (how, gate) in itertools.product(
        sizes, (0.0, 0.01, -0.01), (("better", _BETTER), ("not-worse by 1 point", _NOT_WORSE))
    ):
        share = share_promoted(Pair(0.9, better), gate, rows=size, sets=sets)
        claimed = how == "better" and better <= 0.0
        rows.append(
            _row(f"{size:,} rows, {better * 100:+.0f} points, {how}", share, at_most=0.035 if claimed else None)
        )
    for size, better in itertools.product(sizes[1:3], (0.0, 0.03)):
        pair, few = Pair(0.9, better), max(1, sets // 4)
        for parts in (0, _PARTS):
            share = share_promoted(pair, rows=size, sets=few, parts=parts)
            rows.append(_row(f"{size:,} rows, {better * 100:+.0f} points, better, {parts} parts", share))
    for size, level in itertools.product(sizes[:2], (0.95, 0.99, 0.995)):
        gate = _BETTER.model_copy(update={"confidence": level})
        share = share_of_tries(0.9, gate, rows=size, sets=max(1, sets // 4), tries=10)
        rows.append(_row(f"{size:,} rows, one of 10 equal models, gate.confidence {level}", share))
    for size, accuracy in itertools.product(sizes, (0.8, 0.9, 0.95)):
        least = detectable(accuracy, size)
        share = share_promoted(Pair(accuracy, least), rows=size, sets=max(1, sets // 2))
        rows.append(_row(f"{size:,} rows, champion {accuracy:.0%} right, +{least * 100:.1f} points", share))
    return rows


def _row(condition: str, share: float, *, at_most: float | None = None) -> Row:
    print(f"{condition}: {share:.3f}", flush=True)
    claim, met = ("", None) if at_most is None else (f"<= {at_most}", share <= at_most)
    return Row("share promoted", condition, f"{share:.3f}", claim, met)


if __name__ == "__main__":
    alone(options(__doc__, rounds=2000), lambda asked: measure(asked.rounds, quick=asked.quick))
