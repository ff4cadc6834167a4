"""The metric of gate.minimum_metric is good enough (gate.minimum)."""

import math
from dataclasses import dataclass
from typing import Literal

from ratchet.errors import SettingsError
from ratchet.evaluation.metrics import NamedMetric
from ratchet.evaluation.own_metrics import metric_key
from ratchet.evaluation.problems import metric_fault
from ratchet.evaluation.wording import ci_text, range_text, value_text
from ratchet.gate.case import Case
from ratchet.gate.result_text import Noun, RuleText, percent, result_text

__all__ = ["MetricResult", "minimum"]


@dataclass(frozen=True)
class MetricResult:
    """A metric on the test samples, and the worst value that is allowed (gate.minimum)."""

    passed: bool
    metric: NamedMetric | None  # None: not defined on the test samples
    key: str
    confidence: float  # level of the interval
    minimum: float
    rows: int
    name: Literal["accuracy", "minimum"] = "minimum"

    def text(self, noun: Noun, kind: str) -> RuleText:
        metric = self.metric
        if metric is None:
            measured = f"{self.key} not defined on the {self.rows:,} test {noun[1]}"
            fix = "name another metric in gate.minimum_metric"
            return result_text(measured, f"gate.minimum {self.minimum:g}", passed=False, fix=fix)
        shown = percent(self.minimum) if metric.share else f"{self.minimum:g}"
        limit = f"{'minimum' if metric.larger_is_better else 'maximum'} {shown}"
        digits = 1 if self.passed else 2  # a value just below the minimum must not look like it
        measured = f"{metric.name} {ci_text(metric, self.confidence, digits=digits)}"
        if self.name == metric.name:  # the table has it in the column before
            measured = f"{value_text(metric, digits=digits)} ({range_text(metric, digits=digits)})"
        fix = f"train a better model, or {'lower' if metric.larger_is_better else 'raise'} gate.minimum"
        return result_text(measured, limit, passed=self.passed, fix=fix)


def minimum(case: Case) -> MetricResult | None:
    """Check that the metric of gate.minimum_metric is at least gate.minimum, or at most for an error; none: off.

    Raises:
        SettingsError: there is no such metric.
    """
    limit, candidate, chosen = case.gate.minimum, case.candidate, case.gate.minimum_metric
    key = candidate.default_metric if chosen == "auto" else metric_key(chosen)
    if key == "none":
        return None
    metric = candidate.metrics.get(key)
    for fault in metric_fault(chosen, candidate.target.problem, case.evaluation.metrics):
        raise SettingsError(f"params.yaml: {fault}")
    value = math.nan if metric is None else metric.interval.value
    passed = value <= limit if metric and not metric.larger_is_better else value >= limit
    name: Literal["accuracy", "minimum"] = "accuracy" if key == "accuracy" else "minimum"
    return MetricResult(passed, metric, key, case.evaluation.confidence, limit, len(candidate.score), name)
