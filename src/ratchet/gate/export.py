"""Does the exported program answer as the model does?"""

from ratchet.gate.case import Case
from ratchet.gate.verdict import RuleResult
from ratchet.serving.program import NotExported

__all__ = ["export_parity"]

_NONE = "registry.export: none stores a model without a program"


def export_parity(case: Case) -> RuleResult | None:
    """Do no two probabilities differ by more than gate.export_difference?

    Not asked where that is 1, or where the model was stored without asking for a program.
    """
    exported, most = case.candidate.exported, case.gate.export_difference
    if exported is None or most == 1.0:
        return None
    needed = f"at most {most:g}"
    if isinstance(exported, NotExported):
        words = f"There is no ONNX program of it ({exported.why}): mend the model and train again, or {_NONE}."
        return RuleResult("export", False, "no program", needed, words)
    rows, largest = exported.rows, exported.largest_difference
    passed = rows > 0 and largest <= most  # NaN does not pass
    moved = f"{exported.elsewhere:,} of them in another class" if exported.elsewhere else "each in the same class"
    found = f"largest difference {largest:.1e} on {rows:,} rows, {moved}"
    if passed:
        words = f"Its ONNX program answers as the model does ({found})."
    else:
        words = (
            f"Its ONNX program does not answer as the model does: {found}; no more than {most:g} is allowed: "
            f"gate.export_difference, or {_NONE}."
        )
    return RuleResult("export", passed, found, needed, words)
