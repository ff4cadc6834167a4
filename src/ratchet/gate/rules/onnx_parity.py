"""The ONNX program answers as the model does (gate.export_difference)."""

from dataclasses import dataclass
from typing import Literal

from ratchet.exports.program import NotExported
from ratchet.gate.case import Case
from ratchet.gate.result_text import Noun, RuleText, finite, largest, result_text

__all__ = ["ExportResult", "export_parity"]


_NO_PROGRAM = "`registry.export: none` stores a model without a program"


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

    def text(self, noun: Noun, kind: str) -> RuleText:
        limit = f"limit {self.limit:g}"
        if self.missing:
            fix = f"change the model and train again, or {_NO_PROGRAM}"
            return result_text(f"no program ({self.missing})", limit, passed=False, fix=fix)
        measured = f"max difference {largest(self.largest_difference)} on {self.images:,} {noun[1]}"
        measured += f", {self.other_class:,} in another class" if self.other_class else ""
        fix = f"raise gate.export_difference, or {_NO_PROGRAM}"
        return result_text(measured, limit, passed=self.passed, fix=fix, short=measured if self.passed else "")


def export_parity(case: Case) -> ExportResult | None:
    """Check that the ONNX program's probabilities differ from the model's by at most gate.export_difference; 1: off.

    None also where the model was stored without a program (registry.export).
    """
    exported, limit = case.candidate.exported, case.gate.export_difference
    if exported is None or limit == 1.0:
        return None
    if isinstance(exported, NotExported):
        return ExportResult(False, limit, missing=exported.reason)
    return ExportResult(
        exported.images > 0 and exported.largest_difference <= limit,  # NaN does not pass
        limit,
        largest_difference=finite(exported.largest_difference),
        images=exported.images,
        other_class=exported.other_class,
    )
