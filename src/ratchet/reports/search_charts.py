"""The charts of a search: history, learning curves, Pareto front, and the values of each setting."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from ratchet.reports.charts import COLOURS, Chart, Line, Scale, canvas, dots, shortened, strokes
from ratchet.reports.numbers import setting
from ratchet.reports.search_text import is_share
from ratchet.search.finalists import winner
from ratchet.search.importance import dimensions
from ratchet.search.optuna_view import pareto_front
from ratchet.search.records import Study, Trial
from ratchet.settings.search_space import Dimension

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["curves", "front", "history", "objective_scale", "slices"]

_WIDTH, _HEIGHT = 420, 260
_LOG_FROM = 20.0  # ratio of the largest to the smallest positive value from which the scale is logarithmic
_OTHER_CURVES = 300  # most learning curves without a colour, evenly spread from good to bad
_CHOICES = 8  # most choices with a label
_STATES = [Line("complete", "--series-1"), Line("other trials", "--series-5"), Line("best", "--series-2")]


def history(study: Study) -> Chart | None:
    """Draw the value of each trial in order, and the best so far; None: there is no value."""
    trials = sorted(_ranked(study), key=lambda trial: trial.number)
    if not trials:
        return None
    complete = [(trial.number, trial.value or 0.0) for trial in trials if trial.state == "complete"]
    records = accumulate((value for _, value in complete), max if study.maximize[0] else min)
    best = [(number, record) for (number, _), record in zip(complete, records, strict=True)]
    scale = objective_scale(study, [trial.value or 0.0 for trial in trials])
    with canvas(f"{study.objectives[0]} of each trial, in order", _WIDTH, _HEIGHT) as drawn:
        others = [(trial.number, trial.value or 0.0) for trial in trials if trial.state != "complete"]
        dots(drawn.axes, _inside(others, scale), "--series-5", 3.4, alpha=0.65)
        strokes(drawn.axes, [_inside(best, scale)], "--series-2", steps=True)
        dots(drawn.axes, _inside(complete, scale), "--series-1", 5)
        scale.apply(drawn.axes, "y")
        Scale.rounded(0, max(trials[-1].number, 1), whole=True).apply(drawn.axes, "x")
        drawn.axes.set_xlabel("trial")
    return Chart("History", drawn.svg, _STATES)


def curves(study: Study) -> Chart | None:
    """Draw the curves of all trials, of which the best have colours; None: there is none."""
    trials = [trial for trial in _ranked(study) if trial.curve]
    if not trials:
        return None
    colours = COLOURS[:-1]
    others = trials[len(colours) :]
    lines = [Line(f"trial {trial.number}", colour, trial.curve) for trial, colour in zip(trials, colours, strict=False)]
    scale = objective_scale(study, [value for trial in trials for _, value in trial.curve])
    with canvas(f"{study.objectives[0]} during training", _WIDTH, _HEIGHT, whole=True) as drawn:
        pale = others[:: -(-len(others) // _OTHER_CURVES) or 1]
        strokes(drawn.axes, [_inside(trial.curve, scale) for trial in pale], "--series-5", width=1, alpha=0.4)
        for line in reversed(lines):
            strokes(drawn.axes, [_inside(line.points, scale)], line.colour)
        scale.apply(drawn.axes, "y")
        drawn.axes.set_xlabel("epoch")
    return Chart("Learning curves", drawn.svg, lines)


def front(study: Study) -> Chart | None:
    """Draw the first two of several objectives, with the Pareto front; None: there is one objective, or no trial."""
    trials = [trial for trial in study.searched if len(trial.objectives) > 1]
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


def slices(study: Study) -> Iterator[Chart]:
    """Draw the value of each trial over each setting of the space. Trials without the setting are left out."""
    ranked = _ranked(study)
    for dimension in dimensions(study):
        trials = [trial for trial in ranked if dimension.key in trial.values]
        if not trials:
            continue
        scale = objective_scale(study, [trial.value or 0.0 for trial in trials])
        with canvas(f"{study.objectives[0]} by {dimension.key}", _WIDTH, 200) as drawn:
            places = _places(dimension, trials, drawn.axes)
            points = {trial.number: (place, scale.inside(trial.value or 0.0)) for trial, place in places}
            complete = [points[trial.number] for trial, _ in places if trial.state == "complete"]
            dots(drawn.axes, list(points.values()), "--series-5", 3.4, alpha=0.65)
            dots(drawn.axes, complete, "--series-1", 5)
            dots(drawn.axes, [points[ranked[0].number]] if ranked[0].number in points else [], "--series-2", 8)
            scale.apply(drawn.axes, "y")
        yield Chart(dimension.key, drawn.svg)


def _places(dimension: Dimension, trials: Sequence[Trial], axes: "Axes") -> list[tuple[Trial, float]]:
    """Set the x axis of a setting, and return the place of each trial on it.

    The first trial may be outside the space: the axis shows its value too, unless it is no number.
    """
    values = [(trial, trial.values[dimension.key]) for trial in trials]
    if dimension.kind == "choice":
        labels = list(dict.fromkeys(map(setting, (*dimension.choices, *(value for _, value in values)))))
        ticks = range(0, len(labels), -(-len(labels) // _CHOICES))
        axes.set_xlim(-0.5, len(labels) - 0.5)
        axes.set_xticks(ticks, [shortened(labels[at], 15) for at in ticks])
        return [(trial, float(labels.index(setting(value)))) for trial, value in values]
    numbers = [(trial, float(value)) for trial, value in values if isinstance(value, int | float)]
    numbers = [(trial, value) for trial, value in numbers if value > 0 or not dimension.log]
    ends = [dimension.low, dimension.high, *(value for _, value in numbers)]
    scale = Scale(min(ends), max(ends), "log" if dimension.log else "linear", whole=dimension.kind == "int")
    scale.apply(axes, "x")
    return numbers


def objective_scale(study: Study, values: Sequence[float], objective: int = 0) -> Scale:
    """Return the scale for values of an objective, from the best to the worst, or less if few are far off.

    One trial whose loss is 1e6 would otherwise hide the differences between all others.
    """
    share, maximize = is_share(study.objectives[objective]), study.maximize[objective]
    ordered = sorted(values, reverse=maximize)
    best, worst, quartile = ordered[0], ordered[-1], ordered[max(0, 3 * len(ordered) // 4 - 1)]
    reach = 3 * abs(quartile - best)
    if reach and abs(worst - best) > 2 * reach:
        worst = best - reach if maximize else best + reach
    low, high = min(best, worst), max(best, worst)
    if not share and low > 0 and high > _LOG_FROM * low:
        return Scale(low, high, "log")
    return Scale.rounded(low, high, share=share)


def _ranked(study: Study) -> list[Trial]:
    """Return the trials with a value, the winner first, then the best ones."""
    best = winner(study)
    return sorted(study.ranked(), key=lambda trial: best is None or trial.number != best.trial.number)


def _inside(points: Sequence[tuple[float, float]], scale: Scale) -> list[tuple[float, float]]:
    return [(x, scale.inside(y)) for x, y in points]
