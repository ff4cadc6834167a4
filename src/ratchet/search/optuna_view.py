"""Trials as Optuna has them, and a copy of a study in memory on which its samplers, pruners and importance work.

The copy keeps the numbers of the trials. Repetitions of finalists are failed trials in it, so nothing learns from them.
"""

import json
import logging
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ratchet.search.records import State, Study, Trial
from ratchet.settings.search_space import Dimension, plain_value

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial, TrialState

__all__ = ["category", "frozen", "optuna_state", "pareto_front", "quiet", "trial_of", "view_of"]

_NAMES: tuple[State, ...] = ("waiting", "running", "complete", "pruned", "failed")
_STATES: Mapping[State, str] = {name: name.upper() for name in _NAMES} | {"failed": "FAIL"}
_ATTRIBUTES = ("key", "values", "seed_of", "seed")
_MARK = "completed_rung_"  # system attributes of Optuna's successive halving begin so


def optuna_state(state: State) -> "TrialState":
    """Return Optuna's state."""
    from optuna.trial import TrialState

    return TrialState[_STATES[state]]


def frozen(trial: Trial, space: Sequence[Dimension], *, state: State | None = None) -> "FrozenTrial":
    """Return a trial as Optuna's. Optuna refuses a value outside the space as a parameter, so it is left out."""
    import optuna

    active = [each for each in space if each.key in trial.values and each.contains(trial.values[each.key])]
    state = state or trial.state
    ended = [trial.curve[-1][1]] if state == "pruned" and trial.curve else None
    with quiet():
        return optuna.trial.create_trial(
            state=optuna_state(state),
            values=list(trial.objectives) if state == "complete" else ended,
            params={each.key: category(_choice(each, trial.values[each.key])) for each in active},
            distributions={each.key: _distribution(each) for each in active},
            intermediate_values=dict(trial.curve),
            system_attrs=dict(trial.marks),
            user_attrs={name: getattr(trial, name) for name in _ATTRIBUTES},
        )


def trial_of(stored: "FrozenTrial") -> Trial:
    """Return a trial of the storage. One that another program has added counts as failed."""
    attributes = dict(stored.user_attrs)
    progress = dict(attributes.pop("progress", {}))
    spans = tuple((began, ended) for began, ended in progress.pop("spans", ()))
    names = {name: state for state, name in _STATES.items()}
    state = names[stored.state.name]
    if "key" not in attributes:
        reason = "not a trial of ratchet: another program has added it"
        return Trial(stored.number, "", dict(stored.params), state="failed", reason=reason)
    return Trial(
        number=stored.number,
        state=state,
        curve=tuple(sorted(stored.intermediate_values.items())),
        spans=spans,
        objectives=tuple(stored.values or ()) if state == "complete" else (),
        marks={name: value for name, value in stored.system_attrs.items() if name.startswith(_MARK)},
        **attributes,
        **progress,
    )


def view_of(study: Study, space: Sequence[Dimension], trials: Sequence[Trial] | None = None) -> "optuna.Study":
    """Return a copy of a study in memory, with all trials or these."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    directions = ["maximize" if larger else "minimize" for larger in study.maximize]
    view = optuna.create_study(study_name=study.name, directions=directions)  # type: ignore[arg-type]
    for trial in study.trials if trials is None else trials:
        state: State = "failed" if trial.seed_of is not None else "running" if trial.state == "waiting" else trial.state
        view.add_trial(frozen(trial, space, state=state))
    return view


def pareto_front(study: Study) -> list[Trial]:
    """Return the complete trials that no other one beats in all objectives, the best of the first objective first."""
    best = {trial.number for trial in view_of(study, ()).best_trials}
    return [trial for trial in study.ranked() if trial.number in best]


def category(value: Any) -> Any:
    """Return a choice as Optuna's category, which cannot be a list."""
    return json.dumps(value) if isinstance(value, list | tuple) else value


def _choice(dimension: Dimension, value: Any) -> Any:
    """Return the choice of the dimension that equals a value of JSON, which has lists in place of tuples."""
    return next((each for each in dimension.choices if plain_value(each) == value), value)


def _distribution(dimension: Dimension) -> "optuna.distributions.BaseDistribution":
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if dimension.kind == "choice":
        return CategoricalDistribution([category(choice) for choice in dimension.choices])
    if dimension.kind == "int":
        low, high, step = int(dimension.low), int(dimension.high), int(dimension.step or 1)
        return IntDistribution(low, high, log=dimension.log, step=step)
    return FloatDistribution(dimension.low, dimension.high, log=dimension.log, step=dimension.step)


class quiet(warnings.catch_warnings):
    """Hide Optuna's notes about experimental features and rounded bounds."""

    def __enter__(self) -> None:
        super().__enter__()
        warnings.simplefilter("ignore")
        logging.getLogger("optuna").setLevel(logging.ERROR)
