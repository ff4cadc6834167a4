"""Error rates of the gate, by simulation (G1, G7).

    python -m bench.gate_errors [--rounds 2000] [--only one slices nights sets failures series]

The pairs of models are those of tests/simulations/gate.py, and the gate's own `judge` decides about promotion. `one` is
the first try on a test set. `slices` is the same with slices. `nights` are histories: each night another candidate is
judged on the same images, and a promoted one is the champion of the next night. `sets` are nights on test sets that
grow, shrink, alternate or overlap. `failures` are models whose scores have no bound, and that rarely fail. `series`
compares the gate's series of levels with others from the literature.
"""

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from bench import online_testing
from bench.report import Row, alone, options
from ratchet.gate.significance import FIRST_TRY, Tries, p_better, spend
from ratchet.settings.model import GateSettings
from tests.simulations.gate import (
    BETTER,
    FIVE_PER_CENT,
    Answers,
    Pair,
    detectable,
    share_promoted,
    share_with_a_promotion,
    share_won_by_a_rarely_failing_model,
    simulate_nights,
)

__all__ = ["measure"]

PARTS = ("one", "slices", "nights", "sets", "failures", "series")

_SLICES = 10
_NOT_WORSE = GateSettings(minimum=0.0, champion="not-worse", tolerance=0.01)
_NIGHTS = 90
_BETTER_NIGHT = 30
_SETS: Mapping[str, tuple[slice, ...]] = {
    "the same 500 rows": (slice(0, 500),) * _NIGHTS,
    "the same 500 rows, and 20 new rows before each night": tuple(
        rows for night in range(_NIGHTS) for rows in (slice(500 + 20 * night, 520 + 20 * night), slice(0, 500))
    ),
    "500 rows that grow by 20 each night": tuple(slice(0, 500 + 20 * night) for night in range(_NIGHTS)),
    "2,280 rows that shrink by 20 each night": tuple(slice(20 * night, 2280) for night in range(_NIGHTS)),
    "two sets of 500 rows in turn": tuple(
        slice(600 * (night % 2), 600 * (night % 2) + 500) for night in range(_NIGHTS)
    ),
    "500 rows, 20 replaced each night": tuple(slice(20 * night, 20 * night + 500) for night in range(_NIGHTS)),
    "500 rows, 250 replaced each night": tuple(slice(250 * night, 250 * night + 500) for night in range(_NIGHTS)),
}
"""Test sets of equal candidates, as rows of one pool."""


def measure(rounds: int, *, quick: bool, only: Sequence[str] = PARTS) -> list[Row]:
    """Return the rows of the table."""
    rows: list[Row] = []
    sizes = (100,) if quick else (300, 1000, 3000, 10_000)
    rounds = 20 if quick else rounds
    if "one" in only:
        rows += _one(rounds, sizes)
    if "slices" in only:
        rows += _slices(rounds, sizes)
    if "nights" in only:
        rows += _nights(rounds // 2, sizes)
    if "sets" in only:
        rows += _sets(rounds // 2)
    if "failures" in only:
        rows += _failures(rounds)
    if "series" in only:
        rows += _series(rounds, rows=sizes[-1])
    return rows


def _one(sets: int, sizes: Sequence[int]) -> list[Row]:
    rows = []
    level = spend(FIRST_TRY, confidence=0.95).level
    for size, better, (how, gate) in itertools.product(
        sizes, (0.0, 0.01, -0.01), (("better", BETTER), ("not-worse by 1 point", _NOT_WORSE))
    ):
        share = share_promoted(Pair(0.9, better), gate, rows=size, sets=sets)
        claimed = (how == "better" and better <= 0.0) or (how != "better" and better < 0.0)
        most = level + 3 * math.sqrt(level / sets)
        condition = f"{size:,} images, {better * 100:+.0f} points, {how}"
        rows.append(_row(condition, share, at_most=most if claimed else None))
    for size, accuracy in itertools.product(sizes, (0.8, 0.9, 0.95)):
        least = detectable(accuracy, size)
        share = share_promoted(Pair(accuracy, least), rows=size, sets=max(1, sets // 2))
        rows.append(_row(f"{size:,} images, champion {accuracy:.0%}, +{least * 100:.1f} points", share))
    return rows


def _slices(sets: int, sizes: Sequence[int]) -> list[Row]:
    rows = []
    for size, better in itertools.product(sizes[1:3], (0.0, 0.03)):
        for slices in (0, _SLICES):
            share = share_promoted(Pair(0.9, better), rows=size, sets=max(1, sets // 4), slices=slices)
            rows.append(_row(f"{size:,} images, {better * 100:+.0f} points, better, {slices} slices", share))
    return rows


def _nights(sets: int, sizes: Sequence[int]) -> list[Row]:
    rows = []
    cases = [(size, Pair(0.9, 0.0)) for size in sizes[:3]] + [(sizes[-1], Pair(0.93, 0.0))]
    for size, pair in cases:
        histories = [simulate_nights(pair, rows=size, seed=number) for number in range(sets)]
        share = float(np.mean([bool(history.wrong) for history in histories]))
        excess = float(np.mean([history.excess for history in histories])) * 100
        condition = f"{_NIGHTS} equal nights on {size:,} images, champion {pair.accuracy:.0%}"
        rows.append(_row(f"{condition}: a promotion", share, at_most=0.05))
        rows.append(_figure(f"{condition}: the champion's test accuracy is too high by", f"{excess:+.2f} points"))
    size = sizes[-1]
    histories = [
        simulate_nights(FIVE_PER_CENT, rows=size, better_on=_BETTER_NIGHT, seed=10_000 + number)
        for number in range(sets)
    ]
    condition = f"night {_BETTER_NIGHT} better by 1 point, all others equal, on {size:,} images"
    power = float(np.mean([_BETTER_NIGHT in history.promotions for history in histories]))
    differing = f"{FIVE_PER_CENT.differing:.1%} of the images answered differently"
    rows.append(_row(f"{condition}, {differing}: it is promoted", power, at_least=0.8))
    rows.append(
        _row(f"{condition}: any wrong promotion", float(np.mean([bool(history.wrong) for history in histories])))
    )
    wins = [history for history in histories if _BETTER_NIGHT in history.promotions]
    if wins:
        after = float(np.mean([history.levels[_BETTER_NIGHT] for history in wins]))
        before = float(np.mean([history.levels[_BETTER_NIGHT - 1] for history in wins]))
        rows.append(_figure(f"{condition}: level before and after its promotion", f"{before:.2g}, {after:.2g}"))
    return rows


def _sets(histories: int) -> list[Row]:
    rows = []
    for name, sets in _SETS.items():
        restored = 2 if "in turn" in name else 1  # test sets without a common row
        share = share_with_a_promotion(Pair(0.9, 0.0), sets, histories=histories)
        rows.append(_row(f"{_NIGHTS} equal nights, {name}: a promotion", share, at_most=0.05 * restored))
    return rows


def _failures(sets: int) -> list[Row]:
    rows = []
    for size, before, rate in (
        *((size, 0, 0.01) for size in (300, 472, 473, 700, 1000)),
        *((size, 29, 0.01) for size in (802, 803)),
        (1000, 0, 0.002),
    ):
        tries = Tries(count=before, spent=before)
        share = share_won_by_a_rarely_failing_model(size, sets=sets, rate=rate, tries=tries)
        level = spend(tries, confidence=0.95).level
        most = None if rate < 0.01 else level + 3 * math.sqrt(level / sets)
        rows.append(_row(f"{size:,} rows, try {before + 1}, worse by failures on {rate:.1%}", share, at_most=most))
    return rows


def _series(sets: int, *, rows: int) -> list[Row]:
    """Compare procedures on the p-values of the same histories. The champion is not replaced in these."""
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
        results.append(_figure(f"{name}: +1 point on {rows:,} images promoted", figures))
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
    alone(parser, lambda options: measure(options.rounds, quick=options.quick, only=options.only))
