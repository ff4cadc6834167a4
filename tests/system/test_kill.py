"""Training as a person runs it, asked to leave, in trouble: real processes, real data, a real MLflow database.

The truth is an undisturbed run of the same commands in a copy of its own. test_fire.py kills it.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from waiting import until_or_end

from ratchet import settings
from ratchet.registry.journal import Journal
from ratchet.registry.runs import total_cost

pytestmark = pytest.mark.system

EPOCH = 20  # steps: the digits' training rows in batches of 64
STEPS = 6 * EPOCH
SETTINGS = {
    "training.epochs": 6,
    "training.batch_size": 64,
    "training.accumulation": 2,
    "training.flip": "random",
    "training.checkpoint_steps": 2,
    "training.log_every": 1,
}
JUMPING = """
import time

_time, _time_ns, _began = time.time, time.time_ns, time.monotonic()


def _off():
    quarter = int(4 * (time.monotonic() - _began))
    return 3600 * quarter * (-1) ** quarter  # an hour more each time: a journal's times never go back


time.time = lambda: _time() + _off()
time.time_ns = lambda: _time_ns() + _off() * 1_000_000_000
"""
LOSS = """
from torch import exp
from torch.nn import functional


def focal(logits, labels):
    losses = functional.cross_entropy(logits, labels, reduction="none")
    return (1 - exp(-losses)) ** 2 * losses
"""
Condition = Callable[[], bool]


class Running:
    """`python -m tasks.train` in a project, and what it has on disk."""

    def __init__(self, project, log: Path) -> None:
        self.folder = project.root / "data" / "running"
        self.process = project.start(*project.stage("train"), log=log)

    def step(self) -> int:
        """The step of the newest checkpoint, 0 before the first."""
        names = [path.stem for path in self.folder.glob("*/step-*.safetensors")]
        return max((int(name.removeprefix("step-")) for name in names), default=0)

    def when(self, condition: Condition) -> bool:
        """Wait for a condition; False when the process ended before."""
        return until_or_end(condition, self.process, pause=0.0002)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def running(project, log: Path) -> Iterator[Running]:
    """Start training; whatever happens, it does not outlive the block."""
    started = Running(project, log)
    try:
        yield started
    finally:
        started.kill()


@pytest.fixture(scope="module")
def ingested(new_project, use_small_net):
    """A project with the digits packed."""
    project = new_project("ingested")
    use_small_net(project)
    settings.override(project.workspace.params, SETTINGS)
    project.good(*project.stage("ingest"))
    return project


@pytest.fixture(scope="module")
def twin(ingested, new_project):
    """Make another project with the same settings and the same packed data."""
    return partial(new_project, of=ingested)


@pytest.fixture(scope="module")
def undisturbed(twin):
    """The same, trained without a stop."""
    project = twin("undisturbed")
    project.good(*project.stage("train"))
    return project


def assert_cost_is_the_sum(project) -> int:
    """Assert that the cost in MLflow is the sum over all recorded attempts. Return their number."""
    from mlflow import MlflowClient

    (folder,) = (project.workspace.mlruns / "journal").glob("*/")
    journal = Journal(folder)
    cost = total_cost(journal)
    run = MlflowClient(f"sqlite:///{project.root}/mlruns/mlflow.db").get_run(journal.run_id)
    last = [entry.content for entry in journal.entries(0) if entry.kind == "cost"][-1]
    journal.close()
    assert cost.wall > last["wall"] > 0
    assert cost.cpu > last["cpu"] > 0
    assert {name: value for name, value in run.data.metrics.items() if name.startswith("cost/")} == cost.metrics()
    return cost.attempts


def test_sigterm_and_a_jumping_clock_change_no_weight(undisturbed, twin, tmp_path, assert_same_training) -> None:
    """SIGTERM writes a checkpoint. The message names its step, and the same command continues there.

    Meanwhile the clock jumps by hours, which changes nothing but times.
    """
    project, log = twin("terminated"), tmp_path / "log"
    (project.root / "sitecustomize.py").write_text(JUMPING)
    with running(project, log) as train:
        assert train.when(lambda: train.step() >= 20), log.read_text()
        train.process.terminate()
        assert train.process.wait() == 1
        stopped_at = train.step()
    message = log.read_text()
    assert f"stopped at step {stopped_at} of {STEPS}: the same command continues there" in message
    assert "Traceback" not in message
    assert not project.workspace.model.exists()

    newest = max(project.workspace.running.glob("[!.]*/step-*.safetensors"))
    newest.write_bytes(newest.read_bytes()[: newest.stat().st_size // 2])
    message = project.good(*project.stage("train"))
    assert f"{newest} is damaged" in message
    assert "using the one before it" in message
    before = stopped_at - 1 if stopped_at % 2 else stopped_at - 2
    assert f"continues at step {before} of {STEPS}" in message
    assert_same_training(project, undisturbed, steps=STEPS)
    assert assert_cost_is_the_sum(project) == 2
    (journal,) = project.workspace.mlruns.glob("journal/*/events.jsonl")
    entries = [json.loads(line) for line in journal.read_text().splitlines()]
    times = [entry["time"] for entry in entries]
    assert max(times) - min(times) > 3_000_000  # it did jump
    assert all(0 < entry["content"]["wall"] < 3_000 for entry in entries if entry["kind"] == "cost")


def test_a_loss_that_stays_nan_ends_the_run(twin) -> None:
    """Each return is reported, and the error has the ids of the batch."""
    from mlflow import MlflowClient

    from ratchet.data.manifest import split_ids

    project = twin("exploding")
    hopeless = {  # each step multiplies the weights by 1 - learning_rate * weight_decay
        "training.optimizer": "sgd",
        "training.learning_rate": 100.0,
        "training.weight_decay": 1.0,
        "training.clip_norm": 0.0,
        "training.max_rollbacks": 2,
    }
    settings.override(project.workspace.params, hopeless)
    message = project.refused(*project.stage("train"))
    assert "after 2 returns to a checkpoint with a lower rate. Fix: lower training.learning_rate" in " ".join(
        message.split()
    )
    ids = message.rpartition("samples of the batch: ")[2].strip().split(", ")
    assert len(set(ids)) == SETTINGS["training.batch_size"]
    assert set(ids) <= set(split_ids(project.workspace.packed, "train"))

    project.good("ratchet", "sync")  # a failed run waits for MLflow only a short time
    client = MlflowClient(f"sqlite:///{project.root}/mlruns/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("ratchet").experiment_id])
    reported = [value for name, value in run.data.tags.items() if name.startswith("ratchet.trouble.")]
    assert sorted(value.partition("(return ")[2][:6] for value in reported) == ["1 of 2", "2 of 2"]
    assert all(value.startswith("not finite: ") for value in reported)
    assert run.info.status == "FAILED"


def test_a_kill_changes_no_bit_with_an_own_loss(twin, tmp_path) -> None:
    """The loss is in the model's folder. An edit of a comment in it changes nothing; another one does."""
    whole, killed = twin("own-loss"), twin("own-loss-killed")
    for project in (whole, killed):
        (project.root / "nets" / "losses.py").write_text(LOSS)
        settings.override(project.workspace.params, {"training.loss": "nets.losses:focal"})
    whole.good(*whole.stage("train"))
    with running(killed, tmp_path / "log") as train:
        assert train.when(lambda: train.step() >= 20), (tmp_path / "log").read_text()
    (killed.root / "nets" / "losses.py").write_text(LOSS.replace("\n\ndef", "\n\n# of 2017\ndef"))
    assert "continues at step" in killed.good(*killed.stage("train"))
    assert (whole.workspace.model / "code" / "nets" / "losses.py").read_text() == LOSS
    weights = {(each.workspace.model / "model.safetensors").read_bytes() for each in (whole, killed)}
    assert len(weights) == 1
    (killed.root / "nets" / "losses.py").write_text(LOSS.replace("** 2", "** 3"))
    refused = killed.refused(*killed.stage("train"))
    assert "nets/losses.py changed since the interrupted training in" in refused
