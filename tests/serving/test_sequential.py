"""The tests of a canary: how often they are wrong, and after how many requests they are right."""

import random
from collections.abc import Callable

import pytest

from ratchet.serving.sequential import MoreErrors, Slower

ALPHA = 0.01
RUNS = 400


def alarms(add: Callable[[random.Random], float], pairs: int, chance: random.Random) -> int | None:
    """Return the pair after which the evidence reaches 1 / ALPHA; None: it does not."""
    return next((pair for pair in range(1, pairs + 1) if add(chance) >= 1 / ALPHA), None)


def ends(make: Callable[[], Callable[[random.Random], float]], pairs: int) -> list[int | None]:
    return [alarms(make(), pairs, random.Random(run)) for run in range(RUNS)]


def errors(rate: float, served: float) -> Callable[[], Callable[[random.Random], float]]:
    def make() -> Callable[[random.Random], float]:
        test = MoreErrors()

        def add(chance: random.Random) -> float:
            test.add(chance.random() < rate, chance.random() < served)
            return test.evidence

        return add

    return make


def seconds(scale: float, factor: float) -> Callable[[], Callable[[random.Random], float]]:
    """Times of which one in twenty is ten times as long."""

    def one(chance: random.Random) -> float:
        return chance.lognormvariate(0.0, 0.4) * (10.0 if chance.random() < 0.05 else 1.0)

    def make() -> Callable[[random.Random], float]:
        test = Slower(factor)

        def add(chance: random.Random) -> float:
            test.add(scale * one(chance), one(chance))
            return test.evidence

        return add

    return make


@pytest.mark.parametrize(
    "make",
    [errors(0.02, 0.02), errors(0.3, 0.3), seconds(1.0, 1.0), seconds(1.2, 1.5)],
)
def test_version_that_is_not_worse_is_rarely_withdrawn(
    make: Callable[[], Callable[[random.Random], float]],
) -> None:
    wrong = sum(end is not None for end in ends(make, 1000))
    assert wrong <= 10  # 4 are expected at most; 11 of 400 have a probability of .003 at a rate of .01


@pytest.mark.parametrize(
    ("make", "pairs"),
    [(errors(1.0, 0.0), 20), (errors(0.2, 0.0), 150), (errors(0.1, 0.01), 500), (seconds(3.0, 1.5), 150)],
)
def test_worse_version_is_withdrawn_soon(make: Callable[[], Callable[[random.Random], float]], pairs: int) -> None:
    right = sum(end is not None for end in ends(make, pairs))
    assert right >= 0.95 * RUNS
