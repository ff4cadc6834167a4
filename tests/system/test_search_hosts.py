"""One search by two hosts, one of which is lost for good: process namespaces, each with a name, a clone and a home.

They share PostgreSQL and `search.folder`, as machines with a network folder do. Network and clock are one machine's.
"""

import os
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
from sqlalchemy import create_engine, text
from waiting import until

from ratchet.search.records import Study, Trial
from ratchet.search.store import StudyStore

pytestmark = [pytest.mark.slow, pytest.mark.system]

EPOCHS, TRIALS, INTERVAL = 16, 4, 5
STEPS = 20 * EPOCHS  # of 1,251 training samples in batches of 64


def inside(name: str) -> list[str]:
    """Prefix of a command that runs on a host of one core: when its first process is killed, all others are."""
    cores = sorted(os.sched_getaffinity(0))
    own = ["taskset", "--cpu-list", str(cores[int(name[-1]) % len(cores)])]
    own += ["unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return [*own, "sh", "-c", 'hostname "$0" && exec "$@"', name]


@pytest.fixture(scope="module")
def host_of() -> Iterator[Callable[..., "subprocess.Popen[bytes]"]]:
    """Start a command on a host."""
    if (
        not all(map(shutil.which, ("taskset", "unshare", "hostname")))
        or subprocess.run([*inside("host-0"), "true"], check=False).returncode
    ):
        pytest.skip("hosts cannot be simulated here: unshare, or the right to make namespaces, is not there")
    processes: list[subprocess.Popen[bytes]] = []

    def start(project: Any, name: str, *command: str) -> "subprocess.Popen[bytes]":
        with (project.home / "output.log").open("wb") as log:
            processes.append(
                subprocess.Popen(
                    [*inside(name), *command], cwd=project.root, env=project.environment, stdout=log, stderr=log
                )
            )
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def hosts(
    new_project: Callable[[str], Any], postgres: Any, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[Any], str]:
    """Two clones with packed data and the same settings, and the address of the studies."""
    engine = create_engine(postgres.uri, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for name in ("search", "search_mlflow"):
            connection.execute(text(f"CREATE DATABASE {name}"))
    engine.dispose()
    base = postgres.uri.rpartition("/")[0]
    project = new_project("first")
    shared = tmp_path_factory.mktemp("shared").resolve()
    space = "{training.learning_rate: {choice: [1.0e-3, 2.0e-3, 4.0e-3, 8.0e-3]}}"
    project.good(
        "ratchet", "set", f"search.space={space}", "search.study=shared", "search.sampler=grid", "search.pruner=none",
        "search.seeds=1", f"search.trials={TRIALS}", "search.workers=1", "search.lease=5.0",
        f"search.storage={base}/search", f"search.folder={shared}", f"tracking.uri={base}/search_mlflow",
        f"training.epochs={EPOCHS}", f"training.checkpoint_steps={INTERVAL}",
    )  # fmt: skip
    project.good("git", "commit", "--quiet", "--all", "--message=a search")
    clone = project.clone(shared.with_name("second"))
    project.good(*project.stage("ingest"))
    shutil.copytree(project.workspace.packed, clone.workspace.packed)
    return [project, clone], f"{base}/search"


def test_a_lost_host_costs_a_search_no_trial(
    hosts: tuple[list[Any], str], host_of: Callable[..., "subprocess.Popen[bytes]"]
) -> None:
    (project, clone), uri = hosts
    store = StudyStore(None, uri, "shared")

    def read() -> Study | None:
        return store.read()

    def of_second() -> Trial | None:
        study = read()
        trials = study.trials if study else ()
        return next((trial for trial in trials if trial.owner.startswith("host-2/") and trial.epochs >= 3), None)

    first = host_of(project, "host-1", "ratchet", "search")
    until(lambda: first.poll() is not None or read())
    second = host_of(clone, "host-2", "ratchet", "search", "join", "shared")
    # Often enough: the trial must still run when it is killed.
    lost = until(lambda: of_second() or first.poll() is not None or second.poll() is not None, pause=0.1)
    logs = (project.home / "output.log").read_text() + (clone.home / "output.log").read_text()
    assert isinstance(lost, Trial), logs
    for process in psutil.Process(second.pid).children():  # the host's first process: the kernel ends the others
        os.kill(process.pid, signal.SIGKILL)
    assert first.wait() == 0, (project.home / "output.log").read_text()

    study = read()
    assert study
    assert study.state == "ended"
    assert [trial.state for trial in study.trials] == ["complete"] * TRIALS
    assert {trial.number: trial.losses for trial in study.trials if trial.losses} == {lost.number: 1}
    for trial in study.trials:
        assert [epoch for epoch, _ in trial.curve] == list(range(1, EPOCHS + 1))
        assert 0 <= trial.steps - STEPS <= (INTERVAL if trial.number == lost.number else 0)
    assert_recorded_once(project, study)


def assert_recorded_once(project: Any, study: Study) -> None:
    """One MLflow run for each trial, with every point once."""
    from mlflow import MlflowClient

    client = MlflowClient(project.workspace.params.read_text().partition("\n  uri: ")[2].split()[0])
    experiment = client.get_experiment_by_name("ratchet-search")
    assert experiment
    runs = client.search_runs([experiment.experiment_id])
    assert Counter(run.data.tags["ratchet.key"] for run in runs) == Counter(trial.key for trial in study.trials)
    assert {run.info.run_id for run in runs} == {trial.run_id for trial in study.trials}
    for run in runs:
        points = client.get_metric_history(run.info.run_id, "validation/loss")
        assert sorted(point.step for point in points) == list(range(1, EPOCHS + 1))
        assert run.info.status == "FINISHED"
