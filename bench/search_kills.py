"""A search whose worker is killed in every trial, beside the same search left alone.

One worker, so that the order of the trials is fixed. Each trial loses its worker once, by SIGKILL at a random one of
the steps that the undisturbed search needed for it.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.project import Project
from bench.search_runs import STUDY, digits, environment, read, search
from ratchet.search.finalists import winner
from ratchet.search.records import Study, Trial

__all__ = ["Disturbed", "compared", "kill_each", "steps_in"]

_TICK = 0.002  # seconds between two looks at the counters of steps


@dataclass(frozen=True)
class Disturbed:
    """Comparison of the two searches. `runs` are MLflow's runs: of trials, of the study."""

    trials: int
    kills: int
    steps: int
    steps_alone: int
    same_values: bool
    same_winner: bool
    duplicates: int
    runs: tuple[int, int]


def compared(folder: Path, changes: dict[str, object], *, seed: int = 0) -> Disturbed:
    """Run both searches, and compare their results."""
    changes = {"search.workers": 1, "search.seeds": 1, **changes}
    alone, project = digits(folder / "alone", changes), digits(folder / "killed", changes)
    expected = search(alone)
    draw = random.Random(seed)
    places = {trial.key: draw.randint(1, max(1, trial.steps - 2)) for trial in expected.trials}
    kills = kill_each(project, places)
    study = read(project)
    keys = Counter(trial.key for trial in study.trials)
    runs = _runs(project)
    return Disturbed(
        len(study.trials), kills, _steps(study), _steps(expected),
        [_result(trial) for trial in study.trials] == [_result(trial) for trial in expected.trials],
        _winner(study) == _winner(expected), sum(count - 1 for count in keys.values()), runs,
    )  # fmt: skip


def kill_each(project: Project, places: Mapping[str, int]) -> int:
    """Search, and kill the worker once in each trial, at these steps by key. Return the number of kills."""
    left = dict(places)
    while True:
        command = [sys.executable, "-m", "bench.search_runs"]
        with subprocess.Popen(
            command, cwd=project.folder, env=environment(), stderr=subprocess.DEVNULL
        ) as process:  # fmt: skip
            while process.poll() is None:
                for key, place in list(left.items()):
                    if steps_in(project.folder / "data" / "search" / STUDY / key / "steps") >= place:
                        _kill_worker(process.pid)
                        del left[key]
                time.sleep(_TICK)
        if process.returncode == 0:
            return len(places) - len(left)
        # three workers in a row were killed within 10 seconds: the search has ended, and is begun again


def steps_in(file: Path) -> int:
    """Return the number of steps in a counter's file."""
    try:
        return int.from_bytes(file.read_bytes(), "little")
    except FileNotFoundError:
        return 0


def _kill_worker(parent: int) -> None:
    for child in psutil.Process(parent).children():
        if "ratchet.scale.child" in child.cmdline():
            os.kill(child.pid, signal.SIGKILL)


def _result(trial: Trial) -> tuple[object, ...]:
    return trial.number, trial.key, dict(trial.values), trial.state, trial.curve, trial.objectives


def _winner(study: Study) -> object:
    best = winner(study)
    return best and (best.trial.number, best.mean)


def _steps(study: Study) -> int:
    return sum(trial.steps for trial in study.trials)


def _runs(project: Project) -> tuple[int, int]:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{project.folder}/mlruns/mlflow.db")
    counts = {
        experiment.name: len(client.search_runs([experiment.experiment_id]))
        for experiment in client.search_experiments()
    }
    return counts.get("ratchet-search", 0), counts.get("ratchet", 0)
