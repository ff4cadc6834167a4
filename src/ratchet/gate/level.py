"""The significance level of each comparison with the champion, so that all comparisons on one test set err with 5 %.

Candidates that are judged one after another on the same images are many tests, and one of them passes by chance sooner
or later. So the error that `gate.confidence` leaves is spread over the tries by a fixed series (alpha spending: Foster
and Stine 2008, "Alpha-investing"; Tian and Ramdas 2021, "Online control of the familywise error rate"). The series adds
up to 1. By the union bound the chance of any wrong promotion is therefore at most the error, however the tries depend
on each other. Two things restore what was used: a promotion through the gate, after which the hypotheses are about
another champion (as in LORD, Javanmard and Montanari 2018), and test images that no earlier candidate was judged on.

bench/gate_errors.py compares this series with others, LORD++, SAFFRON and ADDIS, by simulation.
"""

from dataclasses import dataclass

__all__ = ["FIRST_TRY", "Level", "Tries", "spend"]

_FIRST_SHARE = 0.3  # of the error: for the first few tries
_LATER_TRIES = 30  # the rest: about evenly over so many tries, then slowly falling


@dataclass(frozen=True)
class Tries:
    """The tries before a comparison, counted from the ledger.

    Attributes:
        count: comparisons since the last promotion through the gate.
        spent: number of tries whose level is used up. New test images restore a share, so it may be a fraction.
        new_rows: share of the test images that no earlier candidate was judged on; already subtracted from `spent`.
        reserved: the smallest gate.reserved_fraction of any earlier comparison; 1 if there was none.
    """

    count: int = 0
    spent: float = 0.0
    new_rows: float = 1.0
    reserved: float = 1.0


@dataclass(frozen=True)
class Level:
    """Largest p-value with which a comparison wins, and the error that remains for later ones."""

    level: float
    remaining: float
    error: float  # of all tries together: 1 - gate.confidence


FIRST_TRY = Tries()


def spend(tries: Tries, *, confidence: float) -> Level:
    """Return the level of the next comparison."""
    error = 1.0 - confidence
    before, after = _spent(tries.spent), _spent(tries.spent + 1)
    return Level(level=error * (after - before), remaining=error * (1.0 - after), error=error)


def _spent(tries: float) -> float:
    """Return the share of the error that so many tries use up: concave, from 0 to 1.

    Because it is concave, removing the share f of the tries restores at most the share f of the error.
    """
    return _FIRST_SHARE * tries / (tries + 1) + (1 - _FIRST_SHARE) * tries / (tries + _LATER_TRIES)
