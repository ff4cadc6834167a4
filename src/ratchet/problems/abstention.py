"""Abstention: thresholds of confidence from which the answers have at most a stated error rate.

Selective classification with guaranteed risk (Geifman & El-Yaniv, "Selective Classification for Deep Neural Networks",
2017). A threshold answers the rows above it. The error rate among these has an exact binomial upper bound (Clopper &
Pearson 1934) from validation rows. The paper corrects the bound for its binary search. Here the candidates answer fixed
shares of the validation rows: given the confidence of the first row below a candidate, the rows above it are
independent draws, so the bound holds. Bonferroni's correction lets all bounds hold at once, so any rate may be asked.

The package does not import this module: its code decides no weight.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["ABSTENTION", "Abstention"]

Floats = NDArray[np.float64]
Booleans = NDArray[np.bool_]

ABSTENTION = "abstention.json"
"""File of a stored version with its thresholds."""
_CANDIDATES = 20
_SHARE, _LEAST = 1e-3, 1e-7  # of the distance to 1, and at least: rounding of another runtime moves no group of ties


@dataclass(frozen=True)
class Abstention:
    """Thresholds of one model. Confidence is the probability of the most probable class.

    Attributes:
        rows: validation rows.
        confidence: probability that all bounds hold at once.
        thresholds: a row is answered if its confidence is above; in falling order, the last answers all rows.
        bounds: upper bound of the error rate among the rows that each threshold answers.
    """

    rows: int
    confidence: float
    thresholds: tuple[float, ...]
    bounds: tuple[float, ...]
    format: Literal[1] = 1

    @classmethod
    def of(cls, confidences: Floats, right: Booleans, *, confidence: float) -> "Abstention":
        """Return the thresholds by the confidence of validation rows, (rows,), and whether each is right."""
        ordered, rows = np.sort(np.nan_to_num(confidences, nan=0.0))[::-1], len(confidences)
        ranks = dict.fromkeys(-(-rows * number // _CANDIDATES) for number in range(1, _CANDIDATES + 1))
        nearest = [float(ordered[rank]) if rank < rows else None for rank in ranks if rank]
        thresholds = [0.0 if each is None else each + _SHARE * (1.0 - each) + _LEAST for each in nearest]
        tail = (1.0 - confidence) / _CANDIDATES
        bounds = [_bound(right[confidences > threshold], tail) for threshold in thresholds]
        return cls(rows, confidence, tuple(thresholds), tuple(bounds))

    @property
    def lowest(self) -> float:
        """The lowest error rate that can be asked for; 1: none can."""
        return min(self.bounds, default=1.0)

    def threshold(self, rate: float) -> float:
        """Return the threshold for an error rate from `lowest`: the one that answers most rows."""
        return min(at for at, bound in zip(self.thresholds, self.bounds, strict=True) if bound <= rate)

    def abstains(self, predictions: NDArray[np.floating[Any]], rate: float) -> Booleans:
        """Return which rows, of probabilities (n, classes), have no answer at an error rate from `lowest`."""
        abstains: Booleans = ~(predictions.max(axis=1).astype(np.float64) > self.threshold(rate))
        return abstains


def _bound(right: Booleans, tail: float) -> float:
    """Return the upper bound of the error rate, whose probability of being too low is `tail`."""
    from scipy.stats import beta

    wrong = int(np.count_nonzero(~right))
    return float(beta.isf(tail, wrong + 1, len(right) - wrong)) if wrong < len(right) else 1.0
