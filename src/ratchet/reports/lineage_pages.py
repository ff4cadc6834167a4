"""Pages of `ratchet trace` and `ratchet compare`. Equal arguments give equal text."""

from collections.abc import Sequence
from dataclasses import astuple

from ratchet.provenance.comparison import Change, Comparison
from ratchet.provenance.lineage import Link
from ratchet.reports.numbers import measured, setting
from ratchet.reports.templating import render_html

__all__ = ["comparison_page", "trace_page"]

_LISTED = 20  # samples that are listed; the others are folded away or counted


def trace_page(name: str, summary: Sequence[str], chains: Sequence[Link]) -> str:
    """Return the page for `name`, which `summary` describes: the chain from data to versions as a tree."""
    return render_html("trace.html.j2", name=name, summary=summary, chains=chains)


def comparison_page(comparison: Comparison) -> str:
    """Return the page of a comparison: its result first, then what differs."""
    answers = comparison.answers
    accuracy = answers.accuracy if answers else None
    verdict = "" if accuracy is None else "good" if accuracy.low > 0 else "bad" if accuracy.high < 0 else ""
    metrics = [
        (metric.name.replace("_", " "), measured(metric.before), measured(metric.after))
        for metric in comparison.metrics
    ]
    flips = {"Correct in A, wrong in B": answers.worse, "Wrong in A, correct in B": answers.better} if answers else {}
    return render_html(
        "comparison.html.j2",
        comparison=comparison,
        points=100 * accuracy.value if accuracy else None,
        verdict=verdict,
        summary=answers.summary if answers else "The predictions on the test samples could not be compared.",
        metrics=metrics,
        settings=_changes(comparison.settings),
        environment=_changes(comparison.environment),
        flips=[(title, [astuple(flip) for flip in changed]) for title, changed in flips.items()],
        listed=_LISTED,
    )


def _changes(changes: Sequence[Change] | None) -> list[tuple[str, str, str]] | None:
    if changes is None:
        return None
    return [(change.name, setting(change.before), setting(change.after)) for change in changes]
