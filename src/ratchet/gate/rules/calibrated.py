"""The calibration error is small enough (gate.calibration_error)."""

from dataclasses import dataclass
from typing import Literal

from ratchet.evaluation.intervals import Interval
from ratchet.gate.case import Case
from ratchet.gate.result_text import Noun, RuleText, around, percent, result_text

__all__ = ["CalibrationResult", "calibrated"]


@dataclass(frozen=True)
class CalibrationResult:
    """Calibration error (ECE) and its limit; the lower end of the interval decides."""

    passed: bool
    ece: Interval
    confidence: float  # level of the interval
    limit: float
    name: Literal["calibration"] = "calibration"

    def text(self, noun: Noun, kind: str) -> RuleText:
        limit, ci = f"limit {percent(self.limit)}", f"{percent(self.confidence)} CI "
        measured = f"ECE {around(self.ece, 1 if self.passed else 2, ci=ci)}"
        # Chance explains the rest
        value = f"ECE {percent(self.ece.value, 1)}" if self.ece.value <= self.limit else measured
        fix = "set evaluation.temperature_scaling, or raise gate.calibration_error"
        return result_text(measured, limit, passed=self.passed, fix=fix, short=f"{value}, {limit}")


def calibrated(case: Case) -> CalibrationResult | None:
    """Check that the calibration error is not significantly above gate.calibration_error; 1 switches the rule off.

    The lower end of its interval decides: on few samples a well calibrated model shows some error by chance.
    None also where the outputs are not probabilities of classes, or the samples are too few to measure it.
    """
    error, limit = case.candidate.calibration_error, case.gate.calibration_error
    if error is None or limit == 1.0:
        return None
    return CalibrationResult(error.low <= limit, ece=error, confidence=case.evaluation.confidence, limit=limit)
