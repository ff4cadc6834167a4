"""May this model take the champion's place? Rules that each give their figures and say them in plain words.

A pure function of figures: who asks, loads models and moves aliases is elsewhere. A rule is a function of the case and
an entry in `RULES`; it gives None where it is switched off or has nothing to ask.
"""

from collections.abc import Callable

from ratchet.gate.accuracy import against_champion, minimum_accuracy
from ratchet.gate.answers import answers_rule
from ratchet.gate.calibration import calibrated
from ratchet.gate.case import CandidateFigures, Case, ChampionRows
from ratchet.gate.costs import latency, size
from ratchet.gate.export import export_parity
from ratchet.gate.level import FIRST_TRY, Tries
from ratchet.gate.slices import no_part_worse
from ratchet.gate.verdict import RuleResult, Verdict
from ratchet.settings.model import EvaluationSettings, GateSettings

__all__ = ["RULES", "CandidateFigures", "Case", "ChampionRows", "Rule", "Tries", "answers_rule", "judge"]

Rule = Callable[[Case], RuleResult | None]

RULES: tuple[Rule, ...] = (minimum_accuracy, against_champion, no_part_worse, calibrated, latency, size, export_parity)
"""What is asked, in this order; last, whether the stored model answers."""


def judge(
    candidate: CandidateFigures,
    champion: ChampionRows | None,
    settings: GateSettings,
    evaluation: EvaluationSettings,
    *,
    answers: RuleResult,
    tries: Tries = FIRST_TRY,
    seed: int = 0,
) -> Verdict:
    """Hold every rule against the candidate; all must pass.

    `answers` comes from whoever loaded the registered model and asked it (see `answers_rule`); `tries` are the
    comparisons before this one; `seed` decides the bootstrap's resamples. Only the comparison with the champion spends
    level: every other rule can only refuse, which makes a wrong promotion rarer.
    """
    case = Case(candidate, champion, settings, evaluation, tries=tries, seed=seed)
    rules = (*(result for rule in RULES if (result := rule(case)) is not None), answers)
    failed = [rule for rule in rules if not rule.passed]
    if not failed:
        opening = f"Passed: all {len(rules)} rules hold."
    else:
        opening = f"Refused: {len(failed)} of {len(rules)} rules {'does' if len(failed) == 1 else 'do'} not hold."
    ordered = failed + [rule for rule in rules if rule.passed]
    words = " ".join([opening, *(rule.words for rule in ordered)])
    return Verdict(not failed, rules, words, comparison=case.comparison, unused=case.unused)
