"""One-sided p-values for "this model is better than that one on the same rows", accurate far out in the tail.

The gate compares many candidates on one test set, so it needs p-values of some hundred-thousandths. A bootstrap of a
few thousand resamples cannot give these. The distributions here are computed exactly.
"""

import math

__all__ = ["p_better", "p_not_worse"]

_REACH = 12.0  # standard deviations beyond which a probability is below 1e-30


def p_better(only_a: int, only_b: int) -> float:
    """Return the p-value of "A is no better than B", given the numbers of rows on which only A and only B is right.

    This is the exact sign test (McNemar 1947, without approximation). If A is no better, A is the one that is right
    with probability 1/2 at most, on each row where exactly one is right. The other rows carry no information.
    """
    from scipy.stats import binom

    differing = only_a + only_b
    return float(binom.sf(only_a - 1, differing, 0.5)) if differing else 1.0


def p_not_worse(only_a: int, only_b: int, rows: int, *, tolerance: float) -> float:
    """Return the p-value of "A's accuracy is at least `tolerance` lower than B's".

    Under that hypothesis the most likely share of rows on which only B is right has a closed form (Tango 1998,
    "Equivalence test and confidence interval for the difference in proportions for the paired-sample design"). With
    this share, the distribution of the difference is computed from the multinomial itself, not from its normal
    approximation. With a tolerance of 0 this is the sign test.
    """
    import numpy as np
    from scipy.stats import binom

    if tolerance == 0.0:
        return p_better(only_a, only_b)
    share = _least_favourable(only_a, only_b, rows, tolerance)
    either, given = 2 * share - tolerance, (share - tolerance) / (2 * share - tolerance)
    spread = _REACH * math.sqrt(rows * either * (1 - either)) + _REACH**2
    low, high = max(0, math.floor(rows * either - spread)), min(rows, math.ceil(rows * either + spread))
    differing = np.arange(low, high + 1)
    needed = np.ceil(
        (differing + only_a - only_b) / 2
    )  # rows on which only A is right, for a difference as large as the measured one
    tail = binom.pmf(differing, rows, either) * binom.sf(needed - 1, differing, given)
    return min(1.0, float(tail.sum()))


def _least_favourable(only_a: int, only_b: int, rows: int, tolerance: float) -> float:
    """Return the most likely share of rows on which only B is right, if A is worse by exactly `tolerance`."""
    linear = -(only_a + only_b) - tolerance * (2 * rows - only_a + only_b)
    root = math.sqrt(linear**2 - 8 * rows * only_b * tolerance * (1 + tolerance))
    return min(max((root - linear) / (4 * rows), tolerance), (1 + tolerance) / 2)
