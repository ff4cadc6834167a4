"""One worker of a search: it takes trials until nothing is left."""

import os
import socket
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ratchet import settings
from ratchet.data.manifest import Manifest
from ratchet.errors import StudyUnavailable
from ratchet.search.records import Study
from ratchet.search.scheduler import Scheduler, release
from ratchet.search.store import LeaseLost, StudyStore, patiently
from ratchet.workspace import Workspace, disk_errors
from tasks.search_study import require_same, settings_of, study_of
from tasks.search_trial import TrialTraining, key_of, require_device
from tasks.stopping import on_request

__all__ = ["new_owner", "search_trials", "work"]

_IDLE = 0.5  # seconds until a worker without a trial asks again


def new_owner(label: str) -> str:
    """Return the name of a new worker: machine, label and a number that no other has."""
    return f"{socket.gethostname()[:60]}/{label}/{uuid.uuid4().hex[:12]}"


def work(shard: Mapping[str, Any]) -> dict[str, Any]:
    """Search as one process of `ratchet.scale.local`: {study, owner, threads} -> {trials}."""
    workspace = Workspace.find()
    if shard.get("threads"):
        import torch

        torch.set_num_threads(int(shard["threads"]))
    with disk_errors(workspace.root), on_request() as stop:
        say = partial(print, file=sys.stderr, flush=True)
        trials = search_trials(workspace, str(shard["study"]), owner=str(shard["owner"]), stop=stop, say=say)
    return {"trials": trials, "pid": os.getpid()}


def search_trials(
    workspace: Workspace, name: str, *, owner: str, stop: Callable[[], bool], say: Callable[[str], None]
) -> int:
    """Take and train trials of a study until it ends or `stop` returns True. Return how many.

    Raises:
        StudyError: there is no such study, or data or code here are not those of the study.
        TrainingError: this machine does not have the device of the study.
    """
    local = settings.load(workspace.params)
    store = StudyStore(workspace, local.search.storage, name)
    # This process may be started again after its former one was killed.
    patiently(lambda: release(store, owner), stop=stop, say=say)
    study = patiently(store.require, stop=stop, say=say)
    params = settings_of(study, local)
    require_same(study, study_of(params, workspace, name))
    require_device(params)
    rows = Manifest.read(workspace.packed).splits["train"].rows
    say(f"{owner}: {name}, {rows:,} training samples")
    scheduler = Scheduler(store, params, partial(key_of, params, workspace), owner=owner)
    return _search(scheduler, study, partial(TrialTraining, params=params, workspace=workspace), stop, say)


def _search(
    scheduler: Scheduler,
    study: Study,
    training: Callable[..., TrialTraining],
    stop: Callable[[], bool],
    say: Callable[[str], None],
) -> int:
    trials = 0
    while not stop():
        try:
            trial = patiently(scheduler.next, stop=stop, say=say)
            if trial is None:
                break
            if trial == "wait":
                time.sleep(_IDLE)
                continue
            say(f"trial {trial.number}: {dict(trial.values)}")
            training(study, scheduler=scheduler, trial=trial, stop=stop, say=say).run()
            trials += 1
        except LeaseLost:
            say("another worker has continued this trial")
        except StudyUnavailable:  # it was asked to stop meanwhile; the lease runs out
            break
    return trials
