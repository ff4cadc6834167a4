"""Does its confidence mean what it says?"""

from ratchet.gate.case import Case
from ratchet.gate.verdict import RuleResult

__all__ = ["calibrated"]


def calibrated(case: Case) -> RuleResult | None:
    """Is the calibration error at most gate.calibration_error, chance allowed for? Not asked where that is 1.

    Judged by the lower end of its interval: on few rows an honest model shows some error by chance alone.
    """
    error, most = case.candidate.calibration_error, case.gate.calibration_error
    if most == 1.0:
        return None
    passed = error.low <= most
    found = f"{error.value:.2%} ({error.low:.2%} to {error.high:.2%})"
    words = f"Its confidence is off by {found} on average; "
    if passed:
        words += f"no more than {most:.2%} was allowed, beyond chance."
    else:
        words += (
            f"no more than {most:.2%} is allowed, beyond chance: evaluation.temperature_scaling may mend it, or set "
            "gate.calibration_error."
        )
    return RuleResult("calibration", passed, found, f"an interval that begins at {most:.2%} or below", words)
