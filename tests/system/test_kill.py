"""Training as a person runs it, killed again and again: real processes, real data, a real MLflow database.

The truth is an undisturbed run of the same commands in a copy of its own.
"""

import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ratchet import settings
from ratchet.training.checkpoint import read_checkpoint

KILLS = 20
EPOCH = 20  # steps: the digits' training rows in batches of 64
STEPS = 12 * EPOCH
SETTINGS = {
    "training.epochs": 12,
    "training.batch_size": 64,
    "training.accumulation": 2,
    "training.flip": "random",
    "training.checkpoint_steps": 2,
    "training.log_every": 1,
}
OWN_TIME = "samples_per_second"  # the only figures that may differ between two runs
Condition = Callable[[], bool]


class Running:
    """`python -m tasks.train` in a project, and what it has on disk."""

    def __init__(self, project, log: Path) -> None:
        self.folder = project.root / "data" / "running"
        with log.open("a") as output:
            self.process = subprocess.Popen(
                project.stage("train"),
                cwd=project.root,
                env=project.environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def step(self) -> int:
        """The step of the newest checkpoint, 0 before the first."""
        names = [path.stem for path in self.folder.glob("*/step-*.safetensors")]
        return max((int(name.removeprefix("step-")) for name in names), default=0)

    def is_writing(self) -> bool:
        """Whether half a checkpoint lies there."""
        return any(self.folder.glob("*/.draft-*"))

    def when(self, condition: Condition) -> bool:
        """Wait for a condition; False when the process ended before."""
        while not condition():
            if self.process.poll() is not None:
                return False
            time.sleep(0.0002)
        return True

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def kill_in_a_write(self) -> bool:
        """Kill with half a checkpoint on disk: the process is held still while that is looked at. False: it ended."""
        while self.when(self.is_writing):
            os.kill(self.process.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            if self.is_writing():
                self.kill()
                assert self.is_writing()
                return True
            os.kill(self.process.pid, signal.SIGCONT)
        return False


@contextmanager
def running(project, log: Path) -> Iterator[Running]:
    """Start training; whatever happens, it does not outlive the block."""
    started = Running(project, log)
    try:
        yield started
    finally:
        started.kill()


@pytest.fixture(scope="module")
def ingested(new_project):
    """A project with the digits packed, and its undisturbed training."""
    project = new_project("undisturbed")
    settings.override(project.workspace.params, SETTINGS)
    project.good(*project.stage("ingest"))
    return project


@pytest.fixture(scope="module")
def undisturbed(ingested):
    """The same, trained without a stop."""
    ingested.good(*ingested.stage("train"))
    return ingested


@pytest.fixture(scope="module")
def twin(ingested, new_project):
    """Make another project with the same settings and the same packed data."""

    def make(name: str):
        project = new_project(name)
        settings.override(project.workspace.params, SETTINGS)
        subprocess.run(["cp", "-r", ingested.workspace.packed, project.workspace.packed], check=True)
        return project

    return make


def points(project) -> list[tuple[str, int, float]]:
    """Every point of the project's only MLflow run, which must have ended well."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{project.root}/mlruns/mlflow.db")
    found = [
        run for experiment in client.search_experiments() for run in client.search_runs([experiment.experiment_id])
    ]
    assert len(found) == 1
    (run,) = found
    assert run.info.status == "FINISHED"
    return [
        (name, point.step, point.value)
        for name in run.data.metrics
        for point in client.get_metric_history(run.info.run_id, name)
    ]


def assert_same_training(project, other) -> None:
    """Weights, history and checkpoints bit for bit; in MLflow one run with every point once."""
    assert project.digests("data/model") == other.digests("data/model")
    ends = [max(one.workspace.checkpoints.glob("step-*.safetensors")) for one in (project, other)]
    snapshots = [read_checkpoint(path) for path in ends]
    assert snapshots[0].step == snapshots[1].step == STEPS
    assert snapshots[0].state == snapshots[1].state
    assert snapshots[0].tensors.keys() == snapshots[1].tensors.keys()
    assert any(name.startswith("optimizer/") for name in snapshots[0].tensors)
    for name, tensor in snapshots[0].tensors.items():
        assert tensor.numpy().tobytes() == snapshots[1].tensors[name].numpy().tobytes(), name
    assert project.digests("data/checkpoints") == other.digests("data/checkpoints")

    told, expected = points(project), points(other)
    assert max(Counter((name, step) for name, step, _ in told).values()) == 1
    assert Counter((name, step) for name, step, _ in told) == Counter((name, step) for name, step, _ in expected)
    same = [sorted(point for point in some if OWN_TIME not in point[0]) for some in (told, expected)]
    assert same[0] == same[1]


def test_a_training_killed_twenty_times_ends_as_one_that_never_was(undisturbed, twin, tmp_path) -> None:
    project, log, chance = twin("killed"), tmp_path / "log", random.Random(20)
    in_a_write = {4, 8, 12, 16, 20}
    kills = []
    for number in range(1, KILLS + 1):
        with running(project, log) as train:
            if number == 1:  # somewhere in the imports
                time.sleep(chance.uniform(0.5, 2.0))
                train.kill()
            elif number == 2:  # between the making of the folder and the first checkpoint
                assert train.when(lambda: any(train.folder.glob("*")))
                train.kill()
            elif number in in_a_write:
                assert train.kill_in_a_write(), log.read_text()
            else:
                target = train.step() + chance.randint(1, 12)
                assert train.when(lambda train=train, target=target: train.step() >= target), log.read_text()
                time.sleep(chance.uniform(0.0, 0.05))
                train.kill()
            kills.append((train.process.returncode, train.step()))
    assert all(code == -signal.SIGKILL for code, _ in kills), kills
    assert kills[1][1] == 0  # before the first checkpoint
    assert any(step % EPOCH for _, step in kills)  # inside an epoch
    assert kills[-1][1] < STEPS

    said = project.good(*project.stage("train"))
    assert "continues at step" in said
    assert not list(project.root.glob("data/**/.draft-*"))
    assert_same_training(project, undisturbed)


def test_sigterm_leaves_a_checkpoint_says_where_and_the_same_command_continues(undisturbed, twin, tmp_path) -> None:
    project, log = twin("terminated"), tmp_path / "log"
    with running(project, log) as train:
        assert train.when(lambda: train.step() >= 30), log.read_text()
        train.process.terminate()
        assert train.process.wait() == 1
        stopped_at = train.step()
    said = log.read_text()
    assert f"stopped at step {stopped_at} of {STEPS}: the same command continues there" in said
    assert "Traceback" not in said
    assert not project.workspace.model.exists()

    newest = max(project.workspace.running.glob("*/step-*.safetensors"))
    newest.write_bytes(newest.read_bytes()[: newest.stat().st_size // 2])
    said = project.good(*project.stage("train"))
    assert f"{newest} is damaged" in said
    assert "the one before it is used" in said
    before = stopped_at - 1 if stopped_at % 2 else stopped_at - 2
    assert f"continues at step {before} of {STEPS}" in said
    assert_same_training(project, undisturbed)
