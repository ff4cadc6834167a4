"""Optuna's way to survive kills, retries with heartbeats, on the trainings of bench/search_kills.py.

    python -m bench.search_kills_optuna PROJECT FOLDER TRIALS KILL   one worker, until it ends or kills itself

Written as in Optuna's documentation (`RetryHeartbeatStaleTrialCallback`, until 4.9 `RetryFailedTrialCallback`): the
storage gives up a trial without heartbeats, and the callback queues its settings again. With KILL = 1 the worker kills
itself at a random step of each trial that is no retry.
"""

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.project import Project
from bench.search_plain import losses
from bench.search_runs import environment

if TYPE_CHECKING:
    import optuna

__all__ = ["Retried", "retried"]


@dataclass(frozen=True)
class Retried:
    """A study after its kills. `trained_twice`: settings that were trained to the end more than once."""

    steps: int
    trials: int
    complete: int
    trained_twice: int
    best: float


def retried(project: Project, folder: Path, *, trials: int, kill: bool) -> Retried:
    """Search with one worker at a time, which is started again after each kill."""
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "bench.search_kills_optuna", str(project.folder), str(folder), str(trials)]
    while True:
        code = subprocess.run([*command, str(int(kill))], env=environment(), check=False).returncode
        if code != -signal.SIGKILL:
            break
    if code:
        raise RuntimeError(f"{' '.join(command)} ended with {code}")
    study = _study(folder)
    states = Counter(trial.state.name for trial in study.trials)
    settings = Counter(repr(sorted(trial.params.items())) for trial in study.trials if trial.state.name == "COMPLETE")
    steps = (folder / "steps").stat().st_size
    twice = sum(count - 1 for count in settings.values())
    return Retried(steps, len(study.trials), states["COMPLETE"], twice, study.best_value)


def _study(folder: Path) -> "optuna.Study":
    import optuna
    from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback

    storage = RDBStorage(
        f"sqlite:///{folder}/optuna.db",
        heartbeat_interval=1,
        heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(),
    )
    return optuna.create_study(
        storage=storage, study_name="digits", sampler=optuna.samplers.TPESampler(seed=0), load_if_exists=True
    )


def main() -> None:
    """Run trials until enough are complete."""
    import torch
    from optuna.storages import RetryHeartbeatStaleTrialCallback
    from optuna.study import MaxTrialsCallback
    from optuna.trial import Trial, TrialState

    torch.set_num_threads(1)
    project, folder, trials, kill = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "1"
    steps = os.open(folder / "steps", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)  # a byte for each step

    def objective(trial: Trial) -> float:
        values = {
            "training.learning_rate": trial.suggest_float("learning_rate", 3.0e-4, 0.1, log=True),
            "training.weight_decay": trial.suggest_float("weight_decay", 1.0e-5, 0.1, log=True),
            "training.batch_size": trial.suggest_categorical("batch_size", [32, 64, 128]),
        }
        is_first = RetryHeartbeatStaleTrialCallback.retried_trial_number(study.trials[trial.number]) is None
        done, fatal = 0, random.Random(trial.number).random() if kill and is_first else 2.0

        def step() -> bool:
            nonlocal done
            if done >= fatal * 30 * (1251 // int(values["training.batch_size"])):
                os.kill(os.getpid(), signal.SIGKILL)
            os.write(steps, b".")
            done += 1
            return False

        for epoch, loss in enumerate(losses(project, values, folder / f"checkpoints-{trial.number}", step=step)):
            trial.report(loss, epoch)
        return loss

    study = _study(folder)
    if sum(trial.state == TrialState.COMPLETE for trial in study.trials) < trials:
        study.optimize(objective, callbacks=[MaxTrialsCallback(trials, states=(TrialState.COMPLETE,))])


if __name__ == "__main__":
    main()
