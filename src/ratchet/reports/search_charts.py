"""Charts of a search as inline SVG: history, learning curves, parallel coordinates, two objectives.

Many trials share few paths, so a page with a thousand of them stays small.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from ratchet.reports.axes import Scale
from ratchet.reports.charts import Line, svg
from ratchet.reports.numbers import shown

__all__ = ["Axis", "Strand", "curves_chart", "front_chart", "history_chart", "parallel_chart"]

Points = Sequence[tuple[float, float]]

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 420, 260, 54, 14, 12, 40
_GAP, _AXIS_TOP, _AXIS_BOTTOM, _PARALLEL_HEIGHT = 124, 46, 266, 300
_PATHS = 24  # that the lines of one strand share: where many of them cross, the colour is stronger
_LONGEST = 15  # characters of a text beside an axis
_MOST_CHOICES = 12  # that are written beside an axis


@dataclass(frozen=True)
class Axis:
    """An axis of parallel coordinates: of numbers, or of choices, whose values are their places among them."""

    name: str
    scale: Scale | None = None
    choices: Sequence[str] = ()


@dataclass(frozen=True)
class Strand:
    """Lines of one colour, of which each has a value for each axis; None: it has no such value."""

    colour: str  # a CSS variable
    width: float
    opacity: float
    lines: Sequence[Sequence[float | None]]


def history_chart(complete: Points, others: Points, best: Points, *, name: str, values: Scale) -> Markup:
    """Draw the value of each trial in order, and the best so far as a line. Return "" where there is no trial."""
    if not complete and not others:
        return Markup()
    most = max(x for x, _ in (*complete, *others))
    frame, x, y = _frame(Scale.of([0, max(most, 1)], whole=True), values, x_label="trial")
    early = "".join(_square(x(at), y(up), 1.5) for at, up in others)
    ends = "".join(_square(x(at), y(up), 2.3) for at, up in complete)
    corners: list[tuple[float, float]] = []
    for at, up in best:
        corners += [(at, corners[-1][1]), (at, up)] if corners else [(at, up)]
    if corners:
        corners.append((most, corners[-1][1]))
    drawn = (
        f'<path d="{early}" fill="var(--series-5)" opacity=".65"/><path d="{ends}" fill="var(--series-1)"/>'
        f'{_path(corners, x, y, "--series-2", 2)}'
    )  # fmt: skip
    return svg(name, frame + drawn, width=_WIDTH, height=_HEIGHT)


def curves_chart(
    pale: Sequence[Points], lines: Sequence[Line], *, name: str, x_label: str, epochs: Scale, values: Scale
) -> Markup:
    """Draw the best curves in colours over all others. Return "" where there is no curve."""
    if not pale and not lines:
        return Markup()
    frame, x, y = _frame(epochs, values, x_label=x_label)
    shapes = [_shape([(x(at), y(up)) for at, up in points]) for points in pale if points]
    drawn = "".join(_path(line.points, x, y, line.colour, 2) for line in reversed(lines))
    return svg(name, frame + _strokes(shapes, "--series-5", 1, 0.4) + drawn, width=_WIDTH, height=_HEIGHT)


def parallel_chart(axes: Sequence[Axis], strands: Sequence[Strand], *, name: str) -> Markup:
    """Draw a vertical axis for each setting and the value, and a line through them for each trial.

    A line passes below an axis where its trial does not have the setting.
    """
    places = [_place(axis) for axis in axes]
    left = 20 + _GAP // 2
    drawn = []
    for strand in strands:
        shapes = [
            _shape([
                (left + _GAP * number, _AXIS_BOTTOM + 18 if value is None else place(value))
                for number, (place, value) in enumerate(zip(places, line, strict=True))
            ])
            for line in strand.lines
        ]  # fmt: skip
        drawn.append(_strokes(shapes, strand.colour, strand.width, strand.opacity))
    for number, (axis, place) in enumerate(zip(axes, places, strict=True)):
        missing = any(line[number] is None for strand in strands for line in strand.lines)
        drawn.append(_axis(axis, place, left + _GAP * number, missing=missing))
    width = 2 * left + _GAP * (len(axes) - 1)
    return svg(name, "".join(drawn), width=width, height=_PARALLEL_HEIGHT, least_width=0.8 * width)


def front_chart(
    points: Points, front: Points, *, name: str, labels: tuple[str, str], first: Scale, second: Scale
) -> Markup:
    """Draw two objectives of each trial, and the Pareto front as a line. Return "" where there is no point."""
    if not points:
        return Markup()
    frame, x, y = _frame(first, second, x_label=labels[0], y_label=labels[1])
    dots = "".join(_square(x(at), y(up), 1.8) for at, up in points)
    best = "".join(_square(x(at), y(up), 3) for at, up in front)
    drawn = (
        f'<path d="{dots}" fill="var(--series-5)" opacity=".7"/>{_path(front, x, y, "--series-2", 1.5)}'
        f'<path d="{best}" fill="var(--series-2)"/>'
    )  # fmt: skip
    return svg(name, frame + drawn, width=_WIDTH, height=_HEIGHT)


def _frame(
    across: Scale, up: Scale, *, x_label: str, y_label: str = ""
) -> tuple[str, Callable[[float], float], Callable[[float], float]]:
    """Return grid lines with their texts, and the functions from values to places."""
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM

    def x(value: float) -> float:
        return _LEFT + (right - _LEFT) * across.place(value)

    def y(value: float) -> float:
        return bottom - (bottom - _TOP) * up.place(value)

    parts = [
        f'<line x1="{_LEFT}" x2="{right}" y1="{y(mark):.1f}" y2="{y(mark):.1f}" stroke="var(--line)"/>'
        f'<text x="{_LEFT - 6}" y="{y(mark) + 4:.1f}" text-anchor="end">{text}</text>'
        for mark, text in up.marks
    ]
    parts += [
        f'<text x="{x(mark):.1f}" y="{bottom + 18}" text-anchor="middle">{text}</text>' for mark, text in across.marks
    ]
    parts.append(f'<text x="{right}" y="{_HEIGHT - 6}" text-anchor="end">{_text(x_label, 60)}</text>')
    if y_label:
        parts.append(f'<text class="halo" x="{_LEFT + 6}" y="{_TOP + 14}">{_text(y_label, 60)}</text>')
    return "".join(parts), x, y


def _place(axis: Axis) -> Callable[[float], float]:
    """Return the function from values to places on a vertical axis."""
    length, count, scale = _AXIS_BOTTOM - _AXIS_TOP, len(axis.choices), axis.scale
    if scale is None:
        return lambda value: _AXIS_BOTTOM - length * (value + 0.5) / count
    return lambda value: _AXIS_BOTTOM - length * scale.place(value)


def _axis(axis: Axis, place: Callable[[float], float], x: float, *, missing: bool) -> str:
    """Return an axis with its name and marks. `missing`: some trials do not have this setting."""
    every = -(-len(axis.choices) // _MOST_CHOICES)
    values = axis.scale.marks if axis.scale else [(float(at), name) for at, name in enumerate(axis.choices)][::every]
    marks = [(place(value), text) for value, text in values]
    if missing:
        marks.append((_AXIS_BOTTOM + 18, "not used"))
    parts = [
        f'<line x1="{x - 3}" x2="{x + 3}" y1="{y:.1f}" y2="{y:.1f}" stroke="var(--soft)"/>'
        f'<text class="halo" x="{x + 6}" y="{y + 4:.1f}">{_text(text, _LONGEST)}</text>'
        for y, text in marks
    ]
    return (
        f'<line x1="{x}" x2="{x}" y1="{_AXIS_TOP}" y2="{_AXIS_BOTTOM}" stroke="var(--soft)"/>{"".join(parts)}'
        f'<text x="{x}" y="{_AXIS_TOP - 18}" text-anchor="middle">{_text(axis.name, 19)}</text>'
    )


def _strokes(shapes: Sequence[str], colour: str, width: float, opacity: float) -> str:
    """Return lines of one colour in few paths."""
    return "".join(
        f'<path d="{"".join(shapes[number::_PATHS])}" fill="none" stroke="var({colour})" stroke-width="{width:g}" '
        f'stroke-opacity="{opacity:g}" stroke-linecap="round" stroke-linejoin="round"/>'
        for number in range(min(_PATHS, len(shapes)))
    )


def _path(points: Points, x: Callable[[float], float], y: Callable[[float], float], colour: str, width: float) -> str:
    return _strokes([_shape([(x(at), y(up)) for at, up in points])], colour, width, 1) if points else ""


def _shape(places: Points) -> str:
    """Return a line as a path; a single point is a dash."""
    if len(places) == 1:
        return f"M{places[0][0] - 2:.1f} {places[0][1]:.1f}h4"
    first, *rest = (f"{at:.1f} {up:.1f}" for at, up in places)
    return f"M{first}L{' '.join(rest)}"


def _square(x: float, y: float, half: float) -> str:
    return f"M{x - half:.1f} {y - half:.1f}h{2 * half:g}v{2 * half:g}h-{2 * half:g}z"


def _text(text: str, most: int) -> Markup:
    line = " ".join(shown(text).split())
    return escape(line if len(line) <= most else f"{line[: most - 1]}…")
