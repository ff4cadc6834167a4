"""The rules of the gate, each in a module of its own: what it measures, its limit, and its text.

A rule is a function of the case. It returns its result, or None where it is switched off or has nothing to measure. A
new rule is a module here, and a line in `RULES` and in `RuleResult`.
"""

from collections.abc import Callable
from typing import Annotated

from pydantic import Field

from ratchet.gate.case import Case
from ratchet.gate.rules.better_than_baseline import BaselineRule, better_than_baseline
from ratchet.gate.rules.better_than_champion import ChampionResult, PairedTest, better_than_champion
from ratchet.gate.rules.better_than_constant import ConstantRule, better_than_constant
from ratchet.gate.rules.calibrated import CalibrationResult, calibrated
from ratchet.gate.rules.finite_scores import ScoresResult, finite_scores
from ratchet.gate.rules.latency_and_size import CostResult, latency, size
from ratchet.gate.rules.minimum import MetricResult, minimum
from ratchet.gate.rules.no_slice_worse import SlicesResult, no_slice_worse
from ratchet.gate.rules.onnx_parity import ExportResult, export_parity
from ratchet.gate.rules.reloaded import ReloadResult, reload_rule

__all__ = [
    "RULES",
    "BaselineRule",
    "CalibrationResult",
    "ChampionResult",
    "ConstantRule",
    "CostResult",
    "ExportResult",
    "MetricResult",
    "PairedTest",
    "ReloadResult",
    "Rule",
    "RuleResult",
    "ScoresResult",
    "SlicesResult",
    "reload_rule",
]


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
]

Rule = Callable[[Case], RuleResult | None]

RULES: tuple[Rule, ...] = (
    finite_scores,
    minimum,
    better_than_constant,
    better_than_baseline,
    better_than_champion,
    no_slice_worse,
    calibrated,
    latency,
    size,
    export_parity,
)
"""The rules in their order. `judge` adds the result of `reload_rule`, which needs the stored model, as the last."""
