"""Charts as inline SVG. Their colours are variables of report.css, so that they follow the light and dark theme."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from ratchet.evaluation.calibration import Bin
from ratchet.reports.numbers import percent

__all__ = ["COLOURS", "Line", "heat_map", "line_chart", "reliability_chart", "scale", "svg", "tick_text", "ticks"]

COLOURS = ("--series-1", "--series-2", "--series-3", "--series-4", "--series-5")
"""CSS variables for the lines of one chart."""

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Line:
    """One line of a chart."""

    name: str
    colour: str  # a CSS variable
    points: Points


_WIDTH, _HEIGHT = 360, 236
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 12, 10, 38
_SHADES = 8


def line_chart(lines: Sequence[Line], *, name: str, x_label: str, share: bool = False) -> Markup:
    """Draw lines in one frame; a single point shows as a dot. Return "" where there is no point.

    `share`: the y axis is in per cent.
    """
    points = [point for line in lines for point in line.points]
    if not points:
        return Markup()
    x_ticks = ticks([x for x, _ in points], most=6, whole=True)
    y_ticks = ticks([y for _, y in points], most=5)
    x, y = scale(x_ticks, _LEFT, _WIDTH - _RIGHT), scale(y_ticks, _HEIGHT - _BOTTOM, _TOP)
    step = y_ticks[1] - y_ticks[0]
    drawn = [
        f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="var(--line)"/>'
        f'<text x="{_LEFT - 7}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick_text(tick, step, share=share)}</text>'
        for tick in y_ticks
    ]
    drawn += [f'<text x="{x(tick):.1f}" y="{_HEIGHT - 21}" text-anchor="middle">{tick:g}</text>' for tick in x_ticks]
    drawn.append(f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 5}" text-anchor="end">{escape(x_label)}</text>')
    drawn += [_polyline(line, x, y) for line in lines]
    return svg(name, "".join(drawn), width=_WIDTH, height=_HEIGHT)


def reliability_chart(bins: Sequence[Bin]) -> Markup:
    """Draw the accuracy of each confidence bin against the diagonal of perfect calibration, and the samples below."""
    side, strip, left, top = 250, 46, _LEFT, 10
    width, height = left + side + 64, top + side + strip + 40
    most = max((bin.count for bin in bins), default=0) or 1
    bottom = top + side
    drawn = []
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = bottom - side * tick
        drawn.append(
            f'<line x1="{left}" x2="{left + side}" y1="{y:.1f}" y2="{y:.1f}" stroke="var(--line)"/>'
            f'<text x="{left - 7}" y="{y + 4:.1f}" text-anchor="end">{percent(tick, 0)}</text>'
            f'<text x="{left + side * tick:.1f}" y="{height - 20}" text-anchor="middle">{percent(tick, 0)}</text>'
        )
    for bin in bins:
        x, bar = left + side * bin.low + 1, side * (bin.high - bin.low) - 2
        if bin.accuracy is None or bin.confidence is None:
            continue
        up, samples = side * bin.accuracy, max(1.5, (strip - 8) * bin.count / most)
        centre = left + side * bin.confidence
        drawn.append(
            f'<rect x="{x:.1f}" y="{bottom - up:.1f}" width="{bar:.1f}" height="{up:.1f}" fill="var(--series-1)" '
            f'opacity=".38"/><circle cx="{centre:.1f}" cy="{bottom - up:.1f}" r="3.5" fill="var(--series-1)"/>'
            f'<rect x="{x:.1f}" y="{bottom + strip - samples:.1f}" width="{bar:.1f}" height="{samples:.1f}" '
            f'fill="var(--soft)" opacity=".55"><title>{bin.count:,} samples</title></rect>'
        )
    drawn.append(
        f'<line x1="{left}" y1="{bottom}" x2="{left + side}" y2="{top}" stroke="var(--soft)" stroke-dasharray="4 4"/>'
        f'<text x="{left + side + 8}" y="{bottom + strip - 4}">samples</text>'
        f'<text x="{left + side}" y="{height - 4}" text-anchor="end">confidence</text>'
    )
    return svg("Accuracy by confidence", "".join(drawn), width=width, height=height)


def heat_map(confusion: Sequence[Sequence[int]]) -> Markup:
    """Draw a confusion matrix of any size without numbers: one row per true class, one column per predicted class.

    The shade is the share of the true class. Cells of one shade are one path: a page with a thousand classes stays
    small and opens quickly.
    """
    shades: dict[tuple[bool, int], list[str]] = {}
    for actual, row in enumerate(confusion):
        total = sum(row)
        for predicted, count in enumerate(row):
            if count:
                shade = math.ceil(_SHADES * count / total)
                shades.setdefault((actual == predicted, shade), []).append(f"M{predicted} {actual}h1v1h-1z")
    size = len(confusion)
    cells = "".join(
        f'<path d="{"".join(paths)}" fill="var({"--good" if correct else "--bad"})" '
        f'opacity="{0.2 + 0.8 * shade / _SHADES:g}"/>'
        for (correct, shade), paths in sorted(shades.items())
    )
    frame = f'<rect width="{size}" height="{size}" fill="var(--card)"/>'
    edge = f'<rect width="{size}" height="{size}" fill="none" stroke="var(--line)" stroke-width="{size / 300:g}"/>'
    return svg("Confusion matrix", frame + cells + edge, width=size, height=size)


def svg(name: str, content: str, *, width: float, height: float, least_width: float = 0.0) -> Markup:
    """Return a drawing with a name for screen readers. One with a least width (pixels) needs a box that scrolls."""
    # The text of a drawing grows with it, so drawings with text grow by at most a third
    limit = f' style="max-width:{width * 4 / 3:.0f}px"' if "<text" in content else ""
    if least_width:
        limit = f' style="max-width:{width * 4 / 3:.0f}px;min-width:{least_width:.0f}px"'
    return Markup(
        f'<svg viewBox="0 0 {width:g} {height:g}"{limit} role="img" aria-label="{escape(name)}">{content}</svg>'
    )


def _polyline(line: Line, x: Callable[[float], float], y: Callable[[float], float]) -> str:
    if not line.points:
        return ""
    places = [f"{x(across):.1f},{y(up):.1f}" for across, up in line.points]
    last_x, last_y = places[-1].split(",")
    return (
        f'<polyline points="{" ".join(places)}" fill="none" stroke="var({line.colour})" stroke-width="2" '
        f'stroke-linejoin="round"/><circle cx="{last_x}" cy="{last_y}" r="3.2" fill="var({line.colour})"/>'
    )


def ticks(values: Sequence[float], *, most: int, whole: bool = False) -> list[float]:
    """Return round numbers, at least two, that span `values`."""
    low, high = min(values), max(values)
    if high - low < 1e-12 * max(1.0, abs(high)):
        low, high = (low - 1, high + 1) if whole else (low - abs(low or 1) / 10, high + abs(high or 1) / 10)
    rough = (high - low) / most
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
    if whole:
        step = max(1.0, round(step))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, max(last, first + 1) + 1)]


def tick_text(value: float, step: float, *, share: bool) -> str:
    """Return the text of a tick; `step` is the distance of two ticks."""
    if share:
        return percent(value, max(0, -math.floor(math.log10(step * 100) + 1e-9)))
    if step < 1e-3 or abs(value) >= 1e5:
        return "0" if value == 0 else f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:.{max(0, -math.floor(math.log10(step) + 1e-9))}f}"


def scale(marks: Sequence[float], start: float, end: float) -> Callable[[float], float]:
    """Return the function from values to places: the first tick is at `start`, the last at `end`."""
    low, high = marks[0], marks[-1]
    return lambda value: start + (end - start) * (value - low) / (high - low)
