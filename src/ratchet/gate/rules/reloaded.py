"""The stored model, once loaded, answers as it did in the evaluation."""

from dataclasses import dataclass
from typing import Literal

from ratchet.gate.result_text import Noun, RuleText, finite, largest, result_text

__all__ = ["ReloadResult", "reload_rule"]


@dataclass(frozen=True)
class ReloadResult:
    """Largest difference of a probability between the stored model, once loaded, and the evaluation."""

    passed: bool
    limit: float
    largest_difference: float | None  # None: not a finite number
    images: int
    name: Literal["reload"] = "reload"

    def text(self, noun: Noun, kind: str) -> RuleText:
        identical = self.passed and self.largest_difference == 0.0
        measured = (
            f"identical predictions on {self.images:,} {noun[1]}"
            if identical
            else f"max difference {largest(self.largest_difference)} on {self.images:,} {noun[1]}"
        )
        limit = f"limit {self.limit:g}"
        fix = "train again; the stored model is not the one that was evaluated"
        return result_text(measured, limit, passed=self.passed, fix=fix, short=measured if self.passed else "")


def reload_rule(*, images: int, largest_difference: float, tolerance: float) -> ReloadResult:
    """Return the result of the last rule: the registered model, once loaded, answers as it did in the evaluation."""
    passed = images > 0 and largest_difference <= tolerance  # NaN does not pass
    return ReloadResult(passed, tolerance, largest_difference=finite(largest_difference), images=images)
