"""The gate's verdict: the results of all rules."""

from dataclasses import dataclass
from typing import Literal

from ratchet.gate.case import Candidate, Case, Champion, ChampionTest
from ratchet.gate.rules import RULES, BaselineRule, ChampionResult, ConstantRule, ReloadResult, RuleResult
from ratchet.gate.significance import FIRST_TRY, Tries
from ratchet.settings.model import EvaluationSettings, GateSettings

__all__ = ["RuleOutcome", "Verdict", "judge", "outcome"]

RuleOutcome = Literal["passed", "doubt", "failed"]
"""Doubt: the rule allows the model, but what it names was not shown. It is never drawn as passed."""


def outcome(rule: RuleResult) -> RuleOutcome:
    """Return whether a rule passed, and with a doubt."""
    if not rule.passed:
        return "failed"
    return "doubt" if isinstance(rule, BaselineRule | ConstantRule) and not rule.is_shown else "passed"


@dataclass(frozen=True)
class Verdict:
    """Results of all rules, in the order in which they were applied."""

    passed: bool
    rules: tuple[RuleResult, ...]
    kind: str = "image"  # of the samples

    @property
    def comparison(self) -> ChampionTest | None:
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


def judge(
    candidate: Candidate,
    champion: Champion | None,
    settings: GateSettings,
    evaluation: EvaluationSettings,
    *,
    reloaded: ReloadResult,
    tries: Tries = FIRST_TRY,
    seed: int = 0,
) -> Verdict:
    """Apply every rule to the candidate; all must pass.

    Only the comparison with the champion uses up significance level. Every other rule can only refuse, which makes a
    wrong promotion rarer.
    """
    case = Case(candidate, champion, settings, evaluation, tries=tries, seed=seed)
    rules = (*(result for rule in RULES if (result := rule(case)) is not None), reloaded)
    return Verdict(all(rule.passed for rule in rules), rules, kind=candidate.kind)
