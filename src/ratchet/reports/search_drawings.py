"""The charts of a search with their legends: history, learning curves, parallel coordinates, Pareto front."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup

from ratchet.reports import search_text as text
from ratchet.reports.axes import Scale
from ratchet.reports.charts import COLOURS, Line
from ratchet.reports.numbers import setting
from ratchet.reports.search_charts import Axis, Strand, curves_chart, front_chart, history_chart, parallel_chart
from ratchet.search.finalists import winner
from ratchet.search.front import pareto_front
from ratchet.search.importance import dimensions
from ratchet.search.pruning import rungs
from ratchet.search.records import Study, Trial
from ratchet.settings.search_space import Dimension

__all__ = ["Drawing", "curves", "front", "history", "parallel"]

_HIGHLIGHTED = 4  # learning curves in colours
_CURVES = 300  # other learning curves that are drawn, evenly spread from good to bad
_CURVE_POINTS = 40  # of each
_LINES = 300  # trials of each of the pale colours in parallel coordinates
_BEST = 20  # most trials in the strong colour


@dataclass(frozen=True)
class Drawing:
    """A chart with a title, a legend and a note."""

    title: str
    drawing: Markup
    lines: Sequence[Line] = ()
    note: str = ""


def history(study: Study) -> Drawing | None:
    """Return the value of each trial in order; None: there is none."""
    known = sorted(_ranked(study), key=lambda trial: trial.number)
    if not known:
        return None
    better = max if study.maximize[0] else min
    complete = [(float(trial.number), trial.value or 0.0) for trial in known if trial.state == "complete"]
    others = [(float(trial.number), trial.value or 0.0) for trial in known if trial.state != "complete"]
    best: list[tuple[float, float]] = []
    for number, value in complete:
        if not best or better(value, best[-1][1]) != best[-1][1]:
            best.append((number, value))
    values = [value for _, value in (*complete, *others)]
    scale = _objective_scale(study, values)
    drawing = history_chart(
        complete, others, best, name=f"{study.objectives[0]} of each trial, in order", values=scale
    )  # fmt: skip
    legend = [
        _key("complete", "--series-1"), _key(f"fewer {text.unit(study)}", "--series-5"),
        _key("best complete trial so far", "--series-2"),
    ]  # fmt: skip
    return Drawing("History", drawing, legend if others else [legend[0], legend[2]], _note(values, scale))


def curves(study: Study) -> Drawing | None:
    """Return the curves of all trials, of which the best have colours; None: there is none."""
    ranked = [trial for trial in _ranked(study) if _curve(trial)]
    if not ranked:
        return None
    others = ranked[_HIGHLIGHTED:]
    drawn = others[:: -(-len(others) // _CURVES) or 1]
    pale = [_thinned(_curve(trial)) for trial in drawn]
    lines = [
        Line(f"trial {trial.number}", colour, _curve(trial))
        for trial, colour in zip(ranked, COLOURS[:_HIGHLIGHTED], strict=False)
    ]
    points = [point for curve in (*pale, *(line.points for line in lines)) for point in curve]
    scale = _objective_scale(study, [value for _, value in points])
    epochs = Scale.of([epoch for epoch, _ in points], whole=True, log=len(rungs(study)) > 1)
    drawing = curves_chart(
        pale, lines, name=f"{study.objectives[0]} during training", x_label=text.unit(study, 1), epochs=epochs,
        values=scale,
    )  # fmt: skip
    note = f"{len(drawn):,} of the {len(others):,} other trials are drawn." if len(drawn) < len(others) else ""
    title = "Value of each fold" if study.search.folds else "Learning curves"
    return Drawing(title, drawing, lines, f"{note} {_note([value for _, value in points], scale)}".strip())


def front(study: Study) -> Drawing | None:
    """Return the first two of several objectives, with the Pareto front; None: there is one objective, or no trial."""
    points = [
        (trial.objectives[0], trial.objectives[1])
        for trial in study.searched
        if len(trial.objectives) > 1 and all(map(math.isfinite, trial.objectives))
    ]
    if not points:
        return None
    scales = [
        Scale.of_objective([point[at] for point in points], maximize=study.maximize[at], share=text.is_share(name))
        for at, name in enumerate(study.objectives[:2])
    ]
    drawing = front_chart(
        points, [(trial.objectives[0], trial.objectives[1]) for trial in pareto_front(study)],
        name=f"Pareto front of {study.objectives[0]} and {study.objectives[1]}",
        labels=(study.objectives[0], study.objectives[1]), first=scales[0], second=scales[1],
    )  # fmt: skip
    return Drawing("Pareto front", drawing, [_key("complete", "--series-5"), _key("Pareto front", "--series-2")])


def parallel(study: Study) -> Drawing | None:
    """Return settings and values of all trials; None: no trial has a value."""
    ranked = _ranked(study)
    space = [_widened(dimension, study) for dimension in dimensions(study)]
    if not ranked or not space:
        return None
    names = text.short_names(study.search.space)
    scale = _objective_scale(study, [trial.value or 0.0 for trial in ranked])
    axes = [*(_axis(dimension, names) for dimension in space), Axis(study.objectives[0], scale)]
    lines = [[*(_place(dimension, trial.values) for dimension in space), trial.value] for trial in ranked]
    best, half = min(_BEST, max(2, len(lines) // 10)), max(2, math.ceil(len(lines) / 2))
    every = -(-len(lines) // (2 * _LINES))
    opacity = 0.25 if len(lines) > 100 else 0.5
    strands = [
        Strand("--series-5", 1, opacity, lines[half:][::every]),
        Strand("--series-3", 1, opacity, lines[best:half][::every]),
        Strand("--series-1", 1.4, 0.9, lines[1:best]), Strand("--series-2", 2.6, 1, lines[:1]),
    ]  # fmt: skip
    captions = [f"trial {ranked[0].number}", f"the next {best - 1}", "better half", "others"]
    colours = [strand.colour for strand in reversed(strands)]
    legend = [
        _key(caption, colour) for caption, colour, strand in zip(captions, colours, reversed(strands), strict=True)
        if strand.lines
    ]  # fmt: skip
    drawing = parallel_chart(axes, strands, name="Settings and value of each trial as parallel coordinates")
    note = "Each line is a trial."
    if any(trial.state != "complete" for trial in ranked):
        note += f" Complete trials count as better than others, whose values are of fewer {text.unit(study)}."
    return Drawing("Parallel coordinates", drawing, legend, note)


def _ranked(study: Study) -> list[Trial]:
    """Return the trials with a value, the winner first, then the best ones."""
    known = [trial for trial in study.ranked() if trial.value is not None and math.isfinite(trial.value)]
    best = winner(study)
    return sorted(known, key=lambda trial: best is None or trial.number != best.trial.number)


def _objective_scale(study: Study, values: Sequence[float]) -> Scale:
    return Scale.of_objective(values, maximize=study.maximize[0], share=text.is_share(study.objectives[0]))


def _axis(dimension: Dimension, names: Mapping[str, str]) -> Axis:
    if dimension.kind == "choice":
        return Axis(names[dimension.key], choices=[setting(choice) for choice in dimension.choices])
    kind: Any = "log" if dimension.log else "linear"
    return Axis(names[dimension.key], Scale(dimension.low, dimension.high, kind, whole=dimension.kind == "int"))


def _widened(dimension: Dimension, study: Study) -> Dimension:
    """Return a dimension that also contains the first trial's value, which may be outside the space."""
    values = [trial.values[dimension.key] for trial in study.searched[:1] if dimension.key in trial.values]
    outside = tuple(value for value in values if not dimension.contains(value))
    if dimension.kind == "choice":
        return replace(dimension, choices=(*dimension.choices, *outside))
    ends = [dimension.low, dimension.high]
    ends += [value for value in outside if _is_number(value) and (value > 0 or not dimension.log)]
    return replace(dimension, low=min(ends), high=max(ends))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _place(dimension: Dimension, values: Mapping[str, Any]) -> float | None:
    """Return the value of a setting on its axis; None: the trial does not have it, or it is no number."""
    if dimension.key not in values:
        return None
    if dimension.kind != "choice":
        return float(values[dimension.key]) if _is_number(values[dimension.key]) else None
    wanted = json.dumps(values[dimension.key])  # a list in the trial, a tuple in the space
    return next((float(at) for at, choice in enumerate(dimension.choices) if json.dumps(choice) == wanted), None)


def _curve(trial: Trial) -> list[tuple[float, float]]:
    return [(float(epoch), value) for epoch, value in trial.curve if math.isfinite(value)]


def _thinned(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """Return at most about `_CURVE_POINTS` of the points, the last included."""
    every = -(-len(points) // _CURVE_POINTS)
    return points if every == 1 else [*points[:-1:every], points[-1]]


def _key(name: str, colour: str) -> Line:
    return Line(name, colour, ())


def _note(values: Sequence[float], scale: Scale) -> str:
    """Return a sentence about an axis that is not linear, or that does not show all values."""
    notes = ["The axis is stretched towards 100 %."] if scale.kind == "stretched" else []
    if any(not scale.low <= value <= max(scale.high, 1.0 if scale.share else scale.high) for value in values):
        notes.append("Values far outside are drawn at the edge.")
    return " ".join(notes)
