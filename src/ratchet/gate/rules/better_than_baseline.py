"""The model is better than its baseline (gate.baseline)."""

from dataclasses import dataclass
from typing import Literal

from ratchet.evaluation.metrics import BaselineResult
from ratchet.evaluation.wording import baseline_text
from ratchet.gate.case import Case
from ratchet.gate.result_text import Noun, RuleText, result_text

__all__ = ["BaselineRule", "better_than_baseline"]


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

    def text(self, noun: Noun, kind: str) -> RuleText:
        result = self.result
        measured = baseline_text(result, self.confidence, kind)
        limit = "significantly better (gate.baseline)" if self.required else "reported only (gate.baseline)"
        fix = "train a better model, use the baseline with model.name, or set gate.baseline to report"
        return result_text(measured, limit, passed=self.passed, fix=fix, short=measured)


def better_than_baseline(case: Case) -> BaselineRule | None:
    """Check that the model is significantly better than its baseline, if gate.baseline requires it.

    None where no baseline was measured.
    """
    result, required = case.candidate.baseline, case.gate.baseline == "required"
    if result is None:
        return None
    passed = result.network_is_better or not required
    return BaselineRule(passed, result, case.evaluation.confidence, required)
