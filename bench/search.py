"""Searches: the best settings for a budget, kills, and the cost of searching.

    python -m bench.search [--rounds 3] [--seeds 20] [--only quality kills overhead] [--quick]

quality   On the recorded table (bench/search_table.py): loss of the chosen settings after a whole training, above the
          least of the table, at equal numbers of epochs. Our default, TPE with successive halving, is not worse than
          the best of Optuna's: no 95 % interval of the paired differences over the seeds is above 0.
kills     Every trial of a real search loses its worker once by SIGKILL. It needs at most 1.02 times the steps of the
          same search left alone, ends with the same values bit for bit and the same best trial, trains no setting twice
          and has one MLflow run for each trial. A kill repeats half of the steps between two checkpoints. So short
          trials need more of them: with successive halving, `training.checkpoint_steps` is 2, because the default
          writes one after each epoch, which here has 20 or 40 steps.
overhead  A search by two workers needs at most 5 % more processor time than its trainings in two bare processes. The
          start of the processes is counted by itself. Elapsed time is only shown: it depends on what else runs.
"""

from argparse import Namespace
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from bench.project import scratch
from bench.report import Row, alone, options, spread
from bench.search_kills import compared
from bench.search_overhead import overhead
from bench.search_replay import OPTUNA, optuna_played, played
from bench.search_table import Table

__all__ = ["NAMES", "measure"]

NAMES = ("quality", "kills", "overhead")
_TRAININGS = (5, 10, 20)  # budgets of the replay, in whole trainings
_OURS = "ratchet TPE + successive halving"
_REPEATED, _COST = 1.02, 1.05  # limits of the claims
_SPACE = {
    "training.learning_rate": {"float": [3.0e-4, 0.1], "log": True},
    "training.weight_decay": {"float": [1.0e-5, 0.1], "log": True},
    "training.batch_size": {"choice": [32, 64, 128]},
}


def measure(rounds: int, *, seeds: int = 20, only: Sequence[str] = NAMES, quick: bool) -> list[Row]:
    """Return the rows of the table."""
    parts: dict[str, Callable[[], list[Row]]] = {
        "quality": lambda: _quality(1 if quick else seeds, (1,) if quick else _TRAININGS),
        "kills": lambda: _kills(quick=quick),
        "overhead": lambda: _overhead(1 if quick else rounds, 1 if quick else 30),
    }
    rows = []
    for name in only:
        for row in parts[name]():
            print(row, flush=True)
            rows.append(row)
    return rows


def _quality(seeds: int, trainings: Sequence[int]) -> list[Row]:
    table = Table.read()
    budgets = [count * table.epochs for count in trainings]
    final = table.best_so_far[:, -1] - table.best_so_far[:, -1].min()
    ours = final[[played(table, budgets, seed=seed) for seed in range(seeds)]]
    theirs = {
        name: final[[optuna_played(table, budgets, seed=seed, sampler=sampler, pruner=pruner) for seed in range(seeds)]]
        for name, (sampler, pruner) in OPTUNA.items()
    }
    rows = [Row("recorded table", f"{table.epochs} epochs each", table.about.partition(", on ")[0])]
    for place, count in enumerate(trainings):
        condition = f"{count} whole trainings, {seeds} seeds"
        rows.append(Row(f"loss above the best: {_OURS}", condition, _mean(ours[:, place])))
        for name, values in theirs.items():
            low, high = _interval(ours[:, place] - values[:, place])
            figure = (
                f"{_mean(values[:, place])}; ratchet minus it {(ours - values)[:, place].mean():+.4f} "
                f"({low:+.4f} to {high:+.4f})"
            )
            rows.append(Row(f"loss above the best: {name}", condition, figure, "ratchet is not worse", low <= 0))
    return rows


def _mean(values: NDArray[np.float64]) -> str:
    low, high = _interval(values)
    return f"{values.mean():.4f} ({low:.4f} to {high:.4f})"


def _interval(values: NDArray[np.float64], *, resamples: int = 10_000) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the mean."""
    chosen = np.random.default_rng(0).integers(0, len(values), (resamples, len(values)))
    low, high = np.quantile(values[chosen].mean(axis=1), [0.025, 0.975])
    return float(low), float(high)


def _kills(*, quick: bool) -> list[Row]:
    common = {"search.space": _SPACE, "search.objective": "validation/loss", "training.best": "validation/loss"}
    small: dict[str, object] = {"training.epochs": 3, "search.trials": 2} if quick else {}
    cases: dict[str, dict[str, object]] = {
        "whole trainings, default checkpoints": {"search.pruner": "none", "search.trials": 3},
        "successive halving, training.checkpoint_steps 2": {"search.trials": 6, "training.checkpoint_steps": 2},
        "successive halving, default checkpoints": {"search.trials": 6},
    }
    rows = []
    for name, changes in list(cases.items())[: 1 if quick else None]:
        with scratch() as folder:
            result = compared(folder, {**common, **changes, **small})
        repeated = result.steps / result.steps_alone
        is_claimed = name != "successive halving, default checkpoints"
        condition = f"{name}: {result.trials} trials, {result.kills} kills"
        rows += [
            Row("steps with kills", condition, f"{result.steps:,} / {result.steps_alone:,} = {repeated:.4f}",
                f"<= {_REPEATED}" if is_claimed else "", repeated <= _REPEATED if is_claimed else None),
            Row("same curves, values and best trial", condition, f"{result.same_values}, {result.same_winner}",
                "bit for bit", result.same_values and result.same_winner),
            Row("settings twice; MLflow runs of trials, of the study", condition,
                f"{result.duplicates}; {result.runs[0]}, {result.runs[1]}", f"0; {result.trials}, 1",
                result.duplicates == 0 and result.runs == (result.trials, 1)),
        ]  # fmt: skip
    return rows


def _overhead(rounds: int, epochs: int) -> list[Row]:
    cpu, wall, starts, plain_starts = [], [], [], []
    for _ in range(rounds):
        with scratch() as folder:
            ours, plain, start, plain_start = overhead(folder, epochs=epochs)
        cpu.append((ours - start).cpu / (plain - plain_start).cpu)
        wall.append((ours - start).wall / (plain - plain_start).wall)
        starts.append(start.cpu)
        plain_starts.append(plain_start.cpu)
    condition = f"12 trials of {epochs} epochs, 2 workers, {rounds} rounds"
    limit = float(np.median(cpu))
    return [
        Row("processor time of a search / of its trainings", condition, spread(cpu, form=".3f"), f"<= {_COST}",
            limit <= _COST),
        Row("elapsed time of a search / of its trainings", condition, spread(wall, form=".3f")),
        Row("processor seconds of a start: search", condition, spread(starts, form=".1f")),
        Row("processor seconds of a start: two bare processes", condition, spread(plain_starts, form=".1f")),
    ]  # fmt: skip


def _alone(arguments: Namespace) -> list[Row]:
    return measure(arguments.rounds, seeds=arguments.seeds, only=arguments.only, quick=arguments.quick)


if __name__ == "__main__":
    parser = options(__doc__, rounds=3)
    parser.add_argument("--seeds", type=int, default=20, help="of the samplers (default: 20)")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, help="default: all")
    alone(parser, _alone)
