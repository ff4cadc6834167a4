"""The charts of a search with their legends: history, learning curves, parallel coordinates, Pareto front."""

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Literal

from ratchet.reports import search_text as text
from ratchet.reports.charts import COLOURS, Canvas, Chart, Line, Scale, canvas, dots, shortened, strokes
from ratchet.reports.numbers import setting
from ratchet.search.finalists import winner
from ratchet.search.front import pareto_front
from ratchet.search.importance import dimensions
from ratchet.search.pruning import rungs
from ratchet.search.records import Study, Trial
from ratchet.settings.search_space import Dimension

__all__ = ["curves", "front", "history", "objective_scale", "parallel"]

Points = Sequence[tuple[float, float]]

_WIDTH, _HEIGHT = 420, 260
_TALL, _GAP, _BELOW = 300, 124, 16  # of parallel coordinates: height, between axes, where a line passes below an axis
_STRETCHED_FROM = 0.9  # best accuracy from which the scale is stretched
_LOG_FROM = 20.0  # ratio of the largest to the smallest positive value from which the scale is logarithmic
_HIGHLIGHTED = 4  # learning curves in colours
_CURVES = 300  # other learning curves that are drawn, evenly spread from good to bad
_CURVE_POINTS = 40  # of each
_LINES = 300  # trials of each of the pale colours in parallel coordinates
_BEST = 20  # most trials in the strong colour
_PATHS = 24  # that the lines of one colour share: where many of them cross, the colour is stronger
_ABSENT = object()
_CHOICES, _LONGEST = 12, 15  # most choices beside an axis, and characters of each


def history(study: Study) -> Chart | None:
    """Draw the value of each trial in order, and the best so far; None: there is no value."""
    ranked = sorted(_ranked(study), key=lambda trial: trial.number)
    if not ranked:
        return None
    values = [trial.value or 0.0 for trial in ranked]
    scale = objective_scale(study, values)
    complete, others = (
        [(trial.number, scale.inside(trial.value or 0.0)) for trial in ranked if (trial.state == "complete") is wanted]
        for wanted in (True, False)
    )
    records = accumulate((value for _, value in complete), max if study.maximize[0] else min)
    best = [(number, record) for (number, _), record in zip(complete, records, strict=True)]
    best += [(ranked[-1].number, record) for _, record in best[-1:]]
    with canvas(f"{study.objectives[0]} of each trial, in order", _WIDTH, _HEIGHT) as drawn:
        dots(drawn.axes, others, "--series-5", 3.4, alpha=0.65)
        strokes(drawn.axes, [best], "--series-2", steps=True)
        dots(drawn.axes, complete, "--series-1", 5)
        scale.apply(drawn.axes, "y")
        Scale.rounded(0, max(ranked[-1].number, 1), whole=True).apply(drawn.axes, "x")
        drawn.axes.set_xlabel("trial")
    legend = [Line("complete", "--series-1"), Line("best complete trial so far", "--series-2")]
    if others:
        legend.insert(1, Line(f"fewer {text.unit(study)}", "--series-5"))
    return Chart("History", drawn.svg, legend, _note(values, scale))


def curves(study: Study) -> Chart | None:
    """Draw the curves of all trials, of which the best have colours; None: there is none."""
    ranked = [trial for trial in _ranked(study) if _curve(trial)]
    if not ranked:
        return None
    others = ranked[_HIGHLIGHTED:]
    pale = [_thinned(_curve(trial)) for trial in others[:: -(-len(others) // _CURVES) or 1]]
    lines = [
        Line(f"trial {trial.number}", colour, _curve(trial))
        for trial, colour in zip(ranked, COLOURS[:_HIGHLIGHTED], strict=False)
    ]
    points = [point for curve in (*pale, *(line.points for line in lines)) for point in curve]
    values, last = [value for _, value in points], max(epoch for epoch, _ in points)
    scale = objective_scale(study, values)
    with canvas(f"{study.objectives[0]} during training", _WIDTH, _HEIGHT) as drawn:
        _overlaid(drawn, [_inside(curve, scale) for curve in pale], "--series-5", 1, 0.4)
        for line in reversed(lines):
            strokes(drawn.axes, [_inside(line.points, scale)], line.colour)
        scale.apply(drawn.axes, "y")
        kind: Literal["log", "linear"] = "log" if len(rungs(study)) > 1 and last > 1 else "linear"
        Scale(min(epoch for epoch, _ in points), last, kind, whole=True).apply(drawn.axes, "x")
        drawn.axes.set_xlabel(text.unit(study, 1))
    note = f"{len(pale):,} of the {len(others):,} other trials are drawn." if len(pale) < len(others) else ""
    title = "Learning curves"
    return Chart(title, drawn.svg, lines, f"{note} {_note(values, scale)}".strip())


def front(study: Study) -> Chart | None:
    """Draw the first two of several objectives, with the Pareto front; None: there is one objective, or no trial."""
    trials = [
        trial for trial in study.searched if len(trial.objectives) > 1 and all(map(math.isfinite, trial.objectives))
    ]
    if not trials:
        return None
    first, second = (objective_scale(study, [trial.objectives[at] for trial in trials], at) for at in (0, 1))
    points, best = (
        [(first.inside(trial.objectives[0]), second.inside(trial.objectives[1])) for trial in part]
        for part in (trials, pareto_front(study))
    )
    name = f"Pareto front of {study.objectives[0]} and {study.objectives[1]}"
    with canvas(name, _WIDTH, _HEIGHT, top=24) as drawn:
        dots(drawn.axes, points, "--series-5", 4, alpha=0.7)
        strokes(drawn.axes, [best], "--series-2", width=1.5)
        dots(drawn.axes, best, "--series-2", 6)
        first.apply(drawn.axes, "x")
        second.apply(drawn.axes, "y")
        drawn.axes.set(xlabel=study.objectives[0], title=study.objectives[1])
    return Chart("Pareto front", drawn.svg, [Line("complete", "--series-5"), Line("Pareto front", "--series-2")])


def parallel(study: Study) -> Chart | None:
    """Draw a vertical axis for each setting and the value, and a line through them for each trial.

    A line passes below an axis where its trial does not have the setting. None: no trial has a value.
    """
    ranked = _ranked(study)
    space = dimensions(study)
    if not ranked or not space:
        return None
    count = len(ranked)
    best, half, every = min(_BEST, max(2, count // 10)), max(2, -(-count // 2)), -(-count // (2 * _LINES))
    pale = 0.25 if count > 100 else 0.5
    groups = [
        ("others", "--series-5", 1.0, pale, slice(half, None, every)),
        ("better half", "--series-3", 1.0, pale, slice(best, half, every)),
        (f"the next {best - 1}", "--series-1", 1.4, 0.9, slice(1, best)),
        (f"trial {ranked[0].number}", "--series-2", 2.6, 1.0, slice(1)),
    ]
    names, values = text.short_names(study.search.space), [trial.value or 0.0 for trial in ranked]
    columns = [(names[dimension.key], *_column_values(dimension, ranked)) for dimension in space]
    columns.append((study.objectives[0], objective_scale(study, values), values))
    width, name = 164 + _GAP * len(space), "Settings and value of each trial as parallel coordinates"
    with canvas(name, width, _TALL, left=0, right=0, top=0, bottom=0, least_width=0.8 * width) as drawn:
        drawn.axes.set(xlim=(0, width), ylim=(0, _TALL))
        drawn.axes.set_axis_off()
        places = [_column(drawn, 82 + _GAP * at, *column) for at, column in enumerate(columns)]
        shapes = list(zip(*places, strict=True))
        for _, colour, thickness, opacity, part in groups:
            _overlaid(drawn, shapes[part], colour, thickness, opacity)
    legend = [Line(caption, colour) for caption, colour, _, _, part in reversed(groups) if ranked[part]]
    note = "Each line is a trial."
    if any(trial.state != "complete" for trial in ranked):
        note += f" Complete trials count as better than others, whose values are of fewer {text.unit(study)}."
    return Chart("Parallel coordinates", drawn.svg, legend, note)


def _column(
    drawn: Canvas, x: float, name: str, scale: Scale | Sequence[str], values: Sequence[float | None]
) -> Sequence[tuple[float, float]]:
    """Draw a vertical axis, and return the place of each value: those of choices are their numbers."""
    bottom, top = 34, _TALL - 46
    area = x / drawn.figure.bbox.width, bottom / _TALL, 1e-6, (top - bottom) / _TALL
    axes = drawn.figure.add_axes(area, frameon=False)
    if isinstance(scale, Scale):
        scale.apply(axes, "y")
        values = [value if value is None else scale.inside(value) for value in values]
    else:
        ticks = range(0, len(scale), -(-len(scale) // _CHOICES))
        axes.set(ylim=(-0.5, len(scale) - 0.5))
        axes.set_yticks(ticks, [shortened(scale[at], _LONGEST) for at in ticks])
    axes.tick_params(axis="y", labelleft=False, labelright=True)
    axes.xaxis.set_visible(False)
    axes.grid(visible=False)
    drawn.axes.text(x, top + 18, shortened(name, 19), horizontalalignment="center")
    if None in values:
        drawn.axes.text(x + 6, _BELOW - 4, "not used")
    marks = axes.transData.transform([(0, tick) for tick in axes.get_yticks()])[:, 1].tolist()
    marks = [[(x - 3, y), (x + 3, y)] for y in marks if bottom - 1 <= y <= top + 1]
    strokes(drawn.axes, [[(x, bottom), (x, top)], *marks], "--soft", width=1)
    known = axes.transData.transform([(0, math.nan if value is None else value) for value in values])[:, 1]
    return [(x, _BELOW if math.isnan(y) else y) for y in known.tolist()]


def _overlaid(drawn: Canvas, lines: Sequence[Points], colour: str, width: float, opacity: float) -> None:
    """Draw lines of one colour in few paths."""
    for number in range(min(_PATHS, len(lines))):
        strokes(drawn.axes, lines[number::_PATHS], colour, width=width, alpha=opacity)


def objective_scale(study: Study, values: Sequence[float], objective: int = 0) -> Scale:
    """Return the scale for values of an objective, from the best to the worst, or less if few are far off.

    One trial whose loss is 1e6 would otherwise hide the differences between all others.
    """
    share, maximize = text.is_share(study.objectives[objective]), study.maximize[objective]
    ordered = sorted(values, reverse=maximize)
    best, worst, quartile = ordered[0], ordered[-1], ordered[max(0, 3 * len(ordered) // 4 - 1)]
    reach = 3 * abs(quartile - best)
    if reach and abs(worst - best) > 2 * reach:
        worst = best - reach if maximize else best + reach
    low, high = min(best, worst), max(best, worst)
    if share and maximize and _STRETCHED_FROM <= high <= 1 and high > low:
        return Scale(max(low, 0.01), min(high, 0.9999), "logit", share=True)
    if not share and low > 0 and high > _LOG_FROM * low:
        return Scale(low, high, "log")
    return Scale.rounded(low, high, share=share)


def _ranked(study: Study) -> list[Trial]:
    """Return the trials with a value, the winner first, then the best ones."""
    known = [trial for trial in study.ranked() if trial.value is not None and math.isfinite(trial.value)]
    best = winner(study)
    return sorted(known, key=lambda trial: best is None or trial.number != best.trial.number)


def _column_values(
    dimension: Dimension, trials: Sequence[Trial]
) -> tuple[Scale | Sequence[str], Sequence[float | None]]:
    """Return the axis of a setting, and the place of each trial on it; None: the trial does not have the setting.

    The first trial may be outside the space: the axis shows its value too.
    """
    values = [trial.values.get(dimension.key, _ABSENT) for trial in trials]
    if dimension.kind == "choice":
        present = (value for value in values if value is not _ABSENT)
        choices = list(dict.fromkeys(map(setting, (*dimension.choices, *present))))
        return choices, [None if value is _ABSENT else float(choices.index(setting(value))) for value in values]
    numbers = [
        float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None for value in values
    ]
    ends = [dimension.low, dimension.high]
    ends += [number for number in numbers if number is not None and (number > 0 or not dimension.log)]
    kind: Literal["log", "linear"] = "log" if dimension.log else "linear"
    return Scale(min(ends), max(ends), kind, whole=dimension.kind == "int"), numbers


def _curve(trial: Trial) -> list[tuple[float, float]]:
    return [(float(epoch), value) for epoch, value in trial.curve if math.isfinite(value)]


def _thinned(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """Return at most about `_CURVE_POINTS` of the points, the last included."""
    every = -(-len(points) // _CURVE_POINTS)
    return points if every == 1 else [*points[:-1:every], points[-1]]


def _inside(points: Points, scale: Scale) -> Points:
    return [(x, scale.inside(y)) for x, y in points]


def _note(values: Sequence[float], scale: Scale) -> str:
    """Return a sentence about an axis that is not linear, or that does not show all values."""
    notes = ["The axis is stretched towards 100 %."] if scale.kind == "logit" else []
    if any(not scale.low <= value <= max(scale.high, 1.0 if scale.share else scale.high) for value in values):
        notes.append("Values far outside are drawn at the edge.")
    return " ".join(notes)
