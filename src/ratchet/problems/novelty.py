"""Novelty: how unusual the answer to a row is, beside the answers to test rows.

The score is GEN (Liu, Lochman & Zach, "GEN: Pushing the Limits of Softmax-Based Out-of-Distribution Detection", 2023),
a generalised entropy that needs only probabilities. It is comparable among rows as the share of test rows with a
lower score. Of two classes it ranks rows as the confidence does.

The package does not import this module: its code decides no weight.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["NOVELTY", "Novelty"]

Floats = NDArray[np.float64]

NOVELTY = "novelty.json"
"""File of a stored version with its quantiles."""
_POWER = 0.1  # as the paper
_LEAST = 1e-30  # probability: far below what float32 answers of a network have
_QUANTILES = 1000


@dataclass(frozen=True)
class Novelty:
    """Evenly spaced quantiles of the scores of test rows, in rising order; all scores, if they are few."""

    rows: int
    quantiles: tuple[float, ...]
    format: Literal[1] = 1

    @classmethod
    def of(cls, predictions: NDArray[np.floating[Any]]) -> "Novelty":
        """Return the quantiles by probabilities (rows, classes) of test rows, as the model serves them."""
        scores = np.sort(_scores(predictions))
        places = np.linspace(0, len(scores) - 1, min(len(scores), _QUANTILES)).astype(np.int64)
        return cls(len(scores), tuple(scores[places].tolist()))

    def shares(self, predictions: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
        """Return the share of test rows that are less unusual than each row of probabilities, (n,)."""
        below = np.searchsorted(self.quantiles, _scores(predictions), side="left")
        return (below / max(1, len(self.quantiles))).astype(np.float32)


def _scores(predictions: NDArray[np.floating[Any]]) -> Floats:
    """Return GEN of each row: the sum of p^0.1 (1 - p)^0.1. 1 - p is the sum of the others: near 1, p is rounded."""
    ordered = np.sort(predictions.astype(np.float64, order="C"), axis=1)
    rest = 1.0 - ordered
    rest[:, -1] = ordered[:, :-1].sum(axis=1)
    # A product with a matrix would round a row by how many there are
    scores: Floats = ((np.maximum(ordered, _LEAST) * np.maximum(rest, _LEAST)) ** _POWER).sum(axis=1)
    return np.where(np.isfinite(scores), scores, np.inf)
