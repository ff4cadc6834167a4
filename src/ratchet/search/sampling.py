"""The next settings of a search, by Optuna's samplers.

The database of studies is the record. Optuna works on a copy of it in memory (`View`), for two reasons: a trial that
has been paused may continue later, and Optuna's own storages do not allow that. And its CMA-ES keeps a pickle in the
storage. The random numbers of a trial depend on `search.sampler_seed` and its number only, so a search by one worker
can be interrupted and ends with the same trials.
"""

import itertools
import json
import logging
import math
import random
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ratchet.search.records import Study, Trial
from ratchet.settings.model import Params
from ratchet.settings.search_settings import SearchSettings
from ratchet.settings.search_space import Dimension, is_inside, plain_value, plain_values, present_values

if TYPE_CHECKING:
    import optuna

__all__ = ["View", "frozen", "grid_points", "quiet"]

_MAX_GRID = 100_000
_KNOWN_PROPOSALS = 5  # of settings that are known already, before chance replaces the sampler in a space with an end
_MOST_PROPOSALS = 100  # the same, before a space without an end counts as exhausted


@dataclass(frozen=True)
class _Place:
    """A trial in the view: its number, state and settings there."""

    number: int
    state: str
    values: Mapping[str, Any]


class View:
    """A study as Optuna sees it, in memory."""

    def __init__(self, params: Params, space: Sequence[Dimension]) -> None:
        """Begin without trials. `params` are the settings outside the space."""
        self.params, self.space = params, tuple(space)
        self.study: optuna.Study | None = None
        self._places: dict[int, _Place] = {}  # by number of the trial
        self._grid: list[dict[str, Any]] = []  # its points in random order

    def suggest(self, study: Study, number: int, attempt: int) -> dict[str, Any] | None:
        """Choose the settings of trial `number`; None: there are no others. `attempt` counts the proposals for it.

        The first trial has the present settings, also where the space does not contain them. In a space with an end, a
        sampler that proposes only what is known is replaced by chance after a few attempts.
        """
        if number == attempt == 0:
            return plain_values(present_values(self.space, self.params))
        if study.search.sampler == "grid":
            return self._untried(study, attempt)
        if attempt >= _KNOWN_PROPOSALS and self._has_end:
            return self._untried(study, attempt - _KNOWN_PROPOSALS)
        if attempt >= _MOST_PROPOSALS:
            return None
        view = self.update(study)
        with quiet():
            view.sampler = _sampler(study, _mixed(study.search.sampler_seed, number, attempt), view)
            trial = view.ask()
            values: dict[str, Any] = {}
            for dimension in self.space:
                if dimension.is_active(values, self.params):
                    values[dimension.key] = _suggested(trial, dimension)
            if number in self._places:  # an earlier proposal, which was not taken
                view.tell(self._places[number].number, state=_states()["failed"])
            self._places[number] = _Place(trial.number, "running", plain_values(values))
        return plain_values(values)

    def update(self, study: Study) -> "optuna.Study":
        """Bring the view up to date with the study. It has no trial with a value that no sampler could choose."""
        view = self.study or self._begin(study)
        with quiet():
            for trial in (each for each in study.searched if is_inside(self.space, each.values)):
                place = self._places.get(trial.number)
                state = "running" if trial.state == "waiting" else trial.state
                if place is None:
                    view.add_trial(frozen(trial, self.space, several=len(study.objectives) > 1))
                    number = view.get_trials(deepcopy=False)[-1].number
                    self._places[trial.number] = _Place(number, state, trial.values)
                elif place.values != trial.values or (place.state != state and place.state != "running"):
                    # another process has used the number, or the trial was paused, which is an end for Optuna
                    self.study, self._places = None, {}
                    return self.update(study)
                elif place.state != state:
                    self._end(view, trial, place, state)
        return view

    def _begin(self, study: Study) -> "optuna.Study":
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        directions = ["maximize" if larger else "minimize" for larger in study.maximize]
        self.study = optuna.create_study(directions=directions)  # type: ignore[arg-type]
        return self.study

    def _end(self, view: "optuna.Study", trial: Trial, place: "_Place", state: str) -> None:
        from optuna.trial import Trial as OptunaTrial

        running = view.get_trials(deepcopy=False)[place.number]
        if len(view.directions) == 1:
            open_trial = OptunaTrial(view, running._trial_id)
            for epoch, value in trial.curve:
                open_trial.report(value, epoch)
        view.tell(place.number, list(trial.objectives) if state == "complete" else None, state=_states()[state])
        self._places[trial.number] = _Place(place.number, state, place.values)

    @cached_property
    def _has_end(self) -> bool:
        return math.prod(dimension.size or _MAX_GRID + 1 for dimension in self.space) <= _MAX_GRID

    def _untried(self, study: Study, skipped: int) -> dict[str, Any] | None:
        """Return a point of the grid that no trial has, after so many others."""
        tried = {_text(trial.values) for trial in study.searched}
        if not self._grid:
            self._grid = [plain_values(point) for point in grid_points(self.space, self.params)]
            random.Random(study.search.sampler_seed).shuffle(self._grid)
        untried = (point for point in self._grid if _text(point) not in tried)
        return next(itertools.islice(untried, skipped, None), None)


def grid_points(space: Sequence[Dimension], params: Params) -> Iterator[dict[str, Any]]:
    """Yield every point of a grid once, at most 100,000. Dimensions whose `when` does not hold are left out."""
    seen: set[str] = set()
    for combination in itertools.islice(itertools.product(*(dimension.grid or () for dimension in space)), _MAX_GRID):
        values: dict[str, Any] = {}
        for dimension, value in zip(space, combination, strict=True):
            if dimension.is_active(values, params):
                values[dimension.key] = value
        if (text := _text(values)) not in seen:
            seen.add(text)
            yield values


def frozen(trial: Trial, space: Sequence[Dimension], *, several: bool) -> "optuna.trial.FrozenTrial":
    """Return a trial as Optuna's. A value outside the space is an attribute, because Optuna refuses it as a parameter.

    `several`: the study has several objectives, and so no intermediate values.
    """
    import optuna

    present = [dimension for dimension in space if dimension.key in trial.values]
    active = [dimension for dimension in present if dimension.contains(trial.values[dimension.key])]
    outside = {dimension.key: trial.values[dimension.key] for dimension in present if dimension not in active}
    given = {
        dimension.key: next(
            (_category(choice) for choice in dimension.choices if plain_value(choice) == trial.values[dimension.key]),
            trial.values[dimension.key],
        )
        for dimension in active
    }
    curve = {} if several else dict(trial.curve)
    state = _states()["running" if trial.state == "waiting" else trial.state]
    ended = state == optuna.trial.TrialState.PRUNED and curve
    with quiet():
        return optuna.trial.create_trial(
            state=state,
            values=list(trial.objectives) if trial.state == "complete" else [trial.value or 0.0] if ended else None,
            params=given,
            distributions={dimension.key: _distribution(dimension) for dimension in active},
            intermediate_values=curve,
            user_attrs={"ratchet.number": trial.number, "ratchet.key": trial.key, **outside},
        )


def _suggested(trial: "optuna.Trial", dimension: Dimension) -> Any:
    if dimension.kind == "choice":
        chosen = trial.suggest_categorical(dimension.key, [_category(choice) for choice in dimension.choices])
        return next(choice for choice in dimension.choices if _category(choice) == chosen)
    if dimension.kind == "int":
        low, high, step = int(dimension.low), int(dimension.high), int(dimension.step or 1)
        return trial.suggest_int(dimension.key, low, high, step=step, log=dimension.log)
    value = trial.suggest_float(dimension.key, dimension.low, dimension.high, step=dimension.step, log=dimension.log)
    return float(f"{value:.6g}") if dimension.step is None else float(f"{value:.12g}")


def _distribution(dimension: Dimension) -> "optuna.distributions.BaseDistribution":
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if dimension.kind == "choice":
        return CategoricalDistribution([_category(choice) for choice in dimension.choices])
    if dimension.kind == "int":
        low, high, step = int(dimension.low), int(dimension.high), int(dimension.step or 1)
        return IntDistribution(low, high, log=dimension.log, step=step)
    return FloatDistribution(dimension.low, dimension.high, log=dimension.log, step=dimension.step)


def _sampler(study: Study, seed: int, view: "optuna.Study") -> "optuna.samplers.BaseSampler":
    from optuna import samplers

    search: SearchSettings = study.search
    match search.sampler:
        case "random":
            return samplers.RandomSampler(seed=seed)
        case "gp":
            return samplers.GPSampler(seed=seed, warn_independent_sampling=False)
        case "cma-es":
            return samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False, consider_pruned_trials=True)
        case _:
            return samplers.TPESampler(seed=seed, group=True)


def _mixed(seed: int, number: int, attempt: int) -> int:
    import numpy as np

    return int(np.random.SeedSequence([seed, number, attempt]).generate_state(1)[0])


def _states() -> "dict[str, optuna.trial.TrialState]":
    from optuna.trial import TrialState

    return {
        "running": TrialState.RUNNING, "paused": TrialState.PRUNED, "pruned": TrialState.PRUNED,
        "complete": TrialState.COMPLETE, "failed": TrialState.FAIL,
    }  # fmt: skip


def _text(values: Mapping[str, Any]) -> str:
    return json.dumps(values, sort_keys=True)


def _category(value: Any) -> Any:
    """Return a choice as Optuna's category, which cannot be a list."""
    return json.dumps(value) if isinstance(value, list | tuple) else value


class quiet(warnings.catch_warnings):
    """Hide Optuna's notes about experimental features and rounded bounds."""

    def __enter__(self) -> None:
        super().__enter__()
        warnings.simplefilter("ignore")
        logging.getLogger("optuna").setLevel(logging.ERROR)
