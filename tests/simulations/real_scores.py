"""Simulated differences of two models' real scores, and the coverage of intervals of regression metrics.

In every case the two models are equally good: the mean of the differences is 0.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from ratchet.evaluation.regression import NumberAnswers
from ratchet.gate.significance import p_larger_mean
from ratchet.problems import Numbers
from ratchet.settings.model import EvaluationSettings

__all__ = ["DIFFERENCES", "coverage", "share_won"]

Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Floats]


def _two_seeds(generator: np.random.Generator, rows: int) -> Floats:
    """Return differences of absolute errors of one recipe with two seeds: hard rows have large errors."""
    size = generator.lognormal(0, 1, rows)
    return np.abs(size * generator.normal(size=rows)) - np.abs(size * generator.normal(size=rows))


def _lattice(generator: np.random.Generator, rows: int) -> Floats:
    """Return differences of shares of five right labels; most rows have the same share."""
    return (generator.binomial(5, 0.06, rows) - generator.binomial(5, 0.06, rows)) / 5


def _often_better(generator: np.random.Generator, rows: int) -> Floats:
    """Return a model that is a little better on most rows and much worse on a few: negative skewness 2."""
    return 1 - generator.exponential(1, rows)


def _often_worse(generator: np.random.Generator, rows: int) -> Floats:
    return generator.exponential(1, rows) - 1


DIFFERENCES: Mapping[str, Draw] = MappingProxyType(
    {
        "two seeds": _two_seeds, "lattice": _lattice,
        "heavy tails": lambda generator, rows: generator.standard_t(3, rows),
        "often better": _often_better, "often worse": _often_worse,
    }
)  # fmt: skip


def share_won(draw: Draw, *, rows: int, sets: int, level: float, better: float = 0.0, seed: int = 0) -> float:
    """Return the share of test sets on which the candidate wins at this level; `better` is added to its scores."""
    generator = np.random.default_rng(seed)
    return float(np.mean([p_larger_mean(draw(generator, rows) + better) <= level for _ in range(sets)]))


def coverage(noise: str, *, rows: int, sets: int) -> dict[str, float]:
    """Return for each regression metric the share of test sets whose 95 % interval contains the true value.

    Args:
        noise: of the errors: normal, gamma (larger for larger targets) or lognormal (heavy tails).
        rows: of a test set.
        sets: number of test sets.
    """
    settings = EvaluationSettings()
    truth = _regression(noise, 500_000, seed=sets).measure(settings).named()
    held = dict.fromkeys(truth, 0)
    for seed in range(sets):
        for key, metric in _regression(noise, rows, seed=seed).measure(settings).named().items():
            held[key] += metric.interval.low <= truth[key].interval.value <= metric.interval.high
    return {key: count / sets for key, count in held.items()}


def _regression(noise: str, rows: int, *, seed: int) -> NumberAnswers:
    generator = np.random.default_rng([seed, rows])
    if noise == "lognormal":
        targets = np.exp(generator.normal(2, 0.7, rows))
        answers = targets * np.exp(generator.normal(0, 0.4, rows))
    else:
        targets = generator.normal(0, 2, rows) if noise == "normal" else generator.gamma(2, 30, rows)
        answers = targets + generator.normal(size=rows) * (1 if noise == "normal" else np.sqrt(targets))
    target = Numbers(("number",), (0.0,), (1.0,))
    return NumberAnswers(answers[:, None].astype(np.float32), targets[:, None].astype(np.float32), target)
