"""Is it good enough, and better than the champion?"""

import numpy as np

from ratchet.evaluation.verdict import RuleResult
from ratchet.params import GateSettings
from ratchet.registry.gate.case import Case
from ratchet.registry.gate.words import around, points

__all__ = ["against_champion", "minimum_accuracy"]


def minimum_accuracy(case: Case) -> RuleResult:
    """Does test accuracy reach gate.minimum_accuracy?"""
    accuracy, minimum = case.candidate.accuracy, case.gate.minimum_accuracy
    passed = accuracy.value >= minimum
    found = f"{accuracy.value:.2%} ({accuracy.low:.2%} to {accuracy.high:.2%})"
    words = f"Test accuracy is {found} on {len(case.candidate.ids):,} rows; " + (
        f"at least {minimum:.2%} was needed." if passed else f"at least {minimum:.2%} is needed: gate.minimum_accuracy."
    )
    return RuleResult("minimum accuracy", passed, found, f"at least {minimum:.2%}", words)


def against_champion(case: Case) -> RuleResult:
    """Is it better than the champion on the same rows, beyond chance; or as gate.champion has it, not worse?"""
    champion, gate = case.champion, case.gate
    if champion is None:
        words = "There is no champion yet, so there is nothing to compare with."
        return RuleResult("champion", True, "no champion yet", _needed(gate), words)
    if case.obstacle:
        words = f"The champion ({champion.name}) cannot be compared with: {case.obstacle}."
        return RuleResult("champion", False, "not comparable", "the same classes, input and test rows", words)
    difference = case.difference()
    passed = difference.low > 0.0 if gate.champion == "better" else difference.low >= -gate.tolerance
    words = _comparison(case, champion.name, around(difference)) + _judgement(gate, passed)
    return RuleResult("champion", passed, around(difference), _needed(gate), words)


def _comparison(case: Case, name: str, difference: str) -> str:
    ours, theirs, rows = case.candidate.correct, case.champion_correct, len(case.candidate.ids)
    mended, broken = int(np.count_nonzero(ours & ~theirs)), int(np.count_nonzero(theirs & ~ours))
    if mended + broken == 0:
        return f"On all {rows:,} rows this model is right exactly where the champion ({name}) is. "
    return (
        f"On the same {rows:,} rows this model is right on {np.count_nonzero(ours):,} and the champion ({name}) on "
        f"{np.count_nonzero(theirs):,}: it mends {mended:,} and breaks {broken:,}, a difference of {difference} at "
        f"{case.gate.confidence * 100:g}% confidence. "
    )


def _judgement(gate: GateSettings, passed: bool) -> str:
    if gate.champion == "better":
        return (
            "It is better beyond chance."
            if passed
            else "That is not proof of being better: the interval must lie above 0, or gate.champion be not-worse."
        )
    if gate.tolerance == 0.0:
        return (
            "It is not worse."
            if passed
            else "It may be worse, and gate.tolerance is 0: the interval must not go below 0."
        )
    below = f"{gate.tolerance * 100:.2f} points"
    if passed:
        return f"It is not worse by more than {below}."
    return f"It may be worse by more than the {below} that gate.tolerance allows."


def _needed(gate: GateSettings) -> str:
    if gate.champion == "better":
        return "an interval above 0"
    return f"an interval not below {points(-gate.tolerance)}"
