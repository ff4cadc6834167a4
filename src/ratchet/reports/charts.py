"""Drawings as inline SVG, coloured by the page's own variables so that they follow light and dark."""

import math
from collections.abc import Callable, Sequence

from ratchet.evaluation.calibration import Bin
from ratchet.reports.page import text

__all__ = ["Line", "heat_map", "key", "line_chart", "reliability_chart"]

Points = Sequence[tuple[float, float]]
Line = tuple[str, str, Points]  # name, colour (a CSS variable), points

_WIDTH, _HEIGHT = 360, 236
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 12, 10, 38
_SHADES = 8


def key(lines: Sequence[Line]) -> str:
    """Which colour is which line, as HTML."""
    return "".join(
        f'<span class="key"><i style="background:var({colour})"></i>{text(name)}</span>' for name, colour, _ in lines
    )


def line_chart(lines: Sequence[Line], *, name: str, across: str, share: bool = False) -> str:
    """Lines over a shared frame; a lone point shows as a dot. Empty where there is no point. `share`: y in per cent."""
    points = [point for _, _, line in lines for point in line]
    if not points:
        return ""
    x_ticks = _ticks([x for x, _ in points], most=6, whole=True)
    y_ticks = _ticks([y for _, y in points], most=5)
    x, y = _scale(x_ticks, _LEFT, _WIDTH - _RIGHT), _scale(y_ticks, _HEIGHT - _BOTTOM, _TOP)
    step = y_ticks[1] - y_ticks[0]
    drawn = [
        f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="var(--line)"/>'
        f'<text x="{_LEFT - 7}" y="{y(tick) + 4:.1f}" text-anchor="end">{_tick(tick, step, share=share)}</text>'
        for tick in y_ticks
    ]
    drawn += [f'<text x="{x(tick):.1f}" y="{_HEIGHT - 21}" text-anchor="middle">{tick:g}</text>' for tick in x_ticks]
    drawn.append(f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 5}" text-anchor="end">{text(across)}</text>')
    drawn += [_drawn(line, colour, x, y) for _, colour, line in lines]
    return _svg(name, "".join(drawn), width=_WIDTH, height=_HEIGHT)


def reliability_chart(bins: Sequence[Bin]) -> str:
    """Accuracy in each bin of confidence beside the diagonal of perfect calibration, and below it how many rows."""
    side, strip, left, top = 250, 46, _LEFT, 10
    width, height = left + side + 54, top + side + strip + 40
    fullest = max((one.count for one in bins), default=0) or 1
    bottom = top + side
    drawn = []
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = bottom - side * tick
        drawn.append(
            f'<line x1="{left}" x2="{left + side}" y1="{y:.1f}" y2="{y:.1f}" stroke="var(--line)"/>'
            f'<text x="{left - 7}" y="{y + 4:.1f}" text-anchor="end">{tick:.0%}</text>'
            f'<text x="{left + side * tick:.1f}" y="{height - 20}" text-anchor="middle">{tick:.0%}</text>'
        )
    for one in bins:
        x, bar = left + side * one.low + 1, side * (one.high - one.low) - 2
        if one.accuracy is None or one.confidence is None:
            continue
        tall, rows = side * one.accuracy, max(1.5, (strip - 8) * one.count / fullest)
        where = left + side * one.confidence
        drawn.append(
            f'<rect x="{x:.1f}" y="{bottom - tall:.1f}" width="{bar:.1f}" height="{tall:.1f}" fill="var(--one)" '
            f'opacity=".38"/><circle cx="{where:.1f}" cy="{bottom - tall:.1f}" r="3.5" fill="var(--one)"/>'
            f'<rect x="{x:.1f}" y="{bottom + strip - rows:.1f}" width="{bar:.1f}" height="{rows:.1f}" '
            f'fill="var(--soft)" opacity=".55"><title>{one.count:,} rows</title></rect>'
        )
    drawn.append(
        f'<line x1="{left}" y1="{bottom}" x2="{left + side}" y2="{top}" stroke="var(--soft)" stroke-dasharray="4 4"/>'
        f'<text x="{left + side + 8}" y="{bottom + strip - 4}">rows</text>'
        f'<text x="{left + side}" y="{height - 4}" text-anchor="end">confidence</text>'
    )
    return _svg("Accuracy by confidence", "".join(drawn), width=width, height=height)


def heat_map(confusion: Sequence[Sequence[int]]) -> str:
    """A confusion matrix of any size without numbers: truth downwards, answers across.

    The shade is the share of each truth. Cells of one shade are one path, so that a thousand
    classes stay a page that opens at once.
    """
    shades: dict[tuple[bool, int], list[str]] = {}
    for actual, row in enumerate(confusion):
        total = sum(row)
        for answer, count in enumerate(row):
            if count:
                shade = math.ceil(_SHADES * count / total)
                shades.setdefault((actual == answer, shade), []).append(f"M{answer} {actual}h1v1h-1z")
    size = len(confusion)
    cells = "".join(
        f'<path d="{"".join(paths)}" fill="var({"--good" if right else "--bad"})" '
        f'opacity="{0.2 + 0.8 * shade / _SHADES:g}"/>'
        for (right, shade), paths in sorted(shades.items())
    )
    frame = f'<rect width="{size}" height="{size}" fill="var(--card)"/>'
    edge = f'<rect width="{size}" height="{size}" fill="none" stroke="var(--line)" stroke-width="{size / 300:g}"/>'
    return _svg("Confusion matrix", frame + cells + edge, width=size, height=size)


def _svg(name: str, content: str, *, width: float, height: float) -> str:
    # Text in a drawing grows with it: past a third it would shout. A heat map has none.
    limit = f' style="max-width:{width * 4 / 3:.0f}px"' if "<text" in content else ""
    return f'<svg viewBox="0 0 {width:g} {height:g}"{limit} role="img" aria-label="{text(name)}">{content}</svg>'


def _drawn(line: Points, colour: str, x: Callable[[float], float], y: Callable[[float], float]) -> str:
    if not line:
        return ""
    places = [f"{x(across):.1f},{y(up):.1f}" for across, up in line]
    last_x, last_y = places[-1].split(",")
    dot = f'<circle cx="{last_x}" cy="{last_y}" r="3.2" fill="var({colour})"/>'
    return (
        f'<polyline points="{" ".join(places)}" fill="none" stroke="var({colour})" stroke-width="2" '
        f'stroke-linejoin="round"/>{dot}'
    )


def _ticks(values: Sequence[float], *, most: int, whole: bool = False) -> list[float]:
    """Round numbers, at least two, that span `values`."""
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


def _tick(value: float, step: float, *, share: bool) -> str:
    if share:
        return f"{value:.{max(0, -math.floor(math.log10(step * 100) + 1e-9))}%}"
    if step < 1e-3 or abs(value) >= 1e5:
        return "0" if value == 0 else f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:.{max(0, -math.floor(math.log10(step) + 1e-9))}f}"


def _scale(ticks: Sequence[float], start: float, end: float) -> Callable[[float], float]:
    low, high = ticks[0], ticks[-1]
    return lambda value: start + (end - start) * (value - low) / (high - low)
