"""Is it good enough, and better than the champion?"""

import numpy as np

from ratchet.gate.case import Case, ChampionRows
from ratchet.gate.verdict import Comparison, RuleResult
from ratchet.gate.wording import around, small
from ratchet.settings.model import GateSettings

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
    """Is it better than the champion on the same rows, beyond chance; or as gate.champion has it, not worse?

    Judged by an exact test at the level of this try (see level.py). A model that is right on exactly the same rows is
    not worse, whatever the level: on these rows nothing changes.
    """
    champion, gate, comparison = case.champion, case.gate, case.comparison
    if champion is None:
        needed = "nothing, without a champion"
        words = "There is no champion yet, so there is nothing to compare with."
        return RuleResult("champion", True, "no champion yet", needed, words)
    if comparison is None:
        words = f"The champion ({champion.name}) cannot be compared: {case.obstacle}."
        return RuleResult("champion", False, "not comparable", "classes, input and test rows to compare on", words)
    same = sum(case.counts) == 0
    passed = comparison.won or (same and gate.champion == "not-worse")
    found = f"{around(case.overall)}, p = {small(comparison.p)}"
    needed = f"p at most {small(comparison.level)} (try {comparison.number:,})"
    words = " ".join(
        part
        for part in (
            _counted(case, champion),
            _left_out(case),
            _judgement(gate, comparison, passed=passed, same=same),
            _level(case, comparison),
        )
        if part
    )
    return RuleResult("champion", passed, found, needed, words)


def _counted(case: Case, champion: ChampionRows) -> str:
    rows, (fixed, broken) = len(case.compared), case.counts
    if fixed + broken == 0:
        return f"On all {rows:,} rows this model is right exactly where the champion ({champion.name}) is."
    errors = "1 error" if fixed == 1 else f"{fixed:,} errors"
    return (
        f"On the same {rows:,} rows this model is right on {np.count_nonzero(case.ours):,} and the champion "
        f"({champion.name}) on {np.count_nonzero(case.theirs):,}: {errors} fixed, {broken:,} new, "
        f"{around(case.overall, ci=case.gate.confidence)}."
    )


def _left_out(case: Case) -> str:
    """How many of the test rows were compared, and how the champion was asked."""
    ours, theirs = case.candidate.input_shape, case.rival.input_shape if case.rival else ()
    said = []
    if len(case.compared) < len(case.candidate.ids):
        said.append(f"These are {len(case.compared):,} of {len(case.candidate.ids):,} test rows: {case.left_out}.")
    if ours != theirs:
        said.append(f"The champion was asked at its own input size: {_shape(ours)} images resized to {_shape(theirs)}.")
    return " ".join(said)


def _judgement(gate: GateSettings, comparison: Comparison, *, passed: bool, same: bool) -> str:
    if same and passed:
        return "It is not worse."
    test = f"p = {small(comparison.p)}, and at most {small(comparison.level)} {'was' if passed else 'is'} needed."
    if gate.champion == "better":
        ending = "Significantly better" if passed else "Not proof of being better"
        return f"{ending}: {test}" + (
            "" if passed else " Fix: more test rows, which show smaller differences, or set gate.champion to not-worse."
        )
    limit = f" by more than {gate.tolerance * 100:.2f} points" if gate.tolerance else ""
    if passed:
        return f"Not worse{limit}: {test}"
    return f"It may be worse{limit or ', and gate.tolerance is 0'}: {test} To allow more, raise gate.tolerance."


def _level(case: Case, comparison: Comparison) -> str:
    tries, error = case.tries, 1 - case.gate.confidence
    new = f", {tries.new_rows:.0%} of which are new" if 0.0 < tries.new_rows < 1.0 else ""
    return (
        f"This is try {comparison.number:,} on these test rows{new} since the last promotion. Its level is "
        f"{small(comparison.level)} of the {small(error)} that gate.confidence leaves for all tries; "
        f"{small(comparison.left)} is left. A promotion restores it, and so do test rows that no earlier candidate was "
        "judged on."
    )


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(str(side) for side in shape)
