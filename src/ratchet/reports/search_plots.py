"""Plots of a search, drawn by Optuna: history, learning curves, values of each setting, and the Pareto front."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ratchet.search.optuna_view import quiet, view_of
from ratchet.search.records import Study
from ratchet.search.setting_importance import dimensions

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

__all__ = ["write_plots"]


def write_plots(study: Study, folder: Path) -> list[Path]:
    """Draw a study into the folder, and return the files; none while no trial has a value."""
    if not study.ranked():
        return []
    import matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with matplotlib.rc_context(), quiet():
        matplotlib.use("svg")
        from matplotlib import pyplot

        for name, draw in _drawings(study).items():
            figure = np.ravel(draw())[0].figure
            written.append(folder / f"{name}.svg")
            figure.savefig(written[-1], bbox_inches="tight")
            pyplot.close(figure)
    return written


def _drawings(study: Study) -> dict[str, Callable[[], Any]]:
    from optuna.visualization import matplotlib as plots

    view, objective = view_of(study, dimensions(study)), study.objectives[0]

    def value(trial: "FrozenTrial") -> float:
        return float(trial.values[0])

    drawings: dict[str, Callable[[], Any]] = {
        "history": lambda: plots.plot_optimization_history(view, target=value, target_name=objective),
        "values": lambda: plots.plot_slice(view, target=value, target_name=objective),
    }
    if len(study.objectives) == 1:
        return drawings | {"curves": lambda: plots.plot_intermediate_values(view)}
    if len(study.objectives) == 2:
        names = list(study.objectives)
        return drawings | {"front": lambda: plots.plot_pareto_front(view, target_names=names)}
    return drawings
