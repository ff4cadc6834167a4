"""The page of `ratchet compare`: the result of the comparison first, then what differs."""

from collections.abc import Sequence
from dataclasses import dataclass

from ratchet.provenance.comparison import Change, Comparison, Flip
from ratchet.reports.changed_samples import sample_tables
from ratchet.reports.numbers import measured, setting
from ratchet.reports.templating import render_html

__all__ = ["page"]

Rows = Sequence[Sequence[object]]

_LISTED = 20  # samples that are listed; the others are folded away or counted


@dataclass(frozen=True)
class Head:
    """The difference in accuracy."""

    points: float | None  # B's accuracy minus A's; None: not comparable
    verdict: str  # good, bad, or "" where the difference is not significant
    summary: str


def page(comparison: Comparison) -> str:
    """Return the page as HTML; the same comparison gives the same text."""
    rows, samples = comparison.answers, comparison.samples
    return render_html(
        "comparison.html.j2",
        names=comparison.names,
        head=_head(comparison),
        warnings=comparison.doubts,
        metrics=[
            (metric.name.replace("_", " "), measured(metric.before), measured(metric.after))
            for metric in comparison.metrics
        ],
        commits=comparison.code.commits,
        code_stat="\n".join(comparison.code.stat),
        patched=list(comparison.code.patched.items()),
        settings=_changes(comparison.settings),
        data=comparison.data,
        samples_summary=samples.summary if samples else None,
        samples=sample_tables(samples, _LISTED) if samples else [],
        environment=_changes(comparison.environment),
        flips=[
            ("Correct in A, wrong in B", _flips(rows.worse)),
            ("Wrong in A, correct in B", _flips(rows.better)),
        ]
        if rows
        else None,
        missing=comparison.missing,
    )


def _head(comparison: Comparison) -> Head:
    rows = comparison.answers
    if rows is None:
        return Head(None, "", "The predictions on the test samples could not be compared.")
    accuracy = rows.accuracy
    if accuracy is None:
        return Head(None, "", rows.summary)
    verdict = "good" if accuracy.low > 0 else "bad" if accuracy.high < 0 else ""
    return Head(100 * accuracy.value, verdict, rows.summary)


def _changes(changes: Sequence[Change] | None) -> Rows | None:
    if changes is None:
        return None
    return [(change.name, setting(change.before), setting(change.after)) for change in changes]


def _flips(flips: Sequence[Flip]) -> Rows:
    return [(flip.id, flip.label, flip.before, flip.after) for flip in flips]
