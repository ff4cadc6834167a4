"""Training that spends its budget, as a person runs it: it stops at a checkpoint, and with more goes on as the same.

The truth is an undisturbed run of the same commands in a copy of its own.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from ratchet import settings
from ratchet.registry.journal import Journal
from ratchet.registry.runs import total_cost

pytestmark = pytest.mark.slow

STEPS = 6 * 20  # the digits' training rows in batches of 64 make 20 an epoch
SETTINGS = {
    "training.epochs": 6,
    "training.batch_size": 64,
    "training.flip": "random",
    "training.checkpoint_steps": 3,
    "training.log_every": 1,
}
SENTENCE = re.compile(
    r"(stopped|not continued) at step ([\d,]+) of ([\d,]+): the budget is used up "
    r"\([\d.,]+ [\w -]+ of [\d.,]+ [\w -]+, budget\.(\w+)=\S+\)\. Checkpoint saved\. "
    r"Fix: `ratchet set budget\.\w+=(\S+)` "
    r"\(0: no limit; if the command sets it, change it there\), then the same command continues there"
)
SHARE = STEPS // 3  # the steps of an attempt while there is a file `hunger`
HUNGRY = f"""
import time
from pathlib import Path

from nets.small import net as small
from torch import nn


class Hungry(nn.Module):
    steps = 0

    def forward(self, images):
        self.steps += self.training
        if self.training and self.steps >= {SHARE} and Path("hunger").exists():
            end = time.process_time() + float(Path("hunger").read_text())
            while time.process_time() < end:
                pass
        return images


def net(**shape):
    return nn.Sequential(Hungry(), small(**shape))
"""
TRAIN = ("dvc", "repro", "--single-item", "code", "train")


@pytest.fixture(scope="module")
def twin(new_project: Callable[..., Any], use_small_net: Callable[[Any], None]) -> Callable[[str], Any]:
    """Make a project with the digits packed and no training yet."""
    project = new_project("ingested")
    use_small_net(project)
    (project.root / "nets" / "hungry.py").write_text(HUNGRY)
    settings.override(project.workspace.params, {**SETTINGS, "model.factory": "nets.hungry:net"})
    project.good(*project.stage("ingest"))
    return partial(new_project, of=project)


@pytest.fixture(scope="module")
def undisturbed(twin: Callable[[str], Any]) -> Any:
    """The same, trained without a stop."""
    project = twin("undisturbed")
    project.good(*project.stage("train"))
    return project


def stop(project: Any, *command: str) -> re.Match[str]:
    """Run it until its budget is spent; what it said of that."""
    message = project.run(*command)
    assert message.returncode != 0, message.stdout
    assert "Traceback" not in message.stdout, message.stdout
    result = SENTENCE.search(message.stdout)
    assert result, message.stdout
    return result


def allow(project: Any, *, wall: float = 0.0, cpu: float = 0.0, gpu: float = 0.0) -> None:
    """Set the budget, in hours."""
    hours = {"wall": wall, "cpu": cpu, "gpu": gpu}
    project.good("ratchet", "set", *(f"budget.{what}_hours={most:.9f}" for what, most in hours.items()))


def taken(project: Any, what: str) -> float:
    """Seconds that all attempts took, as the journal has them."""
    (folder,) = (project.workspace.mlruns / "journal").glob("*/")
    journal = Journal(folder)
    cost = total_cost(journal)
    journal.close()
    assert cost
    return float(getattr(cost, what))


def mlflow_run(project: Any) -> Any:
    """Return the project's only MLflow run, with all records sent: on a busy machine some may be late."""
    from mlflow import MlflowClient

    project.good("ratchet", "sync")
    client = MlflowClient(f"sqlite:///{project.root}/mlruns/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("ratchet").experiment_id])
    return run


def test_a_training_often_stopped_by_budget_ends_the_same(
    undisturbed: Any, twin: Callable[..., Any], assert_same_training: Callable[..., None]
) -> None:
    project = twin("spending")
    allow(project, wall=0.00001)
    first = stop(project, *project.stage("train"))
    assert (first[1], first[2], first[3], first[4]) == ("stopped", "0", f"{STEPS:,}", "wall_hours")
    begun = taken(project, "cpu")  # which an attempt takes before its first step

    wall = taken(project, "wall")
    again = stop(project, *project.stage("train"))
    assert (again[1], again[2]) == ("not continued", "0")
    assert taken(project, "wall") == wall
    assert mlflow_run(project).info.status == "KILLED"

    at, more, hunger = [0], 1.5 * begun, project.root / "hunger"
    while len(set(at)) < 3:  # a third of the steps uses up what is left, so an attempt never reaches the end
        hunger.write_text(f"{more}")
        allow(project, cpu=(taken(project, "cpu") + more) / 3600)
        message = project.run(*(TRAIN if len(at) % 2 else project.stage("train")))
        assert f"continues at step {at[-1]} of {STEPS}" in message.stdout
        result = SENTENCE.search(message.stdout)
        assert result, message.stdout
        assert (result[1], result[4]) == ("stopped", "cpu_hours")
        assert taken(project, "cpu") < float(result[5]) * 3600  # what it proposes is more than what was taken
        at.append(int(result[2]))
        more *= 2 if at[-1] == at[-2] else 1  # a busy machine takes more to begin
    assert at == sorted(at)
    assert at[-1] < STEPS
    hunger.unlink()
    allow(project)
    assert f"continues at step {at[-1]} of {STEPS}" in project.good(*TRAIN)
    reported = [value for name, value in mlflow_run(project).data.tags.items() if name.startswith("ratchet.trouble.")]
    assert_same_training(project, undisturbed, steps=STEPS)
    assert all(value.startswith("budget: ") for value in reported)
    assert sum(value.startswith("budget: stopped") for value in reported) == len(at)


def test_an_unused_budget_changes_nothing(
    undisturbed: Any, twin: Callable[..., Any], assert_same_training: Callable[..., None]
) -> None:
    """Not even for DVC."""
    project = twin("enough")
    allow(project, wall=100, cpu=100, gpu=0.000001)  # no GPU is used, so its budget is not either
    project.good(*TRAIN)
    assert_same_training(project, undisturbed, steps=STEPS)
    allow(project, wall=0.000001)
    assert "didn't change, skipping" in project.good(*TRAIN)
