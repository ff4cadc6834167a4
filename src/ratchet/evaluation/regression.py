"""Metrics of predicted numbers on the test samples."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from ratchet.evaluation.answers import NumberAnswers
from ratchet.evaluation.intervals import Interval, mean_of, median_of
from ratchet.evaluation.jackknife import Metric, RowTerms
from ratchet.evaluation.metrics import NumberMetrics, RegressionMetrics
from ratchet.evaluation.slices import score_slices
from ratchet.settings.model import EvaluationSettings

__all__ = ["measure_numbers"]

Floats = NDArray[np.float64]

_ABSOLUTE, _SQUARE, _TRUE, _TRUE_SQUARE = range(4)  # terms of each number
_TERMS = 4
_ROUNDING = 1e-12


def measure_numbers(
    answers: NumberAnswers,
    *,
    settings: EvaluationSettings,
    columns: Mapping[str, Sequence[str | None]] = MappingProxyType({}),
) -> RegressionMetrics:
    """Return all metrics of regression.

    Each number has its metrics in its own units. The means over several numbers are in standard deviations of the
    training targets, except R2, which is the plain mean (scikit-learn's uniform average).

    Args:
        answers: outputs and targets of the test rows.
        settings: of the evaluation.
        columns: by name, the value of each row to slice by; None: the row is in no slice of that column.
    """
    names, std = answers.target.names, np.array(answers.target.std)
    off = (answers.truth - answers.truth.mean(axis=0)) / std  # centred, so that the sums of squares lose no digits
    off[:, np.ptp(answers.truth, axis=0) == 0] = 0.0
    error = answers.error / std
    terms = np.stack([np.abs(error), error**2, off, off**2], axis=2).reshape(answers.rows, -1)
    rows = RowTerms(terms, settings.confidence)
    per_number = tuple(_measured(answers, rows, [number], name) for number, name in enumerate(names))
    average = per_number[0] if len(names) == 1 else _measured(answers, rows, range(len(names)), "mean over all")
    return RegressionMetrics(
        rows=answers.rows,
        confidence=settings.confidence,
        average=average,
        per_number=per_number,
        slices=score_slices(answers, columns, settings),
    )


def _measured(answers: NumberAnswers, rows: RowTerms, numbers: Sequence[int], name: str) -> NumberMetrics:
    """Return the metrics of one number in its own units, or the means over several in standard deviations."""
    target, level = answers.target, rows.confidence
    unit = target.std[numbers[0]] if len(numbers) == 1 else 1.0
    chosen, std, mean = list(numbers), np.array(target.std), np.array(target.mean)
    error = (answers.error / std)[:, chosen] * unit
    reference = ((mean - answers.truth) / std)[:, chosen] * unit  # the mean of the training targets is the prediction

    def over_numbers(metric: Metric) -> Metric:
        return lambda means: np.mean(
            [metric(means[..., number * _TERMS : (number + 1) * _TERMS]) for number in chosen], axis=0
        )

    return NumberMetrics(
        name=name,
        mae=_required(rows.interval(over_numbers(lambda means: unit * means[..., _ABSOLUTE]), "positive")),
        rmse=_required(rows.interval(over_numbers(lambda means: unit * np.sqrt(means[..., _SQUARE])), "positive")),
        r2=rows.interval(over_numbers(_r2), "at most 1"),
        median_error=median_of(np.abs(error).mean(axis=1), confidence=level),
        bias=mean_of(error.mean(axis=1), confidence=level),
        mean_mae=float(np.abs(reference).mean()),
        mean_rmse=float(np.sqrt((reference**2).mean(axis=0)).mean()),
    )


def _r2(means: Floats) -> Floats:
    """Return the coefficient of determination; NaN where the true values do not differ."""
    variance = means[..., _TRUE_SQUARE] - means[..., _TRUE] ** 2
    # True values are centred, so these moments of equal ones are 0, or in a resample differ by rounding alone.
    differ = variance > _ROUNDING * means[..., _TRUE_SQUARE]
    r2: Floats = np.where(differ, 1 - means[..., _SQUARE] / np.where(differ, variance, 1.0), np.nan)
    return r2


def _required(interval: Interval | None) -> Interval:
    assert interval is not None, "errors of checked predictions are finite"
    return interval
