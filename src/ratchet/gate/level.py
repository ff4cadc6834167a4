"""The level of each comparison with the champion, so that all comparisons on one test set err with 5 % together.

Candidates that are judged one after another on the same rows are many tests, and one of them passes by luck sooner or
later. So the error that `gate.confidence` leaves is spent over the tries by a fixed series (alpha spending: Foster and
Stine 2008, "Alpha-investing"; Tian and Ramdas 2021, "Online control of the familywise error rate"). The sum of the
series is 1, so by the union bound the chance of any wrong promotion is at most the error, whatever the dependence
between the tries. Two things restore what was spent: a promotion through the gate, after which the hypotheses are about
another champion (as in LORD, Javanmard and Montanari 2018), and test rows that no earlier candidate was judged on.

bench/gate_errors.py compares this series with others, LORD++, SAFFRON and ADDIS, by simulation.
"""

from dataclasses import dataclass

__all__ = ["FIRST_TRY", "Level", "Tries", "spend"]

_AT_ONCE = 0.3  # of the error: spent on the first few tries
_LATER_TRIES = 30  # the rest: about evenly over so many tries, then slowly falling


@dataclass(frozen=True)
class Tries:
    """The tries that came before a comparison, as the ledger has them.

    Attributes:
        count: comparisons since the last promotion through the gate.
        spent: for how many tries level is spent. New rows restore a share of it, so it need not be a whole number.
        new_rows: share of the test rows that no earlier candidate was judged on; it is already taken off `spent`.
        reserved: the smallest gate.reserved_fraction of any earlier comparison; 1 if there was none.
    """

    count: int = 0
    spent: float = 0.0
    new_rows: float = 1.0
    reserved: float = 1.0


@dataclass(frozen=True)
class Level:
    """The p-value that a comparison needs, and what remains for later ones."""

    level: float
    left: float
    error: float  # of all tries together: 1 - gate.confidence


FIRST_TRY = Tries()


def spend(tries: Tries, *, confidence: float) -> Level:
    """Return the level of the next comparison."""
    error = 1.0 - confidence
    before, after = _spent(tries.spent), _spent(tries.spent + 1)
    return Level(level=error * (after - before), left=error * (1.0 - after), error=error)


def _spent(tries: float) -> float:
    """The share of the error that so many tries spend: concave, from 0 to 1.

    Being concave, it makes room: taking the share f off the tries takes at most f off what is spent.
    """
    return _AT_ONCE * tries / (tries + 1) + (1 - _AT_ONCE) * tries / (tries + _LATER_TRIES)
