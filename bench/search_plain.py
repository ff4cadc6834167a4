"""Trainings of a search's trials without the search.

python -m bench.search_plain PROJECT FOLDER VALUES CORE   train each settings of the JSON list VALUES on one core
"""

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ratchet import settings, training
from ratchet.data.manifest import Manifest
from ratchet.settings.search_space import apply
from ratchet.workspace import Workspace
from tasks.training_job import TrainingJob

__all__ = ["losses"]


def losses(
    project: Path, values: Mapping[str, Any], checkpoints: Path, *, step: Callable[[], bool] = lambda: False
) -> Iterator[float]:
    """Train with these settings, as a trial of a search does. Yield the lowest validation loss after each epoch.

    Args:
        step: called before each step; training stops if it returns True.
    """
    workspace = Workspace(project)
    params = apply(settings.load(workspace.params), {**values, "training.doctor": "never"})
    job = TrainingJob.of(params, workspace, Manifest.read(workspace.packed), packed=workspace.packed)
    store = training.CheckpointStore(checkpoints, keep_last=1, keep_best=1)
    with contextlib.ExitStack() as stack:
        train, validation = (
            stack.enter_context(contextlib.closing(training.open_split(workspace.packed, name, job.spec.input)))
            for name in ("train", "validation")
        )
        inputs = training.TrainingInputs(train, validation, job.spec, job.plan, identity=job.identity)
        lowest = float("inf")
        for event in training.fit(inputs, store=store, stop=step):
            if isinstance(event, training.Epoch):
                lowest = min(lowest, event.values["validation/loss"])
                yield lowest


def main() -> None:
    """Train with one thread on one core, as a worker of a search on as many cores."""
    import torch

    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {int(sys.argv[4])})
    torch.set_num_threads(1)
    for number, values in enumerate(json.loads(sys.argv[3])):
        list(losses(Path(sys.argv[1]), values, Path(sys.argv[2]) / str(number)))


if __name__ == "__main__":
    main()
