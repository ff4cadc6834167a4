"""A comparison as one offline page: what it comes to first, then why."""

from collections.abc import Sequence

from ratchet.evaluation.intervals import Interval
from ratchet.provenance.comparison import Change, CodeChange, Comparison, Flip, MetricChange
from ratchet.reports.page import Cell, document, folded, section, table, text

__all__ = ["interval_words", "page", "said"]

_LISTED = 20  # more than this, and the rest is folded away


def page(found: Comparison) -> str:
    """The page as HTML: no script, no network; the same comparison gives the same text."""
    a, b = found.names
    return document(
        f"{a} and {b}",
        [
            _header(found),
            section("Warnings", "".join(f"<p>{text(one)}</p>" for one in found.doubts)),
            section(
                "Figures", _figures(found.metrics, found.names), note="On each one's own test rows, with intervals."
            ),
            section("Code", *_code(found.code)),
            section("Settings", _changes(found.settings, found.names), _same(found.settings, "The same settings.")),
            section("Data", *_data(found)),
            section("Environment", _changes(found.environment, found.names), _same(found.environment, "The same.")),
            _flipped(found),
            section("What could not be compared", "".join(f"<p>{text(one)}</p>" for one in found.missing)),
        ],
    )


def interval_words(value: Interval | float | None) -> str:
    """A figure as both the page and the terminal show it."""
    if value is None:
        return "-"
    if not isinstance(value, Interval):
        return f"{value:,.0f}" if value > 1 and value == int(value) else f"{value:.4f}"
    return f"{value.value:.4f} ({value.low:.4f} to {value.high:.4f})"


def said(value: object) -> str:
    """A setting or a version; a list in one line, and nothing as a dash."""
    if value is None:
        return "-"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _header(found: Comparison) -> str:
    rows = found.answers
    value = rows.accuracy if rows is not None else None
    kind = "" if value is None or value.low <= 0 <= value.high else "good" if value.low > 0 else "bad"
    title = "Not comparable" if value is None else f"{100 * value.value:+.2f} points"
    words = rows.summary if rows is not None else "The answers to the test rows could not be compared."
    over = f"A: {text(found.names[0])} &middot; B: {text(found.names[1])}"
    return (
        f'<header class="verdict {kind}"><p class="over">{over}</p><h1>{text(title)}</h1>'
        f'<p class="words">{text(words)}</p></header>'
    )


def _figures(figures: Sequence[MetricChange], names: tuple[str, str]) -> str:
    lines = [(one.name.replace("_", " "), interval_words(one.before), interval_words(one.after)) for one in figures]
    return table(("figure", f"A: {names[0]}", f"B: {names[1]}"), lines, kind="words")


def _flipped(found: Comparison) -> str:
    if found.answers is None:
        return ""
    parts = [
        _flips("From right to wrong", found.answers.worse, found.names),
        _flips("From wrong to right", found.answers.better, found.names),
    ]
    return section("Test rows that flipped", *parts, "" if any(parts) else "<p>None.</p>")


def _flips(title: str, flips: Sequence[Flip], names: tuple[str, str]) -> str:
    if not flips:
        return ""
    header = ("row", "label", "A answers", "B answers")
    lines = [(Cell(f"<code>{text(one.id)}</code>"), one.label, one.before, one.after) for one in flips]
    shown = table(header, lines[:_LISTED], kind="words")
    rest = folded(f"all {len(lines):,}", table(header, lines, kind="words")) if len(lines) > _LISTED else ""
    return f"<figure><figcaption><h3>{text(title)}: {len(flips):,}</h3></figcaption>{shown}{rest}</figure>"


def _code(code: CodeChange) -> list[str]:
    a, b = code.commits
    if a == b:
        told = f"<p>The same commit, <code>{text(a)}</code>.</p>"
    else:
        told = f"<p>From commit <code>{text(a)}</code> to <code>{text(b)}</code>.</p>"
    stat = f'<div class="scroll"><pre>{text(chr(10).join(code.stat))}</pre></div>' if code.stat else ""
    patched = table(("uncommitted change", "in"), list(code.patched.items()), kind="words")
    return [told, stat, patched or "<p>Nothing uncommitted differs.</p>"]


def _changes(changes: Sequence[Change] | None, names: tuple[str, str]) -> str:
    lines = [(one.name, said(one.before), said(one.after)) for one in changes or ()]
    return table(("", f"A: {names[0]}", f"B: {names[1]}"), lines, kind="words")


def _same(changes: Sequence[Change] | None, words: str) -> str:
    return f"<p>{text(words)}</p>" if changes is not None and not changes else ""


def _data(found: Comparison) -> list[str]:
    a, b = found.data
    if a == b:
        return [f"<p>The same data, <code>{text(a)}</code>.</p>"]
    told = [f"<p>From <code>{text(a)}</code> to <code>{text(b)}</code>.</p>"]
    if found.samples is not None:
        told.append(f"<p>{text(found.samples.words)}.</p>")
        shown = []
        for kind in found.samples.counts():
            changed = getattr(found.samples, kind)
            lines = changed.head(_LISTED).rows()
            more = f"<p>and {changed.height - _LISTED:,} more</p>" if changed.height > _LISTED else ""
            heading = f"<figcaption><h3>{text(kind.capitalize())}: {changed.height:,}</h3></figcaption>"
            shown.append(f"<figure>{heading}{table(changed.columns, lines, kind='words')}{more}</figure>")
        told.append(f'<div class="columns">{"".join(shown)}</div>' if shown else "")
    return told
