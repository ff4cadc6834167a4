"""The next settings of a search, by Optuna's samplers.

The random numbers of a trial depend on the project's seed and its number only, and a sampler keeps nothing between two
trials. So a search by one worker can be interrupted and ends with the same trials, and the storage has no pickle.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ratchet.search.optuna_view import category, optuna_state, quiet, view_of
from ratchet.search.records import Study, Trial
from ratchet.settings.model import Params
from ratchet.settings.search_space import Dimension, is_inside, plain_values, present_values

if TYPE_CHECKING:
    import optuna

__all__ = ["suggest"]

_MOST_POINTS = 100_000  # of a space with an end
_KNOWN_PROPOSALS = 5  # of settings that are known already, before the grid replaces the sampler in a space with an end
_MOST_PROPOSALS = 100  # the same, before a space without an end counts as exhausted
KeyOf = Callable[[Mapping[str, Any], int | None], str]


def suggest(
    study: Study, space: Sequence[Dimension], params: Params, key_of: KeyOf
) -> tuple[dict[str, Any], str] | None:
    """Choose settings that no trial has; return them with their key. None: there are no others.

    The first trial has the present settings, also where the space does not contain them. Where the sampler proposes
    settings of a known trial, it is answered from the known value and asked again. In a space with an end, the
    grid replaces it after a few of these.
    """
    known = {trial.key: trial for trial in study.trials}
    for values, answer in _proposals(study, space, params):
        trial = next((each for each in study.searched if dict(each.values) == values), None)
        key = trial.key if trial else key_of(values, None)
        if key not in known:
            return values, key
        answer(known[key])
    return None


def _proposals(
    study: Study, space: Sequence[Dimension], params: Params
) -> Iterator[tuple[dict[str, Any], Callable[[Trial], None]]]:
    """Yield settings, each with a function that takes the known trial of these settings."""
    if not study.trials:
        yield plain_values(present_values(space, params)), lambda known: None
    has_end = math.prod(dimension.size or _MOST_POINTS + 1 for dimension in space) <= _MOST_POINTS
    attempts = 0 if study.search.sampler == "grid" else _KNOWN_PROPOSALS if has_end else _MOST_PROPOSALS
    inside = [trial for trial in study.searched if trial.key and is_inside(space, trial.values)]
    with quiet():
        view = view_of(study, space, inside)
    proposed = []
    for attempt in itertools.count():
        name = study.search.sampler if attempt < attempts else "grid"
        if name == "grid" and not has_end:
            return
        with quiet():
            view.sampler = _sampler(name, [int(study.params["seed"]), len(study.trials), attempt])
            trial = view.ask()
            values: dict[str, Any] = {}
            for dimension in space:
                if dimension.is_active(values, params):
                    values[dimension.key] = _suggested(trial, dimension)
        if name == "grid":
            if values in proposed:  # it has no other point
                return
            proposed.append(values)

        def answer(known: Trial, number: int = trial.number, name: str = name) -> None:
            is_complete = known.state == "complete"
            if name != "grid":  # that one learns from nothing
                with quiet():
                    state = optuna_state("complete" if is_complete else "failed")
                    view.tell(number, list(known.objectives) if is_complete else None, state=state)

        yield plain_values(values), answer


def _suggested(trial: "optuna.Trial", dimension: Dimension) -> Any:
    if dimension.kind == "choice":
        chosen = trial.suggest_categorical(dimension.key, [category(choice) for choice in dimension.choices])
        return next(choice for choice in dimension.choices if category(choice) == chosen)
    if dimension.kind == "int":
        low, high, step = int(dimension.low), int(dimension.high), int(dimension.step or 1)
        return trial.suggest_int(dimension.key, low, high, step=step, log=dimension.log)
    value = trial.suggest_float(dimension.key, dimension.low, dimension.high, step=dimension.step, log=dimension.log)
    return float(f"{value:.6g}") if dimension.step is None else float(f"{value:.12g}")


def _sampler(name: str, seeds: list[int]) -> "optuna.samplers.BaseSampler":
    import numpy as np
    from optuna import samplers

    seed = int(np.random.SeedSequence(seeds).generate_state(1)[0])
    match name:
        case "random":
            return samplers.RandomSampler(seed=seed)
        case "grid":
            return samplers.BruteForceSampler(seed=seed)
        case "gp":
            return samplers.GPSampler(seed=seed, warn_independent_sampling=False)
        case _:
            return samplers.TPESampler(seed=seed, group=True)
