"""Result of a cross-validation, and intervals of means over several trainings."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np

from ratchet.evaluation.intervals import Interval
from ratchet.typed_json import STRICT, parse

__all__ = ["CrossValidation", "Fold", "mean_over_trainings"]

_RANGES = {
    **dict.fromkeys(("accuracy", "balanced_accuracy", "f1"), (0.0, 1.0)),
    **dict.fromkeys(("loss", "mae", "rmse"), (0.0, np.inf)),
    "r2": (-np.inf, 1.0),
    "perplexity": (1.0, np.inf),
}
"""Smallest and largest value of a validation metric."""


def mean_over_trainings(scores: Sequence[float], metric: str, *, confidence: float, held_out: float = 0.0) -> Interval:
    """Return the mean score of several trainings with Student's interval, as the corrected resampled t-test has it.

    The trainings of a cross-validation share most of their samples, so their scores differ less than those of
    independent ones. The variance of the mean is (1 / n + held_out) times that of the scores, not 1 / n (Nadeau and
    Bengio 2003, "Inference for the Generalization Error", Machine Learning 52).

    Args:
        scores: two or more.
        metric: its name; the interval stays within its range.
        held_out: samples that score a training, divided by those that it learns from; 0: the scores are independent.
    """
    from scipy.stats import t

    mean, count = float(np.mean(scores)), len(scores)
    spread = float(np.std(scores, ddof=1)) * (1 / count + held_out) ** 0.5
    half = float(t.ppf((1 + confidence) / 2, count - 1)) * spread
    low, high = _RANGES.get(metric.rpartition("/")[2], (-np.inf, np.inf))
    return Interval(max(mean - half, low), mean, min(mean + half, high))


@dataclass(frozen=True)
class Fold:
    """Training on all folds but one, and its metrics on that one.

    Attributes:
        number: of the fold, from 1.
        key: of the training.
        run_id: of its MLflow run; empty: MLflow did not answer.
        rows: number of samples of each split.
        best_epoch: epoch that was the best on the fold; the metrics are those of this epoch.
        metrics: by name, such as "validation/accuracy"; the one that chooses the epoch is first.
    """

    number: int
    key: str
    run_id: str
    rows: dict[str, int]
    best_epoch: int
    metrics: dict[str, float]

    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class CrossValidation:
    """Metrics of the same training on each of several folds.

    Attributes:
        key: digest of the data, settings and code.
        run_id: of the MLflow run with the folds' runs as children; empty: MLflow did not answer.
        confidence: level of the intervals.
    """

    key: str
    run_id: str
    confidence: float
    folds: tuple[Fold, ...]

    __pydantic_config__ = STRICT

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read it from a JSON file."""
        return parse(cls, path.read_bytes())

    @cached_property
    def held_out(self) -> float:
        """Mean over the folds of their validation samples divided by their training samples."""
        return float(np.mean([fold.rows["validation"] / fold.rows["train"] for fold in self.folds]))

    @property
    def best(self) -> str:
        """Name of the metric that chooses the best epoch."""
        return next(iter(self.folds[0].metrics))

    @property
    def intervals(self) -> dict[str, Interval]:
        """Mean over the folds and its confidence interval, of each metric that all folds have."""
        shared = [name for name in self.folds[0].metrics if all(name in fold.metrics for fold in self.folds)]
        return {
            name: mean_over_trainings(
                [fold.metrics[name] for fold in self.folds], name, confidence=self.confidence, held_out=self.held_out
            )
            for name in shared
        }
