"""Latency and size are at most a factor of the champion's (gate.latency_factor, gate.size_factor)."""

from dataclasses import dataclass
from typing import Literal

from ratchet.evaluation.latency import Costs
from ratchet.gate.case import Case
from ratchet.gate.result_text import Noun, RuleText, result_text

__all__ = ["CostResult", "latency", "size"]


@dataclass(frozen=True)
class CostResult:
    """Cost as a factor of the champion's: time (for an image or a batch, the larger factor), or bytes of weights."""

    passed: bool
    factor: float
    limit: float
    costs: Costs
    name: Literal["latency", "size"]

    def text(self, noun: Noun, kind: str) -> RuleText:
        ours, theirs = self.costs.candidate, self.costs.champion
        values = f"{_bytes(ours.weights)} and {_bytes(theirs.weights)}"
        if self.name == "latency":
            values = (
                f"{ours.single * 1e3:.3g} and {theirs.single * 1e3:.3g} ms for one {noun[0]}, {ours.batch * 1e3:.3g} "
                f"and {theirs.batch * 1e3:.3g} ms for {self.costs.rows} {noun[1]}"
            )
        measured, limit = f"{self.factor:.2f} times the champion's ({values})", f"limit {self.limit:g} times"
        return result_text(measured, limit, passed=self.passed, fix=f"raise gate.{self.name}_factor to allow more")


def latency(case: Case) -> CostResult | None:
    """Check that latency is at most gate.latency_factor times the champion's, for one image and a batch; 0: off.

    None also where the two models were not measured side by side.
    """
    costs, limit = _costs(case), case.gate.latency_factor
    if costs is None or limit == 0.0:
        return None
    ours, theirs = costs.candidate, costs.champion
    factor = max(ours.single / theirs.single, ours.batch / theirs.batch)
    return CostResult(factor <= limit, factor, limit, costs, "latency")


def size(case: Case) -> CostResult | None:
    """Check that the weights take at most gate.size_factor times the champion's bytes; 0: off."""
    costs, limit = _costs(case), case.gate.size_factor
    if costs is None or limit == 0.0:
        return None
    factor = costs.candidate.weights / costs.champion.weights
    return CostResult(factor <= limit, factor, limit, costs, "size")


def _costs(case: Case) -> Costs | None:
    return case.comparable.costs if case.comparable else None


def _bytes(count: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count} bytes"
