"""Metrics of the user: functions of predictions and targets that evaluation.metrics names.

A function gets `Answers.metric_inputs` and returns a number. Its interval is the jackknife's, as that of the other
metrics which are no mean of rows. Above 500 rows, groups of rows are left out instead of single ones (Shao & Wu 1989),
so a function is called at most 501 times.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ratchet.errors import TrainingError, first_line
from ratchet.evaluation.answers import Answers
from ratchet.evaluation.intervals import Interval, mean_of
from ratchet.evaluation.jackknife import interval_of
from ratchet.evaluation.metrics import NamedMetric

__all__ = ["MetricFunction", "key_faults", "metric_key", "own_metrics"]

MetricFunction = Callable[[NDArray[Any], NDArray[Any]], Any]
"""Attributes `lower_is_better = True` and `share = True`, for a value between 0 and 1, are read if there are any."""

_GROUPS = 500
_SEED = 0  # of the groups, so that equal predictions have equal intervals


def metric_key(name: str) -> str:
    """Return the key of a metric in metrics.json: of "package.module:function" the function."""
    return name.rpartition(":")[2]


def key_faults(names: Collection[str], taken: Collection[str]) -> Iterator[str]:
    """Yield a message for each function of evaluation.metrics whose key another metric or a bound can have."""
    keys = [metric_key(name) for name in names]
    for name, key in zip(names, keys, strict=True):
        fault = ""
        if key.endswith(("_low", "_high")):
            fault = "a name with _low or _high at its end is that of a bound of an interval"
        elif key in taken or keys.count(key) > 1:
            other = "a metric of Ratchet" if key in taken else "another function of evaluation.metrics"
            fault = f"{other} is called {key}, too"
        if fault:
            yield f"evaluation.metrics: {name}: {fault}. Fix: rename the function"


def own_metrics(
    functions: Mapping[str, MetricFunction],
    answers: Answers,
    *,
    confidence: float,
    taken: Collection[str],
    line_of: Callable[[BaseException], str],
    report: Callable[[int, int, str], None] = lambda done, total, note: None,
) -> tuple[NamedMetric, ...]:
    """Return the user's metrics on the test rows.

    Args:
        functions: by the name in evaluation.metrics.
        taken: keys of other metrics.
        line_of: returns the line of the user's code that raised an error: "own/metrics.py, line 3"; empty: none did.
        report: called with progress in rows: a slow function is called hundreds of times.

    Raises:
        TrainingError: a function fails, or returns no finite number.
    """
    for fault in key_faults(functions, taken):
        raise TrainingError(fault)
    inputs = answers.metric_inputs
    metrics = (_OwnMetric(name, function, *inputs, line_of, report) for name, function in functions.items())
    return tuple(metric.measure(confidence) for metric in metrics)


@dataclass(frozen=True)
class _OwnMetric:
    """One function of the user, with predictions and targets of the test rows."""

    name: str
    function: MetricFunction
    predictions: NDArray[Any]
    targets: NDArray[Any]
    line_of: Callable[[BaseException], str]
    report: Callable[[int, int, str], None]

    @property
    def rows(self) -> int:
        return len(self.targets)

    def measure(self, confidence: float) -> NamedMetric:
        value, share = self._call(np.arange(self.rows)), bool(getattr(self.function, "share", False))
        if not math.isfinite(value):
            raise self._error(f"returned {value} for {self.rows} test rows. Allowed: a finite number")
        if share and not 0 <= value <= 1:
            raise self._error(f"returned {value:g}. Allowed with share = True: 0 to 1")
        influence = self._influence(value)
        if share:
            influence = influence if 0 < value < 1 else np.zeros(self.rows)  # Wilson's bounds depend on their number
            interval = interval_of(value, influence, "share", confidence=confidence)
        else:
            around = mean_of(value + influence, confidence=confidence)
            interval = Interval(min(around.low, value), value, max(around.high, value))
        key, smaller = metric_key(self.name), bool(getattr(self.function, "lower_is_better", False))
        return NamedMetric(key, key.replace("_", " ").strip() or key, interval, not smaller, share)

    def _influence(self, value: float) -> NDArray[np.float64]:
        """Return the influence of each group of rows, with mean 0; 0 where the metric needs the group to be defined."""
        groups = min(self.rows, _GROUPS)
        influence = np.zeros(groups)
        order = np.random.Generator(np.random.Philox(key=_SEED)).permutation(self.rows)
        group_of = np.empty(self.rows, np.int64)
        group_of[order] = np.arange(self.rows) % groups
        for group in range(groups if groups > 1 else 0):
            self.report(self.rows * group // groups, self.rows, f"interval of {metric_key(self.name)}")
            left = np.flatnonzero(group_of != group)
            if math.isfinite(without := self._call(left)):
                influence[group] = groups * (len(left) / self.rows) * (value - without)
        centred: NDArray[np.float64] = influence - influence.mean()
        return centred

    def _call(self, rows: NDArray[np.int64]) -> float:
        """Return the function's value for some rows. It gets copies, which it may change."""
        predictions, targets = self.predictions[rows], self.targets[rows]
        shapes = f"predictions of shape {predictions.shape} and targets of shape {targets.shape}"
        try:
            result = self.function(predictions, targets)
        except Exception as error:  # the user's code may raise anything
            place = f" ({line})" if (line := self.line_of(error)) else ""
            raise self._error(
                f"raised {type(error).__name__}: {first_line(error)}{place}; it was called with {shapes}. Allowed: a "
                "number, or nan where it is not defined"
            ) from error
        try:
            if getattr(result, "ndim", 0) or isinstance(result, str | bytes | np.complexfloating):
                raise TypeError
            return float(result)
        except (TypeError, ValueError, OverflowError, RuntimeError):  # the last: a complex tensor of torch
            shape = f" of shape {tuple(result.shape)}" if getattr(result, "shape", ()) else ""
            raise self._error(f"returned a {type(result).__name__}{shape}. Allowed: one number") from None

    def _error(self, fault: str) -> TrainingError:
        return TrainingError(f"evaluation.metrics: {self.name} {fault}. Fix: correct the function")
