"""All scores are finite numbers. The rule exists only where some are not."""

from dataclasses import dataclass
from typing import Literal

from ratchet.gate.case import Case
from ratchet.gate.result_text import Noun, RuleText, result_text

__all__ = ["ScoresResult", "finite_scores"]


@dataclass(frozen=True)
class ScoresResult:
    """Test samples on which the scores of a model are not finite numbers. The rule exists only where there are some."""

    passed: bool
    counts: tuple[tuple[str, int], ...]  # by model: "the model", "digits version 3"
    rows: int
    name: Literal["scores"] = "scores"

    def text(self, noun: Noun, kind: str) -> RuleText:
        counts = " and ".join(f"{name} on {count:,} of {self.rows:,} test {noun[1]}" for name, count in self.counts)
        fix = (
            "train again with a lower training.learning_rate; of a champion, `ratchet rollback` to an earlier one, or "
            "set registry.model to another name"
        )
        measured = f"not finite numbers: {counts}"
        return result_text(measured, "finite numbers", passed=self.passed, fix=fix, short=measured)


def finite_scores(case: Case) -> ScoresResult | None:
    """Refuse models that cannot be compared, because a score is not a finite number; None where all are finite."""
    return ScoresResult(False, case.not_finite, len(case.candidate.score)) if case.not_finite else None
