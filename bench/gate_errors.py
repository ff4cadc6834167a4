"""How often the gate is wrong, by simulation (G1, G7).

    python -m bench.gate_errors [--rounds 2000] [--only one slices nights series]

Two models answer the same test rows and the gate's own `judge` decides whether the new one replaces the other. Their
errors fall together as those of one recipe with two seeds do: some rows are hard, and 65 % of what one gets wrong the
other does too. `one` is the first try on a test set. `nights` are histories: night after night another candidate is
judged on the same rows, and a promoted one is the champion of the next night. `series` compares the way that the gate
spends its level with others from the literature.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench import online_testing
from bench.report import Row, alone, options
from ratchet.evaluation.intervals import Interval
from ratchet.evaluation.significance import p_better
from ratchet.gate import CandidateFigures, Case, ChampionRows, Tries, answers_rule, judge
from ratchet.gate.level import FIRST_TRY, spend
from ratchet.settings.model import EvaluationSettings, GateSettings

__all__ = ["PAIRS", "History", "Pair", "measure", "nights", "share_promoted"]

Answers = NDArray[np.bool_]

PARTS = ("one", "slices", "nights", "series")

_SLICES = 10
_BETTER = GateSettings(minimum_accuracy=0.0)
_NOT_WORSE = GateSettings(minimum_accuracy=0.0, champion="not-worse", tolerance=0.01)
_POWER = 0.8
_ANSWERS = answers_rule(rows=1, largest_difference=0.0, tolerance=0.0)
_NIGHTS = 90
_BETTER_NIGHT = 30


@dataclass(frozen=True)
class Pair:
    """A champion that is right on the share `accuracy` of all rows, and a model better than it by `better`.

    A row that is hard is answered wrongly with probability `on_hard`.
    """

    accuracy: float
    better: float
    on_hard: float = 0.68

    @property
    def name(self) -> str:
        """Both figures."""
        return f"champion {self.accuracy:.0%} right, the new model {self.better * 100:+.1f} points"

    @property
    def hard(self) -> tuple[float, float, float]:
        """Share of rows that are hard; how often the champion errs there; and on the others.

        So chosen that with `on_hard` 0.68 each of two equal models shares 65 % of its errors with the other.
        """
        errors = 1 - self.accuracy
        share = 1.404 * errors * 0.68 / self.on_hard
        return share, self.on_hard, errors * (1 - 1.404 * 0.68) / (1 - share)

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

FIVE_PER_CENT = Pair(
    0.93, 0.01, on_hard=0.7035
)  # of the rows are answered differently by it and a model 1 point better


def promoted(new: Answers, old: Answers, gate: GateSettings, *, parts: int = 0, seed: int) -> bool:
    """Whether the gate lets the new model in at its first try; on `parts` parts of the rows too, if any."""
    asking, holding = _models(new, old, tuple(map(str, range(len(new)))), parts=parts)
    return judge(asking, holding, gate, EvaluationSettings(), answers=_ANSWERS, seed=seed).passed


def _models(
    new: Answers, old: Answers, ids: tuple[str, ...], *, parts: int = 0
) -> tuple[CandidateFigures, ChampionRows]:
    classes, shape, unsure = ("a", "b"), (8, 8, 1), Interval(0.0, 0.0, 0.0)
    columns: dict[str, Sequence[str]] = {"part": [str(row % parts) for row in range(len(new))]} if parts else {}
    labels, unseen = np.zeros(len(new), np.int64), np.zeros(len(new), np.bool_)
    asking = CandidateFigures(unsure, ids, labels, new, classes, shape, calibration_error=unsure, parts=columns)
    return asking, ChampionRows("the champion", ids, old, classes, shape, saw=unseen)


def share_promoted(
    pair: Pair, gate: GateSettings = _BETTER, *, rows: int, sets: int, parts: int = 0, seed: int = 4
) -> float:
    """The share of `sets` fresh test sets of `rows` rows on which the gate promotes the new model at its first try."""
    generator = np.random.default_rng(seed)
    return float(
        np.mean([promoted(*pair.draw(generator, rows), gate, parts=parts, seed=number) for number in range(sets)])
    )


@dataclass(frozen=True)
class History:
    """What became of the candidates of one test set, night by night."""

    promotions: tuple[int, ...]  # nights, from 1
    wrong: tuple[int, ...]  # those on which the new champion is in truth no better than the old one
    shown: float  # the last champion's accuracy on the test rows minus its true accuracy
    levels: tuple[float, ...]


def nights(
    pair: Pair, *, rows: int, count: int = _NIGHTS, better_on: int = 0, gate: GateSettings = _BETTER, seed: int
) -> History:
    """One history: equal candidates, but that of night `better_on` (0: none), which is better by `pair.better`.

    The candidates' errors fall together as `pair` says. After its night the better recipe is not used again, so later
    candidates are worse than a champion that it made.
    """
    generator, ids = np.random.default_rng([seed, rows]), tuple(map(str, range(rows)))
    better, equal = pair.chances(generator, rows)
    champion, truth = generator.random(rows) < equal, 0.0
    tries, promotions, wrong, levels = FIRST_TRY, [], [], []
    for night in range(1, count + 1):
        is_better = night == better_on
        new = generator.random(rows) < (better if is_better else equal)
        asking, holding = _models(new, champion, ids)
        found = Case(asking, holding, gate, EvaluationSettings(), tries=tries).comparison
        assert found is not None, "there is a champion"
        levels.append(found.level)
        if found.won:  # the whole verdict, with its words, only here: it takes most of the time
            verdict = judge(asking, holding, gate, EvaluationSettings(), answers=_ANSWERS, tries=tries)
            assert verdict.passed, verdict.words
        tries = Tries(count=tries.count + 1, spent=tries.spent + 1, new_rows=0.0)
        if found.won:
            promotions.append(night)
            if (pair.better if is_better else 0.0) <= truth:
                wrong.append(night)
            champion, truth, tries = new, pair.better if is_better else 0.0, FIRST_TRY
    accuracy = pair.accuracy + truth
    return History(tuple(promotions), tuple(wrong), float(champion.mean()) - accuracy, tuple(levels))


def detectable(accuracy: float, rows: int, *, confidence: float = 0.95) -> float:
    """The improvement that `better` promotes four times in five, at the first try: (z of the level + z of 0.8)
    standard errors.
    """
    from scipy.stats import norm

    level = spend(FIRST_TRY, confidence=confidence).level
    reach, better = float(norm.isf(level) + norm.ppf(_POWER)), 0.0
    for _ in range(20):  # the standard error depends on the improvement a little
        better = reach * math.sqrt((Pair(accuracy, better).differing - better**2) / rows)
    return better


def measure(rounds: int, *, quick: bool, only: Sequence[str] = PARTS) -> list[Row]:
    """The table's rows."""
    rows: list[Row] = []
    sizes = (100,) if quick else (300, 1000, 3000, 10_000)
    rounds = 20 if quick else rounds
    if "one" in only:
        rows += _one(rounds, sizes)
    if "slices" in only:
        rows += _slices(rounds, sizes)
    if "nights" in only:
        rows += _nights(rounds // 2, sizes)
    if "series" in only:
        rows += _series(rounds, rows=sizes[-1])
    return rows


def _one(sets: int, sizes: Sequence[int]) -> list[Row]:
    rows = []
    level = spend(FIRST_TRY, confidence=0.95).level
    for size, better, (how, gate) in itertools.product(
        sizes, (0.0, 0.01, -0.01), (("better", _BETTER), ("not-worse by 1 point", _NOT_WORSE))
    ):
        share = share_promoted(Pair(0.9, better), gate, rows=size, sets=sets)
        claimed = (how == "better" and better <= 0.0) or (how != "better" and better < 0.0)
        most = level + 3 * math.sqrt(level / sets)
        rows.append(_row(f"{size:,} rows, {better * 100:+.0f} points, {how}", share, at_most=most if claimed else None))
    for size, accuracy in itertools.product(sizes, (0.8, 0.9, 0.95)):
        least = detectable(accuracy, size)
        share = share_promoted(Pair(accuracy, least), rows=size, sets=max(1, sets // 2))
        rows.append(_row(f"{size:,} rows, champion {accuracy:.0%} right, +{least * 100:.1f} points", share))
    return rows


def _slices(sets: int, sizes: Sequence[int]) -> list[Row]:
    rows = []
    for size, better in itertools.product(sizes[1:3], (0.0, 0.03)):
        for parts in (0, _SLICES):
            share = share_promoted(Pair(0.9, better), rows=size, sets=max(1, sets // 4), parts=parts)
            rows.append(_row(f"{size:,} rows, {better * 100:+.0f} points, better, {parts} parts", share))
    return rows


def _nights(sets: int, sizes: Sequence[int]) -> list[Row]:
    rows = []
    cases = [(size, Pair(0.9, 0.0)) for size in sizes[:3]] + [(sizes[-1], Pair(0.93, 0.0))]
    for size, pair in cases:
        found = [nights(pair, rows=size, seed=number) for number in range(sets)]
        share = float(np.mean([bool(one.wrong) for one in found]))
        high = float(np.mean([one.shown for one in found])) * 100
        condition = f"{_NIGHTS} equal nights on {size:,} rows, champion {pair.accuracy:.0%} right"
        rows.append(_row(f"{condition}: a promotion", share, at_most=0.05))
        rows.append(_figure(f"{condition}: the champion's shown accuracy is too high by", f"{high:+.2f} points"))
    size = sizes[-1]
    found = [nights(FIVE_PER_CENT, rows=size, better_on=_BETTER_NIGHT, seed=10_000 + number) for number in range(sets)]
    condition = f"night {_BETTER_NIGHT} better by 1 point, all others equal, on {size:,} rows"
    power = float(np.mean([_BETTER_NIGHT in one.promotions for one in found]))
    differing = f"{FIVE_PER_CENT.differing:.1%} of the rows answered differently"
    rows.append(_row(f"{condition}, {differing}: it is promoted", power, at_least=0.8))
    rows.append(_row(f"{condition}: any wrong promotion", float(np.mean([bool(one.wrong) for one in found]))))
    wins = [one for one in found if _BETTER_NIGHT in one.promotions]
    if wins:
        after = float(np.mean([one.levels[_BETTER_NIGHT] for one in wins]))
        before = float(np.mean([one.levels[_BETTER_NIGHT - 1] for one in wins]))
        rows.append(_figure(f"{condition}: level before and after its promotion", f"{before:.2g}, {after:.2g}"))
    return rows


def _series(sets: int, *, rows: int) -> list[Row]:
    """The p-values of the same histories under each way to spend the level; the champion is not replaced in these."""
    generator, equal, better = np.random.default_rng(8), [], []
    for _ in range(sets):
        ours, theirs = FIVE_PER_CENT.chances(generator, rows)
        champion = generator.random(rows) < theirs
        drawn = [generator.random(rows) < theirs for _ in range(_NIGHTS)]
        last = generator.random(rows) < ours
        equal.append([_p(new, champion) for new in drawn])
        better.append(_p(last, champion))
    results = []
    for name, series in online_testing.PROCEDURES.items():
        wrong = np.mean([any(series(history)) for history in equal])
        power = {
            night: np.mean([series([*history[: night - 1], p])[-1] for history, p in zip(equal, better, strict=True)])
            for night in (1, 10, 30, _NIGHTS)
        }
        figures = ", ".join(f"{share:.3f} at try {night}" for night, share in power.items())
        results.append(_row(f"{name}: one of {_NIGHTS} equal models promoted", float(wrong)))
        results.append(_figure(f"{name}: +1 point on {rows:,} rows promoted", figures))
    return results


def _p(new: Answers, old: Answers) -> float:
    return p_better(int(np.count_nonzero(new & ~old)), int(np.count_nonzero(old & ~new)))


def _figure(condition: str, figure: str) -> Row:
    print(f"{condition}: {figure}", flush=True)
    return Row("the gate", condition, figure)


def _row(condition: str, share: float, *, at_most: float | None = None, at_least: float | None = None) -> Row:
    print(f"{condition}: {share:.4f}", flush=True)
    claim, met = ("", None)
    if at_most is not None:
        claim, met = f"<= {at_most:.3g}", share <= at_most
    if at_least is not None:
        claim, met = f">= {at_least:.3g}", share >= at_least
    return Row("share promoted", condition, f"{share:.4f}", claim, met)


if __name__ == "__main__":
    parser = options(__doc__, rounds=2000)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="default: all")
    alone(parser, lambda asked: measure(asked.rounds, quick=asked.quick, only=asked.only))
