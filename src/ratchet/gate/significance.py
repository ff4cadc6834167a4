"""The test against the champion: its p-value, and the level that the p-value must reach at each try.

Candidates that are judged one after another on the same samples are many tests, and one of them passes by chance sooner
or later. So the error that `gate.confidence` leaves is spread over the tries by a fixed series (alpha spending: Foster
and Stine 2008, "Alpha-investing"; Tian and Ramdas 2021, "Online control of the familywise error rate"). The series adds
up to 1. By the union bound the chance of any wrong promotion is therefore at most the error, however the tries depend
on each other. Two things restore what was used: a promotion through the gate, after which the hypotheses are about
another champion (as in LORD, Javanmard and Montanari 2018), and a test set without any sample of an earlier one.

The levels are some hundred-thousandths, and a bootstrap of a few thousand resamples cannot give such p-values. So the
distributions are computed: exactly for scores of 0 and 1, by a saddlepoint approximation for real scores.
bench/gate_errors.py and tests/gate measure the error rates by simulation.
"""

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ratchet.evaluation.intervals import p_mean_above

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "FIRST_TRY",
    "Level",
    "Tries",
    "p_better",
    "p_larger_mean",
    "p_not_worse",
    "p_sign_flip",
    "p_unseen_losses",
    "rows_showing_failures",
    "spend",
]

_FIRST_SHARE = 0.3  # of the error: for the first few tries
_LATER_TRIES = 30  # the rest: about evenly over so many tries, then slowly falling
_ENUMERATED = 14  # differing rows up to which all sign patterns are counted
_REACH = 12.0  # standard deviations beyond which a probability is below 1e-30


@dataclass(frozen=True)
class Tries:
    """The tries before a comparison, counted from the ledger.

    Attributes:
        count: comparisons on these test samples since the last promotion through the gate.
        spent: number of tries whose level is used up.
        new_rows: share of the test samples that no earlier candidate was judged on.
    """

    count: int = 0
    spent: float = 0.0
    new_rows: float = 1.0


@dataclass(frozen=True)
class Level:
    """Largest p-value with which a comparison wins, and the error that remains for later ones."""

    level: float
    remaining: float


FIRST_TRY = Tries()


def spend(tries: Tries, *, confidence: float) -> Level:
    """Return the level of the next comparison."""
    error = 1.0 - confidence
    before, after = _spent(tries.spent), _spent(tries.spent + 1)
    return Level(level=error * (after - before), remaining=error * (1.0 - after))


def _spent(tries: float) -> float:
    """Return the share of the error that so many tries use up: concave, from 0 to 1."""
    return _FIRST_SHARE * tries / (tries + 1) + (1 - _FIRST_SHARE) * tries / (tries + _LATER_TRIES)


def p_better(wins: int, losses: int) -> float:
    """Return the p-value of "A is no better than B", given the numbers of rows on which A and B has the larger score.

    This is the exact sign test; for scores of 0 and 1, McNemar's test (1947) without approximation. If A is no better,
    it wins a row where the two differ with probability 1/2 at most. The other rows carry no information.
    """
    from scipy.stats import binom

    differing = wins + losses
    return float(binom.sf(wins - 1, differing, 0.5)) if differing else 1.0


def p_not_worse(wins: int, losses: int, rows: int, *, tolerance: float) -> float:
    """Return the p-value of "A's mean score is at least `tolerance` lower than B's", for scores of 0 and 1.

    Under that hypothesis the most likely share of rows that B wins has a closed form (Tango 1998, "Equivalence test and
    confidence interval for the difference in proportions for the paired-sample design"). With this share, the
    distribution of the difference is computed from the multinomial itself, not from its normal approximation. With a
    tolerance of 0 this is the sign test.
    """
    import numpy as np
    from scipy.stats import binom

    if tolerance == 0.0:
        return p_better(wins, losses)
    share = _least_favourable(wins, losses, rows, tolerance)
    either, win_share = 2 * share - tolerance, (share - tolerance) / (2 * share - tolerance)
    spread = _REACH * math.sqrt(rows * either * (1 - either)) + _REACH**2
    low, high = max(0, math.floor(rows * either - spread)), min(rows, math.ceil(rows * either + spread))
    differing = np.arange(low, high + 1)
    needed = np.ceil((differing + wins - losses) / 2)  # wins for a difference as large as the measured one
    tail = binom.pmf(differing, rows, either) * binom.sf(needed - 1, differing, win_share)
    return min(1.0, float(tail.sum()))


def _least_favourable(wins: int, losses: int, rows: int, tolerance: float) -> float:
    """Return the most likely share of rows that B wins, if A is worse by exactly `tolerance`."""
    linear = -(wins + losses) - tolerance * (2 * rows - wins + losses)
    root = math.sqrt(linear**2 - 8 * rows * losses * tolerance * (1 + tolerance))
    return min(max((root - linear) / (4 * rows), tolerance), (1 + tolerance) / 2)


def p_larger_mean(differences: "NDArray[np.float64]", *, tolerance: float = 0.0) -> float:
    """Return the p-value of "A's mean score is at least `tolerance` lower than B's", for real scores.

    It is the larger p-value of two tests. The sign-flip test is exact where the differences are symmetric, as they are
    for two models that are equally good. Where A is a little better on most rows and much worse on a few, their
    distribution is skewed, and the test with Hall's correction for skewness (see `p_mean_above`) protects.

    Args:
        differences: score of A minus score of B, (rows,), at least one.
        tolerance: drop of the mean that is allowed.
    """
    import numpy as np

    if not np.isfinite(differences).all():
        return 1.0  # such scores show nothing
    shifted = differences + tolerance
    return max(p_sign_flip(shifted), p_mean_above(shifted))


def rows_showing_failures(rate: float, *, level: float) -> int:
    """Return the number of rows on which failures on a share `rate` of all rows are absent with a chance below `level`.

    No test of a mean sees a failure that is not among its rows, and one failure can outweigh any small gain.
    """
    return math.ceil(math.log(level) / math.log1p(-min(rate, 0.5)))


def p_unseen_losses(total: float, sizes: "NDArray[np.float64]") -> float:
    """Return the p-value of "the mean is at most 0, by units that lose all and are not among the measured ones".

    A unit loses at most its size, while those that were measured gain `total` together. If only the `n` largest can
    lose, a mean of 0 needs losses on a share of them that outweighs the gain, and this is the chance to see none.

    Args:
        total: sum over the units.
        sizes: the largest possible loss of each unit, (units,).
    """
    import numpy as np

    if total <= 0.0:
        return 1.0
    needed = total / np.cumsum(np.sort(sizes)[::-1])
    return float(np.max(np.maximum(1.0 - needed, 0.0) ** np.arange(1, len(sizes) + 1)))


def p_sign_flip(differences: "NDArray[np.float64]") -> float:
    """Return the share of all ways to flip the signs of the differences whose sum is at least the measured one.

    Few differences are enumerated. For more, the share is Lugannani and Rice's saddlepoint approximation, whose
    relative error is small even far in the tail (Robinson 1982, "Saddlepoint Approximations for Permutation Tests and
    Confidence Intervals"). Half a step of the smallest difference is the correction for continuity, so scores that are
    multiples of one number have the p-value of their lattice.
    """
    import numpy as np

    sizes = np.abs(differences[differences != 0.0])
    total, count = float(differences.sum()), sizes.size
    if not count:
        return 1.0
    if count <= _ENUMERATED:
        signs = np.array(list(itertools.product((-1.0, 1.0), repeat=count)))
        return float(np.mean(signs @ sizes >= total - 1e-12 * sizes.sum()))
    corrected = total - float(sizes.min())
    if corrected <= 0.0:
        return 1.0 - _flip_tail(sizes, -corrected)
    least: float = 0.5**count
    return max(_flip_tail(sizes, corrected), least)


def _flip_tail(sizes: "NDArray[np.float64]", total: float) -> float:
    """Return the chance that the sizes with random signs add up to more than `total`, which is not negative."""
    import numpy as np
    from scipy.optimize import brentq
    from scipy.stats import norm

    scale = float(np.sqrt((sizes**2).sum()))
    sizes, total = sizes / scale, total / scale
    if total >= sizes.sum() * (1 - 1e-9):
        return float(0.5**sizes.size)
    if total < 1e-6:
        return 0.5
    highest = 1.0
    while float((sizes * np.tanh(highest * sizes)).sum()) < total:
        highest *= 2
    point = float(brentq(lambda at: float((sizes * np.tanh(at * sizes)).sum()) - total, 0.0, highest, xtol=1e-12))
    cumulants = float((point * sizes + np.log1p(np.exp(-2 * point * sizes)) - math.log(2)).sum())
    curvature = float((sizes**2 / np.cosh(np.minimum(point * sizes, 300.0)) ** 2).sum())
    away, slope = math.sqrt(max(2 * (point * total - cumulants), 0.0)), point * math.sqrt(curvature)
    if away < 1e-4 or slope == 0.0:
        return float(norm.sf(total))
    return min(1.0, max(0.0, float(norm.sf(away) + norm.pdf(away) * (1 / slope - 1 / away))))
