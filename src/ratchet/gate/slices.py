"""Is it worse than the champion for some of the rows?"""

from ratchet.evaluation.slices import parts
from ratchet.gate.case import Case
from ratchet.gate.verdict import RuleResult
from ratchet.gate.wording import around, listed, points

__all__ = ["no_part_worse"]


def no_part_worse(case: Case) -> RuleResult | None:
    """On no part of the rows may it be worse than the champion beyond chance and gate.slice_tolerance.

    Not asked without parts, or without a champion to compare with.
    """
    if case.rival is None:
        return None
    compared = {name: [values[row] for row in case.compared] for name, values in case.candidate.parts.items()}
    found = parts(compared, least=case.evaluation.slice_rows)
    if not found:
        return None
    tolerance = case.gate.slice_tolerance
    differences = {f"{column}: {value}": case.difference(rows, looks=len(found)) for column, value, rows in found}
    worst = min(differences, key=lambda name: (differences[name].high, differences[name].value))
    worse = [name for name, one in differences.items() if one.high < -tolerance]
    beyond = f"by more than {tolerance * 100:.2f} points " if tolerance else ""
    if worse:
        words = (
            f"On {len(worse)} of {len(found)} parts of the rows it is worse than the champion {beyond}beyond chance: "
            f"{listed(worse)}; on {worst!r} by {around(differences[worst])}. gate.slice_tolerance says how much may be."
        )
    else:
        words = f"On none of {len(found)} parts of the rows is it worse than the champion {beyond}beyond chance."
    needed = f"no part whose interval ends below {points(-tolerance)}"
    return RuleResult("slices", not worse, f"{worst}: {around(differences[worst])}", needed, words)
