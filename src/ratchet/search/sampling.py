"""The next settings of a search, by Optuna's samplers.

The random numbers of a trial depend on `search.sampler_seed` and its number only, and a sampler keeps nothing between
two trials. So a search by one worker can be interrupted and ends with the same trials, and the storage has no pickle.
"""

import itertools
import json
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ratchet.search.optuna_view import category, optuna_state, quiet, view_of
from ratchet.search.records import Study, Trial
from ratchet.settings.model import Params
from ratchet.settings.search_space import Dimension, plain_values, present_values

if TYPE_CHECKING:
    import optuna

__all__ = ["grid_points", "suggest"]

_MAX_GRID = 100_000
_KNOWN_PROPOSALS = 5  # of settings that are known already, before chance replaces the sampler in a space with an end
_MOST_PROPOSALS = 100  # the same, before a space without an end counts as exhausted
KeyOf = Callable[[Mapping[str, Any], int | None], str]


def suggest(
    study: Study, space: Sequence[Dimension], params: Params, key_of: KeyOf
) -> tuple[dict[str, Any], str] | None:
    """Choose settings that no trial has; return them with their key. None: there are no others.

    The first trial has the present settings, also where the space does not contain them. Where the sampler proposes
    settings of a known trial, it is answered from the known value and asked again. In a space with an end, chance
    replaces it after a few of these.
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
    has_end = math.prod(dimension.size or _MAX_GRID + 1 for dimension in space) <= _MAX_GRID
    if study.search.sampler != "grid":
        with quiet():
            view = view_of(study, space, outside=False)
        for attempt in range(_KNOWN_PROPOSALS if has_end else _MOST_PROPOSALS):
            with quiet():
                view.sampler = _sampler(study.search.sampler, [study.search.sampler_seed, len(study.trials), attempt])
                trial = view.ask()
                values: dict[str, Any] = {}
                for dimension in space:
                    if dimension.is_active(values, params):
                        values[dimension.key] = _suggested(trial, dimension)

            def answer(known: Trial, number: int = trial.number) -> None:
                is_complete = known.state == "complete"
                with quiet():
                    state = optuna_state("complete" if is_complete else "failed")
                    view.tell(number, list(known.objectives) if is_complete else None, state=state)

            yield plain_values(values), answer
    if has_end:
        points = [plain_values(point) for point in grid_points(space, params)]
        random.Random(study.search.sampler_seed).shuffle(points)
        tried = {_text(trial.values) for trial in study.searched}
        yield from ((point, lambda known: None) for point in points if _text(point) not in tried)


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
        case "gp":
            return samplers.GPSampler(seed=seed, warn_independent_sampling=False)
        case _:
            return samplers.TPESampler(seed=seed, group=True)


def _text(values: Mapping[str, Any]) -> str:
    return json.dumps(values, sort_keys=True)
