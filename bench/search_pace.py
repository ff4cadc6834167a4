"""Cost of choosing settings: 1,000 trials whose training returns at once, by our scheduler and by bare Optuna.

Both use the TPE sampler and an SQLite file. Ours writes a trial in two transactions, `next` and `finish`. Optuna writes
more: in `ask`, in each of three `suggest`, and in `tell`.
"""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ratchet.search.records import Study
from ratchet.search.sampling import View
from ratchet.search.scheduler import Progress, Scheduler
from ratchet.search.store import StudyStore
from ratchet.settings.model import Params
from ratchet.settings.search_settings import SearchSettings
from ratchet.settings.search_space import parse_space

__all__ = ["optuna_pace", "our_pace"]

_RATES, _DECAYS, _BATCHES = (1.0e-4, 1.0), (1.0e-6, 0.1), [16, 32, 64, 128]


def our_pace(file: Path, trials: int, *, sampler: str = "tpe") -> float:
    """Return the seconds per trial of our scheduler."""
    search = SearchSettings.model_validate({
        "space": {
            "training.learning_rate": {"float": _RATES, "log": True},
            "training.weight_decay": {"float": _DECAYS, "log": True},
            "training.batch_size": {"choice": _BATCHES},
        },
        "trials": trials, "seeds": 1, "sampler": sampler,
    })  # fmt: skip
    params = Params(search=search)
    store = StudyStore(None, f"sqlite:///{file}", "pace")
    store.create(Study("pace", ("validation/loss",), (False,), search, {"seed": 0}, {}, epochs=1))
    scheduler = Scheduler(store, View(params, parse_space(params)), _key, lease=60.0, owner="pace")
    began, done = time.perf_counter(), 0
    while (following := scheduler.next()) is not None:
        assert following != "wait"
        value = _value(*following.trial.values.values())
        scheduler.finish(following.trial.number, Progress(((1, value),), steps=1), (value,))
        done += 1
    assert done == trials, done
    return (time.perf_counter() - began) / trials


def optuna_pace(file: Path, trials: int, *, sampler: str = "tpe") -> float:
    """Return the seconds per trial of Optuna."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    chosen = optuna.samplers.TPESampler(seed=0) if sampler == "tpe" else optuna.samplers.RandomSampler(seed=0)
    study = optuna.create_study(storage=f"sqlite:///{file}", sampler=chosen)
    began = time.perf_counter()
    for _ in range(trials):
        trial = study.ask()
        rate = trial.suggest_float("learning_rate", *_RATES, log=True)
        decay = trial.suggest_float("weight_decay", *_DECAYS, log=True)
        study.tell(trial, _value(rate, decay, trial.suggest_categorical("batch_size", _BATCHES)))
    return (time.perf_counter() - began) / trials


def _value(rate: float, decay: float, batch: int) -> float:
    return (rate - 0.01) ** 2 + decay + batch / 1e4


def _key(values: Mapping[str, Any], seed: int | None) -> str:
    return json.dumps(values, sort_keys=True)
