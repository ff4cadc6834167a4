"""Studies for tests: the real scheduler with one worker, and a value function in place of training."""

import math
import random
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from simulated_search import Value, Worker, new_study

from ratchet import files
from ratchet.search.records import Curve, Study, Trial
from ratchet.search.store import StudyStore

SPACE: Mapping[str, Any] = MappingProxyType(
    {
        "training.learning_rate": {"float": [1e-4, 1e-1], "log": True},
        "training.optimizer": {"choice": ["adamw", "sgd"]},
        "training.momentum": {"float": [0.8, 0.99], "when": {"training.optimizer": "sgd"}},
        "training.batch_size": {"choice": [16, 32, 64, 128]},
        "training.weight_decay": {"float": [1e-5, 1e-1], "log": True},
        "training.clip_value": {"float": [0.0, 1.0], "step": 0.25},
    }
)
Values = Mapping[str, Any]


def accuracy(values: Values, seed: int | None, epoch: int) -> tuple[float, ...]:
    """Return a made-up accuracy, which depends most on the learning rate, then on the batch size."""
    rate = math.log10(values.get("training.learning_rate", 1e-2))
    noise = random.Random(f"{sorted(values.items())} {seed}").gauss(0, 0.004)
    size = values.get("training.batch_size", 64)
    limit = 0.97 - 0.12 * (rate + 2.2) ** 2 - 0.008 * abs(math.log2(size / 32)) + noise
    return (max(0.05, limit * (1 - math.exp(-(0.5 + epoch / 3)))),)


def accuracy_and_size(values: Values, seed: int | None, epoch: int) -> tuple[float, ...]:
    """Return a made-up accuracy and a number of weights: the larger the batch, the larger the network."""
    size = values.get("training.batch_size", 64)
    weights = 1000 * size + 10 * round(1000 * values.get("training.clip_value", 0.0))
    return (accuracy(values, seed, epoch)[0] - 0.1 + math.log2(size) / 80, float(weights))


def made_study(
    *,
    space: Mapping[str, Any] = SPACE,
    objectives: Value = accuracy,
    names: tuple[str, ...] = ("validation/accuracy",),
    epochs: int = 27,
    assignments: int | None = None,
    **search: Any,
) -> Study:
    """Run a search in memory.

    Args:
        space: `search.space`.
        objectives: value function.
        names: of the objectives. All but accuracies are minimized.
        epochs: of a whole training.
        assignments: leave the search after so many assignments, with the last trial running; None: run to the end.
        search: other settings of the section `search`.
    """
    params, study = new_study(space, epochs=epochs, objectives=names, **{"seeds": 3, **search})
    store = StudyStore(None, "sqlite://", "digits")
    store.create(replace(study, name="digits", created=1_000_000.0))
    taken = 0
    for act in Worker(store, params, "worker", objectives).acts():
        taken += act.startswith("took")
        if taken == assignments and act.startswith("epoch"):
            break
    study = store.require()
    return replace(study, trials=[replace(trial, spans=((0.0, 3600.0),)) for trial in study.trials])


def many_trials(count: int, *, seed: int = 0) -> Study:
    """Return an ended study of many random trials, made without the scheduler: it takes a second, not minutes."""
    small = made_study(trials=3, sampler="random", seeds=1)
    chance = random.Random(seed)
    trials = tuple(_random_trial(number, chance, small.epochs) for number in range(count))
    best = max((trial for trial in trials if trial.state == "complete"), key=lambda trial: trial.value or 0.0)
    search = small.search.model_copy(update={"trials": count})
    return replace(small, trials=trials, search=search, winner=best.number)


def _random_trial(number: int, chance: random.Random, epochs: int) -> Trial:
    values: dict[str, Any] = {
        "training.learning_rate": float(f"{10 ** chance.uniform(-4, -1):.6g}"),
        "training.optimizer": chance.choice(["adamw", "sgd"]),
        "training.batch_size": chance.choice([16, 32, 64, 128]),
        "training.weight_decay": float(f"{10 ** chance.uniform(-5, -1):.6g}"),
        "training.clip_value": chance.choice([0.0, 0.25, 0.5, 0.75, 1.0]),
    }
    if values["training.optimizer"] == "sgd":
        values["training.momentum"] = float(f"{chance.uniform(0.8, 0.99):.6g}")
    length = chance.choices([1, 3, 9, epochs], [60, 24, 10, 6])[0]
    curve: Curve = tuple((epoch, accuracy(values, None, epoch)[0]) for epoch in range(1, length + 1))
    is_complete = length == epochs
    return Trial(
        number, files.digest_json(values), values, state="complete" if is_complete else "pruned", curve=curve,
        objectives=(curve[-1][1],) if is_complete else (), steps=100 * length, cpu=3.0 * length,
        spans=((0.0, 36_000.0),), run_id=f"{number:032x}",
    )  # fmt: skip
