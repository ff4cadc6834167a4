"""Does it cost much more than the champion?"""

from ratchet.evaluation.latency import Costs
from ratchet.gate.case import Case
from ratchet.gate.verdict import RuleResult

__all__ = ["latency", "size"]


def latency(case: Case) -> RuleResult | None:
    """Do a row and a batch take at most gate.latency_factor times as long as the champion takes for them?

    Not asked where that is 0, or where the two could not be measured side by side.
    """
    costs, most = _costs(case), case.gate.latency_factor
    if costs is None or most == 0.0:
        return None
    ours, theirs = costs.candidate, costs.champion
    factor = max(ours.one / theirs.one, ours.batch / theirs.batch)
    times = ", ".join(
        f"{mine * 1e3:.3g} ms for {rows} and the champion {other * 1e3:.3g} ms"
        for rows, mine, other in (
            ("one row", ours.one, theirs.one),
            (f"{costs.rows} rows", ours.batch, theirs.batch),
        )
    )
    return _judged("latency", factor, most, f"Side by side it takes {times}", "as long", "gate.latency_factor")


def size(case: Case) -> RuleResult | None:
    """Do its weights take at most gate.size_factor times the champion's bytes? Not asked where that is 0."""
    costs, most = _costs(case), case.gate.size_factor
    if costs is None or most == 0.0:
        return None
    ours, theirs = costs.candidate.weights, costs.champion.weights
    what = f"Its weights take {_bytes(ours)} and the champion's {_bytes(theirs)}"
    return _judged("size", ours / theirs, most, what, "as much", "gate.size_factor")


def _costs(case: Case) -> Costs | None:
    return case.rival.costs if case.rival is not None else None


def _judged(name: str, factor: float, most: float, what: str, measure: str, setting: str) -> RuleResult:
    passed = factor <= most
    found = f"{factor:.2f} times the champion's"
    limit = f"up to {most:g} times {'was' if passed else 'is'} allowed"
    words = f"{what}: {factor:.2f} times {measure}; {limit}{'' if passed else f': {setting}'}."
    return RuleResult(name, passed, found, f"at most {most:g} times", words)


def _bytes(count: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count} bytes"
