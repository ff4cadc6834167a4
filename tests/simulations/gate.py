"""Simulated pairs of models, judged by the gate's own code.

Two models answer the same test images. Their errors overlap as those of one recipe with two seeds do: some images are
hard, and 65 % of one model's errors are also errors of the other.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ratchet.evaluation.answers import ScoreUnit
from ratchet.evaluation.intervals import Interval
from ratchet.evaluation.metrics import NamedMetric
from ratchet.gate import Candidate, Case, Champion, Tries, judge, reload_rule
from ratchet.gate.case import ChampionTest
from ratchet.gate.rules import ChampionResult
from ratchet.gate.significance import FIRST_TRY, p_better, spend
from ratchet.gate.verdict import Verdict
from ratchet.problems import Classes, Numbers
from ratchet.registry.ledger import LedgerEntry
from ratchet.registry.sample_digests import Samples
from ratchet.registry.tries import TryKey, judgement, tries_before
from ratchet.settings.model import EvaluationSettings, GateSettings

__all__ = [
    "BETTER",
    "FIVE_PER_CENT",
    "PAIRS",
    "History",
    "Pair",
    "detectable",
    "levels_on",
    "share_promoted",
    "share_with_a_promotion",
    "share_won_by_a_rarely_failing_model",
    "simulate_nights",
]

Answers = NDArray[np.bool_]

BETTER = GateSettings(minimum=0.0)
_POWER = 0.8
_RELOADED = reload_rule(images=1, largest_difference=0.0, tolerance=0.0)


@dataclass(frozen=True)
class Pair:
    """A champion with a true accuracy, and a candidate that is better by `better`.

    Each model is wrong on a hard image with probability `on_hard`.
    """

    accuracy: float
    better: float
    on_hard: float = 0.68

    @property
    def name(self) -> str:
        """Description with both values."""
        return f"champion {self.accuracy:.0%}, candidate {self.better * 100:+.1f} points"

    @property
    def hard(self) -> tuple[float, float, float]:
        """Share of hard images, and the champion's error rate on them and on the others.

        With `on_hard` 0.68, two equal models share 65 % of their errors.
        """
        errors = 1 - self.accuracy
        share = 1.404 * errors * 0.68 / self.on_hard
        return share, self.on_hard, errors * (1 - 1.404 * 0.68) / (1 - share)

    def chances(self, generator: np.random.Generator, rows: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the probabilities that candidate and champion are right, for each of `rows` new images."""
        share, on_hard, elsewhere = self.hard
        is_hard = generator.random(rows) < share
        old = np.where(is_hard, on_hard, elsewhere)
        return 1 - np.where(is_hard, on_hard - self.better / share, elsewhere), 1 - old

    def draw(self, generator: np.random.Generator, rows: int) -> tuple[Answers, Answers]:
        """Return whether candidate and champion are right, for each of `rows` new images."""
        new, old = self.chances(generator, rows)
        return generator.random(rows) < new, generator.random(rows) < old

    @property
    def differing(self) -> float:
        """Share of images on which exactly one of the two is right."""
        share, on_hard, elsewhere = self.hard
        new = on_hard - self.better / share
        either = on_hard + new - 2 * on_hard * new
        return share * either + (1 - share) * 2 * elsewhere * (1 - elsewhere)


PAIRS = (Pair(0.9, 0.0), Pair(0.9, 0.01), Pair(0.95, 0.0), Pair(0.95, 0.01), Pair(0.99, 0.0))

FIVE_PER_CENT = Pair(0.93, 0.01, on_hard=0.7035)  # they differ on 5 % of the images


def _is_promoted(new: Answers, old: Answers, gate: GateSettings, *, slices: int, seed: int) -> bool:
    candidate, champion = _models(new, old, slices=slices)
    return judge(candidate, champion, gate, EvaluationSettings(), reloaded=_RELOADED, seed=seed).passed


def _models(new: Answers, old: Answers, *, slices: int = 0) -> tuple[Candidate, Champion]:
    classes, shape, nothing = Classes(("a", "b")), (8, 8, 1), Interval(0.0, 0.0, 0.0)
    accuracy = NamedMetric("accuracy", "accuracy", nothing, share=True)
    columns: dict[str, Sequence[str]] = {"slice": [str(row % slices) for row in range(len(new))]} if slices else {}
    labels, unseen = np.zeros(len(new), np.int64), np.zeros(len(new), np.bool_)
    candidate = Candidate(
        score=new.astype(np.float64), metrics={"accuracy": accuracy}, calibration_error=nothing,
        unit=ScoreUnit("accuracy", share=True), labels=labels, target=classes,
        input_shape=shape, saw=unseen, slices=columns,
    )  # fmt: skip
    champion = Champion(
        name="the champion", score=old.astype(np.float64), target=classes, input_shape=shape, saw=unseen
    )
    return candidate, champion


def share_promoted(
    pair: Pair, gate: GateSettings = BETTER, *, rows: int, sets: int, slices: int = 0, seed: int = 4
) -> float:
    """Return the share of new test sets on which the gate promotes the candidate at its first try.

    Args:
        pair: candidate and champion.
        gate: settings.
        rows: images of a test set.
        sets: number of test sets.
        slices: number of slices of each test set; 0: none.
        seed: of the draws.
    """
    generator = np.random.default_rng(seed)
    promoted = [_is_promoted(*pair.draw(generator, rows), gate, slices=slices, seed=number) for number in range(sets)]
    return float(np.mean(promoted))


@dataclass(frozen=True)
class History:
    """Candidates that were judged on one test set, one each night."""

    promotions: tuple[int, ...]  # nights, from 1
    wrong: tuple[int, ...]  # nights whose new champion is in truth no better than the old one
    excess: float  # the last champion's accuracy on the test images minus its true accuracy
    levels: tuple[float, ...]  # of each night


def simulate_nights(
    pair: Pair, *, rows: int, count: int = 90, better_on: int = 0, gate: GateSettings = BETTER, seed: int
) -> History:
    """Simulate one history of candidates that equal the first champion, except that of night `better_on`.

    A promoted candidate is the champion of the next night. The recipe of night `better_on` is better by `pair.better`
    and is used only once, so later candidates are worse than a champion from that night.

    Args:
        pair: the first champion, and the better candidate.
        rows: images of the test set.
        count: number of nights.
        better_on: night of the better candidate; 0: there is none.
        gate: settings.
        seed: of the draws.
    """
    generator = np.random.default_rng([seed, rows])
    better, equal = pair.chances(generator, rows)
    champion, truth = generator.random(rows) < equal, 0.0
    tries, promotions, wrong, levels = FIRST_TRY, [], [], []
    for night in range(1, count + 1):
        is_better = night == better_on
        new = generator.random(rows) < (better if is_better else equal)
        candidate, holder = _models(new, champion)
        comparison = Case(candidate, holder, gate, EvaluationSettings(), tries=tries).comparison
        assert comparison is not None, "there is a champion"
        levels.append(comparison.level)
        if comparison.won:  # the whole verdict only here: its bootstrap takes most of the time
            verdict = judge(candidate, holder, gate, EvaluationSettings(), reloaded=_RELOADED, tries=tries)
            assert verdict.passed, verdict.failed
        tries = Tries(count=tries.count + 1, spent=tries.spent + 1, new_rows=0.0)
        if comparison.won:
            promotions.append(night)
            if (pair.better if is_better else 0.0) <= truth:
                wrong.append(night)
            champion, truth, tries = new, pair.better if is_better else 0.0, FIRST_TRY
    accuracy = pair.accuracy + truth
    return History(tuple(promotions), tuple(wrong), float(champion.mean()) - accuracy, tuple(levels))


def levels_on(sets: Sequence[slice], *, minimum: int = BETTER.minimum_rows) -> list[float]:
    """Return the level of each comparison on test sets that are judged in turn, by the ledger's own count of tries.

    A set is a slice of one pool of rows. The level is 0 where a set has fewer rows than `minimum`: nothing is compared.
    """
    digests = np.random.default_rng(7).integers(1, 2**64, max(rows.stop for rows in sets), dtype=np.uint64)
    entries: list[LedgerEntry] = []
    levels = []
    for number, chosen in enumerate(sets, start=1):
        rows = Samples(digests[chosen], digests[chosen], np.zeros(len(digests[chosen]), np.uint64))
        before = tries_before(entries, rows, np.ones(len(rows), np.bool_))
        level = spend(before, confidence=BETTER.confidence)
        is_compared = len(rows) >= minimum
        comparison = ChampionTest(before.count + 1, len(rows), 1.0, level.level, level.remaining, won=False)
        verdict = Verdict(False, (ChampionResult(False, comparison=comparison if is_compared else None),))
        question = TryKey(f"run {number}", "1", "", rows, {})
        content = judgement(entries, question, before, verdict)
        entries.append(LedgerEntry(number, "", "", "judge", "", None, "", content, "", ""))
        levels.append(level.level if is_compared else 0.0)
    return levels


def share_with_a_promotion(pair: Pair, sets: Sequence[slice], *, histories: int, seed: int = 6) -> float:
    """Return the share of histories in which any of the equal candidates, one for each set, wins."""
    levels, generator, promoted = levels_on(sets), np.random.default_rng(seed), 0
    for _ in range(histories):
        _, equal = pair.chances(generator, max(rows.stop for rows in sets))
        champion = generator.random(len(equal)) < equal
        for rows, level in zip(sets, levels, strict=True):
            old, new = champion[rows], generator.random(len(equal[rows])) < equal[rows]
            if p_better(int(np.count_nonzero(new & ~old)), int(np.count_nonzero(old & ~new))) <= level:
                promoted += 1
                break
    return promoted / histories


def share_won_by_a_rarely_failing_model(
    rows: int, *, sets: int, rate: float = 0.01, tries: Tries = FIRST_TRY, seed: int = 5
) -> float:
    """Return how often a model wins that is a little better on most rows, and worse in truth.

    On a share `rate` of all rows it fails badly. The scores are those of numbers, without a bound. `tries` are those
    before this one.
    """
    generator, wins = np.random.default_rng(seed), 0
    target, unseen, unit = Numbers(("y",), (0.0,), (1.0,)), np.zeros(rows, np.bool_), ScoreUnit("MAE", -1.0, False)
    for _ in range(sets):
        old = -np.abs(generator.normal(size=rows))
        new = np.where(generator.random(rows) < rate, old - 20.0, old + np.abs(generator.normal(0.1, 0.05, rows)))
        candidate = Candidate(score=new, unit=unit, metrics={}, target=target, saw=unseen, kind="table")
        champion = Champion(name="the champion", score=old, target=target, saw=unseen)
        comparison = Case(candidate, champion, BETTER, EvaluationSettings(), tries=tries).comparison
        wins += comparison is not None and comparison.won
    return wins / sets


def detectable(accuracy: float, rows: int, *, confidence: float = 0.95) -> float:
    """Return the improvement that `gate.champion: better` promotes four times in five, at the first try.

    It is (z of the level + z of 0.8) standard errors.
    """
    from scipy.stats import norm

    level = spend(FIRST_TRY, confidence=confidence).level
    reach, better = float(norm.isf(level) + norm.ppf(_POWER)), 0.0
    for _ in range(20):  # the standard error depends on the improvement a little
        better = reach * math.sqrt((Pair(accuracy, better).differing - better**2) / rows)
    return better
