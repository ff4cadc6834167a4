"""Baselines that predict the same for every sample."""

import numpy as np
import torch
from numpy.typing import NDArray

from ratchet.problems import Classes, Labels, Target

__all__ = ["fit_constant", "log_odds", "log_shares"]


def fit_constant(targets: NDArray[np.generic], target: Target) -> dict[str, torch.Tensor]:
    """Return the state of a `Constant`: log-frequencies, logits of the labels' frequencies, or the mean."""
    if isinstance(target, Classes):
        value = log_shares(targets, target.outputs)
    elif isinstance(target, Labels):
        value = log_odds(targets)
    else:
        value = np.zeros(target.outputs)
    return {"value": torch.tensor(value, dtype=torch.float32)}


def log_shares(targets: NDArray[np.generic], classes: int) -> NDArray[np.float64]:
    """Return the logarithms of the classes' frequencies, half a sample added to each class."""
    counts = np.bincount(targets.astype(np.int64), minlength=classes) + 0.5
    shares: NDArray[np.float64] = np.log(counts / counts.sum())
    return shares


def log_odds(targets: NDArray[np.generic]) -> NDArray[np.float64]:
    """Return the logits of the labels' frequencies, half a sample added to each side; targets 0 or 1 (n, labels)."""
    positive = targets.astype(np.float64).sum(0)
    odds: NDArray[np.float64] = np.log((positive + 0.5) / (len(targets) - positive + 0.5))
    return odds
