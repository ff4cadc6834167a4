"""The gate's rules for a version that answered live requests in shadow, judged when a user promotes it."""

from pathlib import Path
from typing import Any

from ratchet.errors import RegistryError
from ratchet.settings.model import GateSettings
from ratchet.traffic.shadow_comparison import ShadowComparison, comparisons

__all__ = ["judge_shadow"]


def judge_shadow(gate: GateSettings, requests: Path, *, champion: str, version: str) -> dict[str, Any]:
    """Check gate.shadow_requests and gate.shadow_agreement; return the figures for the ledger, empty without rules.

    Args:
        champion, version: NAME/VERSION.

    Raises:
        RegistryError: naming the setting, the figure and what is required.
    """
    if not gate.shadow_requests and not gate.shadow_agreement:
        return {}
    pairs = {(each.served, each.shadow): each for each in comparisons(requests)}
    measured = pairs.get((champion, version))
    if problem := _problem(gate, measured, champion=champion):
        raise RegistryError(
            f"{version}: {problem}. Fix: `ratchet set serving.shadow={version}`, start the model server again, and "
            "wait; `ratchet shadow` shows the figures"
        )
    assert measured is not None, "a missing one is a problem"
    agreement = measured.agreement
    return {
        "requests": measured.requests,
        **({"failed": measured.failed} if measured.failed else {}),
        "rows": measured.rows,
        **({"agreement": agreement.value, "agreement_low": agreement.low} if agreement else {}),
    }


def _problem(gate: GateSettings, measured: ShadowComparison | None, *, champion: str) -> str:
    answered = measured.requests if measured else 0
    if measured is None or answered < gate.shadow_requests:
        return (
            f"answered {answered:,} live requests in shadow beside {champion}; required "
            f"{max(1, gate.shadow_requests):,} (gate.shadow_requests)"
        )
    if gate.shadow_agreement and measured.agreement is None:
        return "predicts numbers, which have no agreement; allowed: gate.shadow_agreement: 0"
    if measured.agreement and measured.agreement.low < gate.shadow_agreement:
        low, value, high = measured.agreement.low, measured.agreement.value, measured.agreement.high
        return (
            f"agrees with {champion} on {value:.1%} (95 % CI {low:.1%} to {high:.1%}) of {measured.rows:,} rows; "
            f"required: {gate.shadow_agreement:.1%} for the lower bound (gate.shadow_agreement)"
        )
    return ""
