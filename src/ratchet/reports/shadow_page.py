"""Page of `ratchet shadow`: versions in shadow beside the served ones."""

from collections.abc import Sequence

from ratchet.reports.templating import render_html
from ratchet.traffic.shadow_comparison import ShadowComparison

__all__ = ["quality", "shadow_page"]


def shadow_page(pairs: Sequence[ShadowComparison], *, by: str) -> str:
    """Return the page: a row for each pair of versions, or for each slice of them by the column `by`."""
    header = ["in shadow", "served", *([by] if by else []), "requests", "rows", "answers", "median", "served: median"]
    rows = [
        (
            pair.shadow, pair.served, *([pair.part] if by else []), f"{pair.requests:,}", f"{pair.rows:,}",
            quality(pair).removeprefix(", "), f"{pair.seconds * 1000:.1f} ms", f"{pair.served_seconds * 1000:.1f} ms",
        )
        for pair in pairs
    ]  # fmt: skip
    return render_html("shadow.html.j2", header=header, rows=rows)


def quality(pair: ShadowComparison) -> str:
    """Return failures, and agreement or difference, as text that follows others; empty if there is none of them."""
    failed = f", {pair.failed:,} failed" if pair.failed else ""
    if pair.agreement:
        low, value, high = pair.agreement.low, pair.agreement.value, pair.agreement.high
        return f"{failed}, agreement {value:.1%} (95 % CI {low:.1%} to {high:.1%})"
    if pair.difference:
        low, value, high = pair.difference.low, pair.difference.value, pair.difference.high
        return f"{failed}, mean absolute difference {value:.4g} (95 % CI {low:.4g} to {high:.4g})"
    return failed
