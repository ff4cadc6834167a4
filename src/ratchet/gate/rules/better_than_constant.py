"""The model is better than the best constant answer (gate.constant)."""

from dataclasses import dataclass
from typing import Literal

from ratchet.evaluation.metrics import ConstantResult
from ratchet.evaluation.wording import constant_text
from ratchet.gate.case import Case
from ratchet.gate.result_text import Noun, RuleText, result_text

__all__ = ["ConstantRule", "better_than_constant"]


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

    def text(self, noun: Noun, kind: str) -> RuleText:
        result = self.result
        measured = constant_text(result, self.confidence, self.rows, kind)
        limit = "significantly better (gate.constant)" if self.required else "more than one answer"
        fix = "add training samples, of rare answers above all, or train longer; see `ratchet preflight`"
        if not result.one_answer:
            fix = "train a better model, add test samples, or set gate.constant to report"
        return result_text(measured, limit, passed=self.passed, fix=fix, short=measured)


def better_than_constant(case: Case) -> ConstantRule | None:
    """Check that a first version is significantly better than the best constant answer (gate.constant).

    A later version must be better than the champion instead. A model that gives one answer to nearly all samples fails
    whatever the champion is, unless gate.constant is off. None where this was not measured.
    """
    result, required = case.candidate.constant, case.champion is None and case.gate.constant == "required"
    if result is None:
        return None
    passed = case.gate.constant == "off" or (not result.one_answer and (result.is_better or not required))
    return ConstantRule(passed, result, case.evaluation.confidence, len(case.candidate.score), required)
