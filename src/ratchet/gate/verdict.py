"""The gate's verdict as data: one result for each rule. The module `text` formats it."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from ratchet.evaluation.answers import ScoreUnit
from ratchet.evaluation.intervals import Interval
from ratchet.evaluation.latency import Costs
from ratchet.evaluation.metrics import BaselineResult, ConstantResult, NamedMetric

__all__ = [
    "BaselineRule",
    "CalibrationResult",
    "ChampionResult",
    "Comparison",
    "ConstantRule",
    "CostResult",
    "ExportResult",
    "LeftOut",
    "MetricResult",
    "Obstacle",
    "PairedTest",
    "ReloadResult",
    "RuleOutcome",
    "RuleResult",
    "ScoresResult",
    "SlicesResult",
    "Unused",
    "Verdict",
    "outcome",
]


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


@dataclass(frozen=True)
class BaselineRule:
    """Comparison with the baseline; it refuses only if `required` (gate.baseline)."""

    passed: bool
    result: BaselineResult
    confidence: float
    required: bool
    name: Literal["baseline"] = "baseline"

    @property
    def is_shown(self) -> bool:
        """Whether the model is significantly better."""
        return self.result.network_is_better


@dataclass(frozen=True)
class ScoresResult:
    """Test samples on which the scores of a model are not finite numbers. The rule exists only where there are some."""

    passed: bool
    counts: tuple[tuple[str, int], ...]  # by model: "the model", "digits version 3"
    rows: int
    name: Literal["scores"] = "scores"


@dataclass(frozen=True)
class ConstantRule:
    """Comparison with the best constant answer. It refuses a first version if `required` (gate.constant).

    A model that gives one answer to nearly all rows is refused, unless gate.constant is off; it never gets a tick.
    """

    passed: bool
    result: ConstantResult
    confidence: float
    rows: int
    required: bool
    name: Literal["constant"] = "constant"

    @property
    def is_shown(self) -> bool:
        """Whether the model is significantly better."""
        return self.result.is_better


@dataclass(frozen=True)
class Comparison:
    """Significance test against the champion, at the level of this try."""

    number: int  # of the try, since the last promotion through the gate
    rows: int  # test samples that were compared
    p: float
    level: float  # largest p-value that wins
    remaining: float  # error that is left for later tries
    won: bool


@dataclass(frozen=True)
class PairedTest:
    """Scores of both models on the same test samples."""

    candidate: NamedMetric  # mean in the units of the metric
    champion: NamedMetric
    difference: Interval  # mean score of the candidate minus mean score of the champion
    unit: ScoreUnit  # of the difference
    better: int  # samples on which the candidate's score is larger
    worse: int
    exact: bool = False  # all scores are 0 or 1: right or wrong


@dataclass(frozen=True)
class LeftOut:
    """Numbers of test samples that cannot be compared, by the first reason that applies."""

    seen: int = 0  # used to train or select one of the two models
    unknown: int = 0  # of a class that the champion does not know
    reserved: int = 0  # by gate.reserved_fraction


@dataclass(frozen=True)
class Obstacle:
    """Reason why candidate and champion cannot be compared."""

    kind: Literal[
        "input", "problem", "targets", "no shared class", "classes", "same weights", "no record", "too few images",
        "scores",
    ]  # fmt: skip
    mismatch: str = ""  # of an input: "it takes float32 pixels, and these are uint8"; of a problem: both
    new_classes: tuple[str, ...] = ()  # that the champion does not know
    lost_classes: tuple[str, ...] = ()  # that the candidate does not know
    allowed: str = ""  # gate.classes
    compared: int = 0
    minimum: int = 0  # gate.minimum_rows


@dataclass(frozen=True)
class ChampionResult:
    """The comparison with the champion; exactly one of `obstacle` and `comparison` is set where there is one."""

    passed: bool
    champion: str | None = None  # for example "digits version 3"; None: there is none yet
    obstacle: Obstacle | None = None
    comparison: Comparison | None = None
    scores: PairedTest | None = None
    goal: Literal["better", "not-worse"] = "better"  # gate.champion
    tolerance: float = 0.0  # gate.tolerance, a share
    confidence: float = 0.95  # gate.confidence
    test_images: int = 0
    new_share: float = 1.0  # of the test samples: those that no earlier candidate was judged on
    left_out: LeftOut = field(default_factory=LeftOut)
    input_shapes: tuple[tuple[int, ...], tuple[int, ...]] | None = None  # candidate's and champion's, if they differ
    name: Literal["champion"] = "champion"


@dataclass(frozen=True)
class SlicesResult:
    """Slices on which the candidate is significantly worse than the champion."""

    passed: bool
    count: int  # of slices
    worse: tuple[str, ...]  # "column: value"
    worst: str
    difference: Interval  # on the worst slice: mean score of the candidate minus mean score of the champion
    tolerance: float
    unit: ScoreUnit | None = None  # of the difference; None: points of accuracy
    name: Literal["slices"] = "slices"


@dataclass(frozen=True)
class CalibrationResult:
    """Calibration error (ECE) and its limit; the lower end of the interval decides."""

    passed: bool
    ece: Interval
    confidence: float  # level of the interval
    limit: float
    name: Literal["calibration"] = "calibration"


@dataclass(frozen=True)
class CostResult:
    """Cost as a factor of the champion's: time (for an image or a batch, the larger factor), or bytes of weights."""

    passed: bool
    factor: float
    limit: float
    costs: Costs
    name: Literal["latency", "size"]


@dataclass(frozen=True)
class ExportResult:
    """Largest difference of a probability between the model and its ONNX program."""

    passed: bool
    limit: float
    largest_difference: float | None = None  # None: not a finite number, or there is no program
    images: int = 0
    other_class: int = 0  # images that the program puts into another class
    missing: str = ""  # reason why there is no program
    name: Literal["ONNX export"] = "ONNX export"


@dataclass(frozen=True)
class ReloadResult:
    """Largest difference of a probability between the stored model, once loaded, and the evaluation."""

    passed: bool
    limit: float
    largest_difference: float | None  # None: not a finite number
    images: int
    name: Literal["reload"] = "reload"


def _present(content: Any) -> Any:
    """Return a rule's result in the present form. Accuracies and pairs of counts had forms of their own."""
    if not isinstance(content, dict):
        return content
    if "accuracy" in content:
        metric = NamedMetric("accuracy", "accuracy", Interval(**content["accuracy"]), share=True)
        return {**content, "metric": metric, "key": "accuracy", "rows": content["images"]}
    if counts := content.get("counts"):
        rows = content["comparison"]["rows"]
        right = (counts[f"{model}_right"] / rows for model in ("candidate", "champion"))
        ours, theirs = (NamedMetric("score", "accuracy", Interval(*(share,) * 3), share=True) for share in right)
        unit, pairs = ScoreUnit("accuracy", share=True), (counts["fixed"], counts["broken"])
        return {**content, "scores": PairedTest(ours, theirs, Interval(**counts["difference"]), unit, *pairs, True)}
    return content


RuleResult = Annotated[
    MetricResult
    | ScoresResult
    | ConstantRule
    | BaselineRule
    | ChampionResult
    | SlicesResult
    | CalibrationResult
    | CostResult
    | ExportResult
    | ReloadResult,
    Field(discriminator="name"),
    BeforeValidator(_present),
]


RuleOutcome = Literal["passed", "doubt", "failed"]
"""Doubt: the rule allows the model, but what it names was not shown. It is never drawn as passed."""


def outcome(rule: RuleResult) -> RuleOutcome:
    """Return whether a rule passed, and with a doubt."""
    if not rule.passed:
        return "failed"
    return "doubt" if isinstance(rule, BaselineRule | ConstantRule) and not rule.is_shown else "passed"


@dataclass(frozen=True)
class Unused:
    """Test samples that no comparison used, and how many of them the model answers correctly, or a metric on them."""

    rows: int
    right: int = 0
    metric: NamedMetric | None = None  # None: `right` counts


@dataclass(frozen=True)
class Verdict:
    """Results of all rules, in the order in which they were applied."""

    passed: bool
    rules: tuple[RuleResult, ...]
    unused: Unused | None = None
    kind: str = "image"  # of the samples

    @property
    def comparison(self) -> Comparison | None:
        """The test against the champion; None where nothing was compared."""
        return next((rule.comparison for rule in self.rules if isinstance(rule, ChampionResult)), None)

    @property
    def failed(self) -> tuple[RuleResult, ...]:
        """The rules that did not pass."""
        return tuple(rule for rule in self.rules if not rule.passed)

    @property
    def doubts(self) -> tuple[RuleResult, ...]:
        """The rules that allow the model although what they name was not shown."""
        return tuple(rule for rule in self.rules if outcome(rule) == "doubt")

    @property
    def summary(self) -> str:
        """One line: "Passed, 5 of 5 rules", "Passed, 4 of 5 rules; not shown: baseline" or "Refused, ..."."""
        count, doubts = len(self.rules), self.doubts
        if self.passed:
            unshown = f"; not shown: {', '.join(rule.name for rule in doubts)}" if doubts else ""
            return f"Passed, {count - len(doubts)} of {count} rules{unshown}"
        return f"Refused, {len(self.failed)} of {count} rules failed"
