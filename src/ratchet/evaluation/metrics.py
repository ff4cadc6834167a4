"""The common part of all problems' metrics, as values that are written to JSON and read back.

A problem's metrics are a dataclass with a field for each. A metric with an interval has its line of the problem's table
beside its type: `mae: Annotated[Interval, Metric("MAE", larger_is_better=False)]`. Command line, pages, MLflow and
gate.minimum_metric read this table.
"""

import functools
import operator
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, get_args, get_origin, get_type_hints

from pydantic import Field

from ratchet.evaluation.coverage import CoverageMetrics
from ratchet.evaluation.intervals import Interval
from ratchet.evaluation.selective import AbstentionMetrics
from ratchet.evaluation.slices import Slice

__all__ = ["BaselineResult", "ConstantResult", "Metric", "Metrics", "NamedMetric", "Tabled", "bounds"]


@dataclass(frozen=True)
class Metric:
    """A line of a problem's table of metrics."""

    title: str  # for people: "MAE", or "top-{k} accuracy" with fields of the metrics
    larger_is_better: bool = True
    share: bool = False  # shown in per cent
    key: str = ""  # as in metrics.json and gate.minimum_metric; empty: the name of the field


@dataclass(frozen=True)
class NamedMetric:
    """A metric with its interval, and how people read it."""

    key: str  # as in metrics.json and gate.minimum_metric
    name: str  # for people: "MAE"
    interval: Interval
    larger_is_better: bool = True
    share: bool = False  # shown in per cent


@dataclass(frozen=True)
class BaselineResult:
    """Comparison of the model with a baseline on the same test rows."""

    name: str  # such as "gradient boosting"
    headline: NamedMetric  # of the baseline
    network: NamedMetric  # the same metric of the model
    difference: Interval  # of the metric, paired by rows; above 0 where the model is better
    network_is_better: bool  # significantly, and also than the best constant answer
    rows: int = 0  # 0: written before it was recorded


@dataclass(frozen=True)
class ConstantResult:
    """Comparison of the model with the best constant answer to the same test rows."""

    name: str  # "always answering 'ants'"
    headline: NamedMetric  # of the model
    trivial: float  # the headline metric of the best constant answer
    metric: NamedMetric  # of the model: the one that decides
    constant: float  # the same metric of a constant answer
    difference: Interval  # of that metric; above 0 where the model is better
    smallest: float  # difference that so many rows can show
    answer: str = ""  # the model's most frequent answer; "": not known
    answered: int = 0  # rows that get it
    one_answer: bool = False  # the model gives it to nearly all rows, though the truth differs on clearly more

    @property
    def is_better(self) -> bool:
        """Whether the model is significantly better than any constant answer."""
        return self.difference.low > 0.0 and not self.one_answer

    @property
    def trivial_metric(self) -> NamedMetric:
        """The headline metric of the best constant answer, without an interval."""
        return replace(self.headline, interval=Interval(self.trivial, self.trivial, self.trivial))


class Tabled:
    """A dataclass whose fields carry lines of a table of metrics."""

    @classmethod
    @functools.cache
    def table(cls) -> Mapping[str, Metric]:
        """Return the lines by the name of their field."""
        hints = get_type_hints(cls, include_extras=True).items()
        lines = {name: get_args(hint)[1:] for name, hint in hints if get_origin(hint) is Annotated}
        return {name: line for name, (line, *_) in lines.items() if isinstance(line, Metric)}

    @classmethod
    def keys(cls) -> list[str]:
        """Return the keys that `named` can have."""
        return [line.key or field for field, line in cls.table().items()]

    def named(self) -> dict[str, NamedMetric]:
        """Return the metrics that have an interval, by key: those that gate.minimum_metric can name."""
        named = {}
        for field, line in self.table().items():
            interval: Interval | None = getattr(self, field)
            if interval is not None:
                key, title = line.key or field, line.title.format(**vars(self))
                named[key] = NamedMetric(key, title, interval, line.larger_is_better, line.share)
        return named


@dataclass(frozen=True, kw_only=True)
class Metrics(Tabled):
    """All metrics of one problem on the test rows."""

    rows: int
    confidence: float  # level of the intervals
    slices: tuple[Slice, ...] = ()
    baseline: BaselineResult | None = None
    constant: ConstantResult | None = None
    # None: the problem has no intervals or sets, or it was written before they were measured
    coverage: Annotated[CoverageMetrics | None, Field(exclude_if=operator.not_)] = None
    # None: the answers have no confidence, or as above
    abstention: Annotated[AbstentionMetrics | None, Field(exclude_if=operator.not_)] = None
    problem: str = ""
    own: Annotated[tuple[NamedMetric, ...], Field(exclude_if=operator.not_)] = ()  # of the user: evaluation.metrics

    headline_key: ClassVar[str]
    default_metric: ClassVar[str] = "none"  # that gate.minimum_metric: auto means
    row_metric: ClassVar[Metric]  # whose mean slices have, see `Answers.values`

    def named(self) -> dict[str, NamedMetric]:
        return self._built_in() | {metric.key: metric for metric in self.own}

    def _built_in(self) -> dict[str, NamedMetric]:
        """Return the metrics of the problem that have an interval, by key."""
        return super().named()

    @property
    def headline(self) -> NamedMetric:
        """The metric that people read first."""
        return self.named()[self.headline_key]

    def of_slice(self, part: Slice) -> NamedMetric:
        """Return the mean of a slice with its name and unit."""
        line = self.row_metric
        return NamedMetric("slice", line.title, part.mean, line.larger_is_better, line.share)

    @property
    def values(self) -> Mapping[str, float | None]:
        """Further values by name, for DVC and MLflow: those without an interval. None: not defined."""
        return {}

    def numbers(self) -> dict[str, float]:
        """Return the defined metrics by name, for DVC and MLflow; the bounds of intervals as NAME_low and NAME_high."""
        flat: dict[str, float] = {"rows": float(self.rows)}
        for key, metric in self.named().items():
            flat |= bounds(key, metric.interval)
        flat |= {name: float(value) for name, value in self.values.items() if value is not None}
        if self.baseline is not None:
            flat |= bounds("baseline_difference", self.baseline.difference)
            flat["baseline"] = self.baseline.headline.interval.value
        if self.constant is not None:
            flat |= bounds("constant_difference", self.constant.difference) | {"constant": self.constant.trivial}
        return flat

    @property
    def by_output(self) -> tuple[Any, ...]:
        """Metrics of each class, number or label; none of tokens."""
        return ()


def bounds(name: str, interval: Interval) -> dict[str, float]:
    """Return value and bounds of an interval as NAME, NAME_low and NAME_high."""
    return {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
