"""Cost of a search over its bare trainings: CPU and elapsed time of both with two processes."""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.search_runs import digits, environment, search

__all__ = ["Cost", "overhead"]

_SPACE: dict[str, list[Any]] = {
    "training.learning_rate": [5.0e-4, 2.0e-3, 8.0e-3],
    "training.batch_size": [32, 64],
    "training.weight_decay": [1.0e-4, 1.0e-2],
}
_CORES = sorted(os.sched_getaffinity(0))[:2] if hasattr(os, "sched_getaffinity") else [0, 1]


@dataclass(frozen=True)
class Cost:
    """Seconds of the processor and of the clock."""

    cpu: float
    wall: float

    def __sub__(self, other: "Cost") -> "Cost":
        return Cost(self.cpu - other.cpu, self.wall - other.wall)


def overhead(folder: Path, *, epochs: int) -> tuple[Cost, Cost, Cost, Cost]:
    """Return the cost of a search of twelve trials and of its trainings alone, then the start of each.

    The start is the cost of the same with two trials of one epoch.
    """
    ours, plain = _both(folder / "whole", _SPACE, epochs)
    few = {key: choices[: 2 if key == "training.batch_size" else 1] for key, choices in _SPACE.items()}
    start, plain_start = _both(folder / "start", few, 1)
    return ours, plain, start, plain_start


def _both(folder: Path, space: dict[str, list[Any]], epochs: int) -> tuple[Cost, Cost]:
    project = digits(folder / "project", {
        "search.space": {key: {"choice": choices} for key, choices in space.items()}, "search.sampler": "grid",
        "search.pruner": "none", "search.seeds": 1, "search.workers": 2, "training.epochs": epochs,
        "search.objective": "validation/loss", "training.best": "validation/loss",
    })  # fmt: skip
    ours = _cost(lambda: search(project))
    trials = search(project).searched
    values = [dict(trial.values) for trial in trials]
    return ours, _cost(lambda: _train(project.folder, folder, values))


def _train(project: Path, folder: Path, values: Sequence[dict[str, Any]]) -> None:
    processes = []
    for place, core in enumerate(_CORES):
        arguments = [str(project), str(folder / f"plain-{place}"), json.dumps(values[place :: len(_CORES)]), str(core)]
        threads = environment(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
        processes.append(subprocess.Popen([sys.executable, "-m", "bench.search_plain", *arguments], env=threads))
    if any(process.wait() for process in processes):
        raise RuntimeError("a plain training has failed")


def _cost(run: Callable[[], object]) -> Cost:
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    run()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(cpu, time.perf_counter() - began)
