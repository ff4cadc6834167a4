"""Charts of numbers as inline SVG: predicted against true values, residuals, bars with intervals, distributions."""

from collections.abc import Sequence

from markupsafe import Markup, escape

from ratchet.evaluation.intervals import Interval
from ratchet.reports.charts import scale, svg, tick_text, ticks

__all__ = ["bar_chart", "histogram", "scatter_chart"]

Points = Sequence[tuple[float, float]]

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 360, 280, 60, 24, 10, 38
_MOST = 1500  # points that are drawn, evenly spaced among all
_DOT = 2.6
_LONGEST = 22  # characters of a name


def scatter_chart(points: Points, *, name: str, x_label: str, y_label: str, diagonal: bool = False) -> Markup:
    """Draw points, and the line on which they should be: the diagonal or y = 0. Return "" where there is no point."""
    if not points:
        return Markup()
    drawn = points[:: -(-len(points) // _MOST)]
    both = [value for point in points for value in point]
    x_ticks = ticks(both if diagonal else [x for x, _ in points], most=5)
    y_ticks = ticks(both if diagonal else [*(y for _, y in points), 0.0], most=5)
    x, y = scale(x_ticks, _LEFT, _WIDTH - _RIGHT), scale(y_ticks, _HEIGHT - _BOTTOM, _TOP)
    parts = _frame(x_ticks, y_ticks)
    start, end = x_ticks[0], x_ticks[-1]
    ends = (y(start), y(end)) if diagonal else (y(0.0), y(0.0))
    parts.append(
        f'<line x1="{x(start):.1f}" y1="{ends[0]:.1f}" x2="{x(end):.1f}" y2="{ends[1]:.1f}" stroke="var(--soft)" '
        'stroke-dasharray="4 4"/>'
    )
    half = _DOT / 2
    path = "".join(f"M{x(at) - half:.1f} {y(up) - half:.1f}h{_DOT}v{_DOT}h-{_DOT}z" for at, up in drawn)
    parts.append(f'<path d="{path}" fill="var(--series-1)" opacity=".5"/>')
    parts.append(
        f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 5}" text-anchor="end">{escape(x_label)}</text>'
        f'<text x="{_LEFT + 6}" y="{_TOP + 12}">{escape(y_label)}</text>'
    )
    return svg(name, "".join(parts), width=_WIDTH, height=_HEIGHT)


def bar_chart(bars: Sequence[tuple[str, Interval]], *, name: str, x_label: str) -> Markup:
    """Draw a horizontal bar with its interval for each name. Return "" where there is none."""
    if not bars:
        return Markup()
    row, left, width = 22, 150, 460
    height = row * len(bars) + 46
    marks = ticks([0.0, *(bound for _, each in bars for bound in (each.low, each.high))], most=5)
    x, step, bottom = scale(marks, left, width - 14), marks[1] - marks[0], row * len(bars) + 8
    parts = [
        f'<line x1="{x(mark):.1f}" x2="{x(mark):.1f}" y1="4" y2="{bottom}" stroke="var(--line)"/>'
        f'<text x="{x(mark):.1f}" y="{bottom + 15}" text-anchor="middle">{tick_text(mark, step, share=False)}</text>'
        for mark in marks
    ]
    for number, (label, each) in enumerate(bars):
        middle = 8 + row * number + row / 2
        begin, end = sorted((x(0.0), x(each.value)))
        parts.append(
            f'<text x="{left - 8}" y="{middle + 4:.1f}" text-anchor="end">{escape(_shortened(label))}</text>'
            f'<rect x="{begin:.1f}" y="{middle - 6:.1f}" width="{max(end - begin, 0.5):.1f}" height="12" '
            f'fill="var(--series-1)" opacity=".5"><title>{escape(label)}</title></rect>'
            f'<line x1="{x(each.low):.1f}" x2="{x(each.high):.1f}" y1="{middle:.1f}" y2="{middle:.1f}" '
            'stroke="var(--series-1)" stroke-width="2"/>'
        )
    parts.append(f'<text x="{width - 14}" y="{height - 4}" text-anchor="end">{escape(x_label)}</text>')
    return svg(name, "".join(parts), width=width, height=height)


def histogram(labels: Sequence[str], groups: Sequence[tuple[str, Sequence[float]]], *, name: str) -> Markup:
    """Draw the shares of each bin or value as bars side by side.

    Args:
        labels: of the bins, under the bars; all of them where there are few, else the first and the last.
        groups: a CSS variable of a colour, and the share of each bin.
        name: for screen readers.
    """
    width, height, left, bottom = 300, 130, 34, 106
    most = max((share for _, shares in groups for share in shares), default=0.0) or 1.0
    slot = (width - left - 6) / max(1, len(labels))
    bar = slot * 0.84 / max(1, len(groups))
    parts = [f'<line x1="{left}" x2="{width - 6}" y1="{bottom}" y2="{bottom}" stroke="var(--line)"/>']
    parts.append(f'<text x="{left - 5}" y="16" text-anchor="end">{100 * most:.0f} %</text>')
    for place, (colour, shares) in enumerate(groups):
        rectangles = [
            f"M{left + slot * number + bar * place:.1f} {bottom}v{-(bottom - 8) * share / most:.1f}h{bar:.1f}V{bottom}z"
            for number, share in enumerate(shares)
        ]
        parts.append(f'<path d="{"".join(rectangles)}" fill="var({colour})" opacity=".75"/>')
    few = len(labels) <= 3
    shown = enumerate(labels) if few else ((0, labels[0]), (len(labels) - 1, labels[-1]))
    for number, label in shown:
        anchor = "middle" if few else "start" if number == 0 else "end"
        at = left + slot * (number + 0.5) if few else left if number == 0 else width - 6
        parts.append(f'<text x="{at:.1f}" y="{bottom + 17}" text-anchor="{anchor}">{escape(_shortened(label))}</text>')
    return svg(name, "".join(parts), width=width, height=height)


def _frame(x_ticks: Sequence[float], y_ticks: Sequence[float]) -> list[str]:
    """Return grid lines and the texts of both axes."""
    x, y = scale(x_ticks, _LEFT, _WIDTH - _RIGHT), scale(y_ticks, _HEIGHT - _BOTTOM, _TOP)
    x_step, y_step = x_ticks[1] - x_ticks[0], y_ticks[1] - y_ticks[0]
    parts = [
        f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(mark):.1f}" y2="{y(mark):.1f}" stroke="var(--line)"/>'
        f'<text x="{_LEFT - 7}" y="{y(mark) + 4:.1f}" text-anchor="end">{tick_text(mark, y_step, share=False)}</text>'
        for mark in y_ticks
    ]
    return parts + [
        f'<text x="{x(mark):.1f}" y="{_HEIGHT - 21}" text-anchor="middle">{tick_text(mark, x_step, share=False)}</text>'
        for mark in x_ticks
    ]


def _shortened(label: str) -> str:
    return label if len(label) <= _LONGEST else f"{label[: _LONGEST - 1]}…"
