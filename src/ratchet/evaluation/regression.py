"""Answers and metrics of predicted numbers on the test samples."""

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from ratchet.evaluation.answers import Answers, Columns, CommonAnswer, ScoreUnit
from ratchet.evaluation.constant_answer import by_score, common
from ratchet.evaluation.intervals import Interval, mean_of, median_of
from ratchet.evaluation.jackknife import RowMetric, RowTerms
from ratchet.evaluation.metrics import ConstantResult, Metric, Metrics, NamedMetric, Tabled
from ratchet.evaluation.slices import slices
from ratchet.problems import Numbers
from ratchet.settings.model import EvaluationSettings

__all__ = ["NumberAnswers", "NumberMetrics", "RegressionMetrics"]

Floats = NDArray[np.float64]

_ABSOLUTE, _SQUARE, _TRUE, _TRUE_SQUARE = range(4)  # terms of each number
_TERMS = 4
_ROUNDING = 1e-12
_SAME = 1e-3  # of the range of the middle 90 % of the true numbers: closer predictions are one answer
_NOT_IN_A_KEY = "[^A-Za-z0-9_.-]+"  # MLflow allows only the others in the name of a metric


@dataclass(frozen=True)
class NumberMetrics(Tabled):
    """Metrics of one predicted number, in its own units, or means over several, in training standard deviations."""

    name: str
    mae: Annotated[Interval, Metric("MAE", larger_is_better=False)]
    rmse: Annotated[Interval, Metric("RMSE", larger_is_better=False)]
    r2: Annotated[Interval | None, Metric("R2")]  # None: the true values do not differ
    median_error: Annotated[Interval, Metric("median absolute error", larger_is_better=False)]
    bias: Interval  # mean of predicted minus true value
    mean_mae: float  # MAE of predicting the mean of the training targets, for reference
    mean_rmse: float  # RMSE of the same


@dataclass(frozen=True, kw_only=True)
class RegressionMetrics(Metrics):
    """All metrics of predicted numbers on the test samples."""

    problem: Literal["regression"] = "regression"
    headline_key: ClassVar[str] = "mae"
    default_metric: ClassVar[str] = "r2"
    row_metric: ClassVar[Metric] = Metric("MAE", larger_is_better=False)

    average: NumberMetrics  # of the only number, or the mean over all in training standard deviations
    per_number: tuple[NumberMetrics, ...]

    @classmethod
    def keys(cls) -> list[str]:
        return NumberMetrics.keys()

    def _built_in(self) -> dict[str, NamedMetric]:
        metrics = self.average.named()
        if len(self.per_number) == 1:
            return metrics
        return {
            key: metric if key == "r2" else replace(metric, name=f"{metric.name} in SD")
            for key, metric in metrics.items()
        }

    @property
    def values(self) -> dict[str, float | None]:
        """Further values by name; those of one of several numbers as NAME.METRIC."""
        flat: dict[str, float | None] = {"bias": self.average.bias.value, "mean_mae": self.average.mean_mae}
        for number in self.per_number if len(self.per_number) > 1 else ():
            name = re.sub(_NOT_IN_A_KEY, "_", number.name)
            flat |= {f"{name}.{key}": metric.interval.value for key, metric in number.named().items()}
        return flat

    @property
    def by_output(self) -> tuple[NumberMetrics, ...]:
        return self.per_number


@dataclass(frozen=True)
class NumberAnswers(Answers):
    """Outputs in standard deviations of the training targets from their mean, targets in their own units."""

    target: Numbers

    metrics: ClassVar[type[Metrics]] = RegressionMetrics
    change_terms: ClassVar[tuple[str, str, str]] = (
        "hundredths of a standard deviation closer to the target",
        "Closer",
        "farther",
    )

    @functools.cached_property
    def predicted(self) -> Floats:
        """Predicted numbers in their own units, (rows, numbers)."""
        return self.target.predictions(self.outputs)

    @functools.cached_property
    def truth(self) -> Floats:
        """True numbers in their own units, (rows, numbers)."""
        return self.targets.astype(np.float64)

    @property
    def metric_inputs(self) -> tuple[Floats, Floats]:
        return self.predicted, self.truth

    @functools.cached_property
    def error(self) -> Floats:
        """Predicted minus true number, (rows, numbers)."""
        error: Floats = self.predicted - self.truth
        return error

    @functools.cached_property
    def score(self) -> Floats:
        """Score of each row: minus the absolute error in training standard deviations, the mean over the numbers."""
        score: Floats = -(np.abs(self.error) / np.array(self.target.std)).mean(axis=1)
        return score

    @property
    def unit(self) -> ScoreUnit:
        if len(self.target.names) == 1:
            return ScoreUnit("MAE", -self.target.std[0])
        return ScoreUnit("MAE in SD", -1.0)

    def truth_text(self, row: int) -> str:
        return ", ".join(f"{value:.6g}" for value in self.truth[row])

    def answer_text(self, row: int) -> str:
        return ", ".join(f"{value:.6g}" for value in self.predicted[row])

    @staticmethod
    def target_columns(target: Numbers) -> tuple[str, ...]:
        return tuple(f"target {name}" for name in target.names)

    @property
    def columns(self) -> dict[str, NDArray[Any]]:
        pairs = zip(self.target.names, self.targets.T, self.predicted.T, strict=True)
        return {
            column: values
            for name, target, predicted in pairs
            for column, values in ((f"target {name}", target), (f"predicted {name}", predicted))
        }

    def measure(
        self, settings: EvaluationSettings, columns: Columns = MappingProxyType({}), *, seed: int = 0
    ) -> RegressionMetrics:
        """Return all metrics of regression.

        Each number has its metrics in its own units. The means over several numbers are in standard deviations of the
        training targets, except R2, which is the plain mean (scikit-learn's uniform average).
        """
        names, std = self.target.names, np.array(self.target.std)
        off = (self.truth - self.truth.mean(axis=0)) / std  # centred, so that the sums of squares lose no digits
        off[:, np.ptp(self.truth, axis=0) == 0] = 0.0
        error = self.error / std
        terms = np.stack([np.abs(error), error**2, off, off**2], axis=2).reshape(self.rows, -1)
        rows = RowTerms(terms, settings.confidence)
        per_number = tuple(self._number(rows, [number], name) for number, name in enumerate(names))
        average = per_number[0] if len(names) == 1 else self._number(rows, range(len(names)), "mean over all")
        return RegressionMetrics(
            rows=self.rows,
            confidence=settings.confidence,
            average=average,
            per_number=per_number,
            slices=slices(self, columns, settings),
        )

    def _number(self, rows: RowTerms, numbers: Sequence[int], name: str) -> NumberMetrics:
        """Return the metrics of one number in its own units, or the means over several in standard deviations."""
        target, level = self.target, rows.confidence
        unit = target.std[numbers[0]] if len(numbers) == 1 else 1.0
        chosen, std, mean = list(numbers), np.array(target.std), np.array(target.mean)
        error = (self.error / std)[:, chosen] * unit
        reference = ((mean - self.truth) / std)[:, chosen] * unit  # the mean of the training targets is the prediction

        def over_numbers(metric: RowMetric) -> RowMetric:
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

    @property
    def common(self) -> CommonAnswer:
        middle = np.median(self.predicted, axis=0)
        low, high = np.quantile(self.truth, [0.05, 0.95], axis=0)
        reach = np.maximum(_SAME * (high - low), 1e-6 * np.abs(middle))  # the second: rounding of float32
        near = (np.abs(values - middle) <= reach for values in (self.predicted, self.truth))
        return common(_listed(middle), *(mask.all(axis=1) for mask in near))

    def against_constant(
        self, settings: EvaluationSettings, headline: NamedMetric, shares: Answers | None = None
    ) -> ConstantResult:
        medians = np.median(self.truth, axis=0)
        errors = -(np.abs(self.truth - medians) / np.array(self.target.std)).mean(axis=1)
        return by_score(self, headline, f"always answering {_listed(medians)}", errors, settings)


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


def _listed(values: Floats) -> str:
    return ", ".join(f"{value:.4g}" for value in values)
