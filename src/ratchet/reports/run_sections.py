"""The report's sections that show measured figures."""

from ratchet.evaluation.figures import ClassFigures, Figures
from ratchet.evaluation.intervals import Interval
from ratchet.evaluation.robustness import NotMeasured, Robustness
from ratchet.reports import charts
from ratchet.reports.page import Cell, figure, folded, section, table, text

__all__ = [
    "calibration_section",
    "classes_section",
    "confusion_section",
    "headline_section",
    "robustness_section",
    "slices_section",
]

_NUMBERED = 20  # more classes than this, and the confusion matrix is a picture without numbers
_KIND_COLOURS = ("--one", "--two", "--three", "--four", "--five")
_LISTED = 30  # more than this, and a list shows its most telling part and folds the rest away


def headline_section(figures: Figures) -> str:
    """The headline figures as cards, each with its interval."""
    roc_auc = figures.roc_auc_interval if figures.roc_auc_interval is not None else figures.roc_auc
    cards = [
        _card("Accuracy", figures.accuracy, share=True),
        _card(f"Right among the first {figures.k}", figures.top_k, share=True),
        _card("F1, mean over classes", figures.macro_f1, share=True),
        _card("ROC-AUC, mean over classes", roc_auc),
        _card("Log-loss", figures.log_loss, bounded=False),
        _card("Calibration error", figures.ece, share=True),
    ]
    note = (
        f"Measured on {figures.rows:,} test rows that training never saw. Under each figure: its "
        f"{figures.confidence:.0%} interval."
    )
    return section("Figures", f'<div class="cards">{"".join(cards)}</div>', note=note)


def _card(name: str, value: Interval | float | None, *, share: bool = False, bounded: bool = True) -> str:
    if value is None:
        return ""

    def shown(number: float) -> str:
        return f"{number:.1%}" if share else f"{number:.3f}"

    if not isinstance(value, Interval):
        return f"<div><span>{text(name)}</span><strong>{shown(value)}</strong></div>"
    track = ""
    if bounded:
        left, width = 100 * value.low, 100 * (value.high - value.low)
        track = f'<span class="track"><i style="left:min({left:.1f}%,100% - 3px);width:{width:.1f}%"></i></span>'
    return (
        f"<div><span>{text(name)}</span><strong>{shown(value.value)}</strong>"
        f"<span>{shown(value.low)} to {shown(value.high)}</span>{track}</div>"
    )


def confusion_section(figures: Figures) -> str:
    """The confusion matrix, and the pairs that are mixed up most often."""
    classes, matrix = figures.classes, figures.confusion
    drawing = _heat_table(figures) if len(classes) <= _NUMBERED else charts.heat_map(matrix)
    pictured = figure("Truth downwards, answers across", drawing, "Shade: share of the rows of that truth.")
    mixed = sorted(
        (
            (count, actual, answer)
            for actual, row in enumerate(matrix)
            for answer, count in enumerate(row)
            if actual != answer and count
        ),
        key=lambda one: (-one[0], one[1], one[2]),
    )
    rows = [
        (f"{classes[actual]} → {classes[answer]}", count, f"{count / sum(matrix[actual]):.1%}")
        for count, actual, answer in mixed[:10]
    ]
    listed = figure("Most often mixed up", table(("truth → answer", "rows", "of the truth"), rows)) if rows else ""
    return section("What it mixes up", f'<div class="plots two">{pictured}{listed}</div>')


def _heat_table(figures: Figures) -> str:
    tall = max(len(name) for name in figures.classes) > 3
    header = [
        Cell(f'<span class="{"tall" if tall else ""}" title="{text(name)}">{text(name)}</span>')
        for name in figures.classes
    ]
    body = []
    for actual, row in enumerate(figures.confusion):
        total = sum(row) or 1
        cells = "".join(
            f'<td style="{_shade(count / total, right=actual == answer)}">{count if count else ""}</td>'
            for answer, count in enumerate(row)
        )
        name = text(figures.classes[actual])
        body.append(f'<tr><th scope="row" title="{name}">{name}</th>{cells}</tr>')
    head = "".join(f'<th scope="col">{cell}</th>' for cell in header)
    return (
        f'<div class="scroll"><table class="heat"><thead><tr><th></th>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _shade(share: float, *, right: bool) -> str:
    if share == 0:
        return "background:var(--card)"
    colour = "--good" if right else "--bad"
    ink = ";color:var(--paper)" if share > 0.5 else ""
    return f"background:color-mix(in srgb,var({colour}) {14 + 86 * share:.0f}%,var(--card)){ink}"


def calibration_section(figures: Figures) -> str:
    """The reliability diagram and its numbers."""
    ece = figures.ece
    note = (
        "When it says it is sure, is it right? Dots on the dashed line: confidence means what it says; below it: too "
        f"sure. The mean gap is {ece.value:.1%} ({ece.low:.1%} to {ece.high:.1%})."
    )
    filled = [one for one in figures.reliability if one.count]
    rows = [
        (f"{one.low:.0%} to {one.high:.0%}", one.count, f"{one.confidence:.1%}", f"{one.accuracy:.1%}")
        for one in filled[: -_LISTED // 2 : -1]
    ]
    chart = figure("Accuracy by confidence", charts.reliability_chart(figures.reliability))
    listed = figure("In figures", table(("confidence", "rows", "mean", "right"), rows))
    return section("Can its confidence be trusted?", f'<div class="plots two">{chart}{listed}</div>', note=note)


def slices_section(figures: Figures) -> str:
    """The figures on parts of the rows, those that are worse than the rest beyond chance first."""
    ordered = sorted(figures.slices, key=lambda one: (not one.is_worse, one.gap.value))
    if not ordered:
        return ""
    worse = [one for one in ordered if one.is_worse]
    header = ("part", "rows", "accuracy", "gap", "interval", "F1", "log-loss", "calibration error")
    rows = [
        (
            f"{one.column}: {one.value}", one.rows, f"{one.accuracy.value:.1%}", _points(one.gap.value),
            f"{one.accuracy.low:.1%} to {one.accuracy.high:.1%}",
            f"{one.macro_f1:.3f}", f"{one.log_loss:.3f}", f"{one.ece:.1%}",
        )
        for one in ordered
    ]  # fmt: skip
    told = [
        f"<p>{text(f'{one.column}: {one.value}')} is answered worse than the rest by {-100 * one.gap.value:.1f} points "
        f"({-100 * one.gap.high:.1f} to {-100 * one.gap.low:.1f}).</p>"
        for one in worse[:5]
    ]
    listed = table(header, rows[: max(_LISTED // 2, len(worse))], kind="narrow")
    rest = rows[max(_LISTED // 2, len(worse)) :]
    more = folded(f"the other {len(rest):,} parts", table(header, rest, kind="narrow")) if rest else ""
    note = (
        f"The test rows in {len(rows):,} parts, the weakest first; gap: points of accuracy to all other rows. A part "
        "is called worse only where that outlasts having looked at so many."
    )
    return section(
        "As good for all?", *(told or ["<p>No part is worse than the rest beyond chance.</p>"]), listed, more, note=note
    )


def _points(share: float) -> str:
    return f"{100 * share:+.1f}".replace("-", "\N{MINUS SIGN}")


def robustness_section(figures: Figures) -> str:
    """Accuracy by the strength of each corruption, beside that on the same rows as they are."""
    found = figures.robustness
    if isinstance(found, NotMeasured):
        return section("When pictures are spoilt", f'<p class="none">Not measured: {text(found.reason)}.</p>')
    clean = found.clean
    note = (
        f"{found.rows:,} test rows spread evenly, answered again in five strengths of each corruption (those of "
        f"CIFAR-10-C). As they are, {clean.value:.1%} of them are right ({clean.low:.1%} to {clean.high:.1%}); spoilt, "
        f"{found.overall:.1%}."
    )
    lines = [
        (kind, colour, [(float(strength), one.value) for strength, one in enumerate([clean, *shares])])
        for (kind, shares), colour in zip(found.corrupted.items(), _KIND_COLOURS, strict=True)
    ]
    drawing = charts.line_chart(lines, name="Accuracy by strength", across="strength; 0: as they are", share=True)
    chart = figure("Accuracy by strength", drawing, charts.key(lines))
    return section(
        "When pictures are spoilt", f'<div class="plots two">{chart}{_robustness_tables(found)}</div>', note=note
    )


def _robustness_tables(found: Robustness) -> str:
    strengths = [str(number) for number in range(1, 1 + len(next(iter(found.corrupted.values()))))]
    rows: list[tuple[object, ...]] = [("as they are", f"{100 * found.clean.value:.1f}", *("" for _ in strengths))]
    rows += [
        (kind, f"{100 * found.mean(kind):.1f}", *(f"{100 * one.value:.1f}" for one in shares))
        for kind, shares in found.corrupted.items()
    ]
    bounds = [(kind, *(_range(one) for one in shares)) for kind, shares in found.corrupted.items()]
    listed = figure("Right, per cent, by strength", table(("", "mean", *strengths), rows, kind="tight"))
    return f"<div>{listed}{folded('the intervals', table(('', *strengths), bounds, kind='tight'))}</div>"


def _range(one: Interval) -> str:
    return f"{100 * one.low:.0f}\N{EN DASH}{100 * one.high:.0f}"


def classes_section(figures: Figures) -> str:
    """A line per class; of many classes the weakest first, the rest folded away."""
    header = ("class", "rows", "precision", "recall", "F1", "ROC-AUC", "PR-AUC")

    def line(one: ClassFigures) -> tuple[object, ...]:
        shares = [
            None if value is None else f"{value:.3f}"
            for value in (one.precision, one.recall, one.f1, one.roc_auc, one.pr_auc)
        ]
        return (one.name, one.support, *shares)

    if len(figures.per_class) <= _LISTED:
        return section("Class by class", table(header, map(line, figures.per_class), kind="narrow"))
    ordered = sorted(figures.per_class, key=lambda one: (one.f1 is None, one.f1 or 0.0, one.name))
    worst, rest = ordered[: _LISTED // 2], ordered[_LISTED // 2 :]
    return section(
        "Class by class",
        table(header, map(line, worst), kind="narrow"),
        folded(f"the other {len(rest):,} classes", table(header, map(line, rest), kind="narrow")),
        note=f"The {len(worst)} weakest of {len(ordered):,} classes, by F1.",
    )
