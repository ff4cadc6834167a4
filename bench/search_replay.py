"""Searches on the recorded table: the real schedulers, with the recorded curve in place of a training.

Budgets count epochs. A search that has used up a budget keeps what it would name as the winner then, and goes on to the
next budget. `played` is our search; `optuna_played` is Optuna 5 as its documentation writes it, with `study.optimize`,
`trial.report` and `trial.should_prune`.
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from bench.search_table import SPACE, Table
from ratchet.search.finalists import winner
from ratchet.search.records import Study, Trial
from ratchet.search.scheduler import Progress, Scheduler
from ratchet.search.store import StudyStore
from ratchet.settings.model import Params
from ratchet.settings.search_settings import SearchSettings

if TYPE_CHECKING:
    import optuna

__all__ = ["OPTUNA", "optuna_played", "played", "study_of"]

_HOUR = 3600.0  # an epoch costs one CPU-hour, so that `search.cpu_hours` is a number of epochs
Pruner = Literal["hyperband", "successive-halving", "none"]
OPTUNA: dict[str, tuple[str, Pruner]] = {
    "Optuna TPE + Hyperband": ("tpe", "hyperband"),
    "Optuna TPE + successive halving": ("tpe", "successive-halving"),
    "Optuna TPE without pruner": ("tpe", "none"),
    "Optuna random": ("random", "none"),
}


def study_of(params: Params, *, epochs: int) -> Study:
    """Return a study with these settings, without trials."""
    return Study(
        name="replay", objectives=("validation/loss",), maximize=(False,), search=params.search,
        params={"seed": params.seed}, parts={}, epochs=epochs,
    )  # fmt: skip


def played(table: Table, budgets: Sequence[int], *, seed: int, **changes: object) -> list[int]:
    """Search with our scheduler in one process; return the row of the winner at each budget.

    Args:
        changes: settings of the search that differ from the default.
    """
    space = {key: {"choice": choices} for key, choices in SPACE.items()}
    search = SearchSettings.model_validate({
        "space": space, "sampler_seed": seed, "seeds": 1, "trials": len(table.settings),
        "cpu_hours": float(max(budgets)), **changes,
    })  # fmt: skip
    params = Params(search=search)
    store = StudyStore(None, "sqlite://", "replay")
    store.create(study_of(params, epochs=table.epochs))
    scheduler = Scheduler(store, params, _key, owner="replay")
    winners: list[int] = []
    for epochs in _epochs(scheduler, table):
        if epochs in budgets:
            winners.append(_winner(store, table))
    return winners + [_winner(store, table)] * (len(budgets) - len(winners))  # the search can end before the budget


def _epochs(scheduler: Scheduler, table: Table) -> Iterator[int]:
    """Run trials until the study ends. Yield the number of epochs after each one."""
    done = 0
    while isinstance(trial := scheduler.next(), Trial):
        curve = table.best_so_far[table.number(dict(trial.values))]
        progress = Progress()
        for epoch in range(1, table.epochs + 1):
            done += 1
            progress = replace(progress, curve=(*progress.curve, (epoch, float(curve[epoch - 1]))), cpu=epoch * _HOUR)
            if epoch == table.epochs:
                scheduler.finish(trial.number, progress, (float(curve[-1]),))
                yield done
                break
            decision = scheduler.report(trial.number, progress)
            yield done
            if decision == "end":
                scheduler.end_early(trial.number, progress)
            elif decision == "leave":
                scheduler.leave(trial.number, progress)
            if decision != "continue":
                break


def _winner(store: StudyStore, table: Table) -> int:
    best = winner(store.require())
    assert best
    return table.number(dict(best.trial.values))


def _key(values: Mapping[str, Any], seed: int | None) -> str:
    return json.dumps(values, sort_keys=True)


class _Spent(Exception):
    """The largest budget is used up."""


def optuna_played(table: Table, budgets: Sequence[int], *, seed: int, sampler: str, pruner: Pruner) -> list[int]:
    """Search with Optuna; return the row of the best trial at each budget."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    samplers: dict[str, Callable[[], Any]] = {
        "tpe": lambda: optuna.samplers.TPESampler(seed=seed),
        "random": lambda: optuna.samplers.RandomSampler(seed=seed),
    }
    pruners: dict[Pruner, Callable[[], Any]] = {
        "hyperband": lambda: optuna.pruners.HyperbandPruner(max_resource=table.epochs),
        "successive-halving": optuna.pruners.SuccessiveHalvingPruner,
        "none": optuna.pruners.NopPruner,
    }
    study = optuna.create_study(
        study_name=f"replay-{seed}", sampler=samplers[sampler](), pruner=pruners[pruner]()
    )  # Hyperband draws its brackets from the name
    winners: list[int] = []
    done = 0

    def objective(trial: "optuna.Trial") -> float:
        nonlocal done
        values = {key: trial.suggest_categorical(key, choices) for key, choices in SPACE.items()}
        number = table.number(values)
        for epoch in range(1, table.epochs + 1):
            trial.report(float(table.best_so_far[number, epoch - 1]), epoch)
            done += 1
            if done in budgets and epoch < table.epochs:
                winners.append(_best(study, table))
            if done >= max(budgets) and epoch < table.epochs:
                raise _Spent
            if trial.should_prune():
                raise optuna.TrialPruned
        return float(table.best_so_far[number, -1])

    def look(study: "optuna.Study", trial: "optuna.trial.FrozenTrial") -> None:
        while len(winners) < len(budgets) and done >= sorted(budgets)[len(winners)]:
            winners.append(_best(study, table))
        if len(winners) == len(budgets):
            study.stop()

    with contextlib.suppress(_Spent):
        study.optimize(objective, n_trials=3 * len(table.settings), callbacks=[look])
    return winners + [_best(study, table)] * (len(budgets) - len(winners))


def _best(study: "optuna.Study", table: Table) -> int:
    """Return the row of the best trial; if none is complete, of the best one so far."""
    from optuna.trial import TrialState

    trials = study.get_trials(deepcopy=False)
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    known = complete or [trial for trial in trials if trial.intermediate_values]
    best = min(known, key=lambda trial: trial.value if complete else min(trial.intermediate_values.values()))
    return table.number(dict(best.params))
