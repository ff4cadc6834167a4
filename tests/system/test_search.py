"""Searches on the digits, disturbed in every way: kills, stops, a full disk, a database that is away.

The truth is an undisturbed search with the same settings in a copy of its own. Its trials take less than a second.
"""

import dataclasses
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from simulated_search import Worker, new_study
from waiting import let_run, until, until_or_end

from ratchet import settings
from ratchet.search.records import Study, Trial
from ratchet.search.store import StudyStore
from ratchet.servers import client_environment

pytestmark = pytest.mark.system

RATE, BATCH = "training.learning_rate", "training.batch_size"
SETTINGS = {
    "training.epochs": 4, "training.batch_size": 128, "training.checkpoint_steps": 1, "training.log_every": 1,
    "training.precision": "fp32", "training.device": "cpu",
    "search.space": {RATE: {"float": [0.001, 0.1], "log": True}, BATCH: {"choice": [64, 128]}},
    "search.trials": 7, "search.workers": 1, "search.seeds": 1, "search.finalists": 1, "search.sampler": "random",
    "search.study": "digits", "search.lease": 2.0,
}  # fmt: skip
TIMEOUT = 240.0
FLOW = "from flows.search import search_flow; print(search_flow(return_state=True).message)"


@pytest.fixture(scope="module")
def refused_flow(new_project, use_small_net, shared_server) -> tuple[Any, str]:
    """A fresh clone in which search-flow has ingested the digits and refused the empty space; what it printed."""
    project = new_project("packed")
    use_small_net(project)
    environment = client_environment(project.workspace, shared_server.api)
    return project, project.good(sys.executable, "-c", FLOW, **environment)


@pytest.fixture(scope="module")
def packed(refused_flow):
    """The same project with a space: a search does not ingest the digits again."""
    project, _ = refused_flow
    settings.override(project.workspace.params, SETTINGS)
    return project


@pytest.fixture(scope="module")
def twin(packed, new_project) -> Callable[..., Any]:
    """Make a copy of that project with other settings."""

    def make(name: str, *, changes: dict[str, object] | None = None) -> Any:
        project = new_project(name, of=packed)
        settings.override(project.workspace.params, changes or {})
        return project

    return make


@pytest.fixture(scope="module")
def undisturbed(twin):
    """A search without a stop."""
    project = twin("undisturbed")
    project.good("ratchet", "search")
    return project


class Searching:
    """`ratchet search` in a project, its workers, and what they have on disk."""

    def __init__(self, project, log: Path, *command: str, **variables: str) -> None:
        self.project, self.log = project, log
        self.process = project.start(*(command or ("ratchet", "search")), log=log, **variables)

    def workers(self) -> list[int]:
        """Processes that train."""
        try:
            children = psutil.Process(self.process.pid).children()
            return [child.pid for child in children if "ratchet.scale.child" in child.cmdline()]
        except psutil.NoSuchProcess:
            return []

    def when(self, condition: Callable[[], object], *, pause: float = 0.02) -> bool:
        """Wait for a condition; False when the process ended before."""
        return until_or_end(condition, self.process, log=self.log, seconds=TIMEOUT, pause=pause)

    def checkpoints(self) -> set[Path]:
        return set(self.project.root.glob("data/search/*/*/checkpoints/step-*"))

    def goes_on(self) -> bool:
        """Wait for a checkpoint that is not there yet; False when the process ended before."""
        before = self.checkpoints()
        return self.when(lambda: self.checkpoints() - before)

    def kill_worker(self) -> None:
        """Kill the only worker, and wait for the next one."""
        (worker,) = self.workers()
        os.kill(worker, signal.SIGKILL)
        assert self.when(lambda: worker not in self.workers() and self.workers(), pause=0.1)

    def is_writing(self) -> bool:
        return any(self.project.root.glob("data/search/*/*/checkpoints/.draft-*"))

    def good(self) -> str:
        """Wait for an end that must be good; what it printed."""
        assert self.process.wait(TIMEOUT) == 0, self.log.read_text()
        return self.log.read_text()


@contextmanager
def searching(project, log: Path, *command: str, **variables: str) -> Iterator[Searching]:
    """Start a search; whatever happens, it does not outlive the block."""
    started = Searching(project, log, *command, **variables)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.wait()


def store_of(project) -> StudyStore:
    params = settings.load(project.workspace.params)
    return StudyStore(project.workspace, params.search.storage, "digits")


def study_of(project) -> Study:
    return store_of(project).require()


def content(trial: Trial) -> tuple[Any, ...]:
    """Return the results of a trial, without times, workers and MLflow."""
    return (
        trial.number, trial.key, trial.values, trial.state, trial.seed_of, trial.seed, trial.curve,
        trial.objectives, trial.marks,
    )  # fmt: skip


def experiments(project) -> dict[str, list[Any]]:
    """All MLflow runs, by experiment."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{project.root}/mlruns/mlflow.db")
    return {each.name: list(client.search_runs([each.experiment_id])) for each in client.search_experiments()}


def deleted_runs(project) -> list[Any]:
    from mlflow import MlflowClient
    from mlflow.entities import ViewType

    client = MlflowClient(f"sqlite:///{project.root}/mlruns/mlflow.db")
    experiments = [each.experiment_id for each in client.search_experiments()]
    return list(client.search_runs(experiments, run_view_type=ViewType.DELETED_ONLY))


def assert_same_search(project, other) -> None:
    """The same trials bit for bit, the same winner, and one MLflow run for each trial."""
    study, expected = study_of(project), study_of(other)
    assert [content(trial) for trial in study.trials] == [content(trial) for trial in expected.trials]
    assert (study.state, study.winner) == (expected.state, expected.winner)
    assert settings.load(project.workspace.params).search.winner == settings.load(other.workspace.params).search.winner
    assert_recorded_once(project)


def assert_recorded_once(project) -> None:
    study, runs = study_of(project), experiments(project)
    assert [run.info.run_id for run in runs["ratchet"]] == [study.run_id]
    trials = runs["ratchet-search"]
    assert {run.data.tags["mlflow.parentRunId"] for run in trials} == {study.run_id}
    numbers = Counter(run.data.tags["ratchet.trial"] for run in trials)
    assert numbers == {str(trial.number): 1 for trial in study.trials}
    keys = {run.data.tags["ratchet.trial"]: run.data.tags["ratchet.key"] for run in trials}
    assert keys == {str(trial.number): trial.key for trial in study.trials}


def test_search_flow_ingests_in_a_fresh_clone(refused_flow) -> None:
    """Then it refuses the empty space."""
    project, output = refused_flow
    assert "search.space" in output
    assert "up to date" in project.good("dvc", "status", "code", "ingest")


def test_a_search_ends_with_a_winner_in_the_settings(undisturbed) -> None:
    study = study_of(undisturbed)
    assert study.state == "ended"
    assert {trial.state for trial in study.trials} == {"complete", "pruned"}
    best = study.trials[study.winner or 0]
    params = settings.load(undisturbed.workspace.params)
    assert params.search.winner.startswith(f"digits/{study.winner}:")
    assert params.training.learning_rate == best.values[RATE]
    assert params.training.batch_size == best.values[BATCH]
    assert_recorded_once(undisturbed)
    output = undisturbed.good("ratchet", "search")
    assert "Nothing to do" in output
    assert [content(trial) for trial in study_of(undisturbed).trials] == [content(trial) for trial in study.trials]


ENDED = """
import os
import signal
from pathlib import Path

import ratchet.search.scheduler as scheduler

_leave = scheduler.Scheduler.leave


def leave(self, number, progress):
    mark = Path("killed-before-the-end")
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return _leave(self, number, progress)


scheduler.Scheduler.leave = leave
"""


def test_kills_stops_and_an_outage_change_nothing(undisturbed, twin, tmp_path, postgres) -> None:
    """One search: kills before an early end and in a write, a server away for longer than the lease, and three stops.

    The first killed worker has reported the epoch, and not the end. The same command continues after each stop.
    """
    project = twin("killed", changes={"search.max_losses": 9, "search.storage": postgres.uri})
    (tmp_path / "sitecustomize.py").write_text(ENDED)
    path = f"{tmp_path}{os.pathsep}{project.environment.get('PYTHONPATH', '')}"
    for number in (signal.SIGINT, signal.SIGKILL, None):
        with searching(project, log := tmp_path / f"log-{number}", PYTHONPATH=path) as search:
            assert search.goes_on()
            if number == signal.SIGINT:
                postgres.stop()
                let_run(search.process, 3.0)  # longer than the lease
                postgres.start()
                assert search.when((project.root / "killed-before-the-end").exists)
            if number == signal.SIGKILL:
                kill_in_a_write(search)
            assert search.goes_on()
            workers = search.workers()
            if number is None:
                os.kill(workers[0], signal.SIGTERM)
            else:
                search.process.send_signal(number)
            assert search.process.wait(TIMEOUT) != 0
            until(lambda workers=workers: not any(Path(f"/proc/{worker}").exists() for worker in workers))
        output = " ".join(log.read_text().split())
        assert "Traceback" not in output
        message = {signal.SIGKILL: "", None: "all workers were stopped; the same command continues"}
        assert message.get(number, "continues") in output
        study = study_of(project)
        assert study.state == "running"
        assert {trial.state for trial in study.trials} <= {"waiting", "pruned", "complete"}
    project.good("ratchet", "search")
    assert_same_search(project, undisturbed)
    assert sum(trial.losses for trial in study_of(project).trials) == 2
    steps = [sum(trial.steps for trial in study_of(each).trials) for each in (project, undisturbed)]
    assert steps[1] <= steps[0] <= steps[1] + 4  # no more than a step or two for each kill


def kill_in_a_write(search: Searching) -> None:
    """Kill the worker while it writes a checkpoint."""
    while search.when(search.is_writing, pause=0.0):
        (worker,) = search.workers()
        os.kill(worker, signal.SIGSTOP)
        until(lambda worker=worker: psutil.Process(worker).status() == psutil.STATUS_STOPPED)
        if search.is_writing():
            search.kill_worker()
            return
        os.kill(worker, signal.SIGCONT)


HELD = """
import os
import signal
import threading
from pathlib import Path

import ratchet.registry.runs as runs

place = os.environ["HELD_AT"]
_connect, _send, _metrics = runs.connect, runs.Run.send, runs.Run.metrics
wanted, sending, written = (threading.Event() for _ in range(3))


def stop_first():
    try:
        with Path("held").open("x") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        return False
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
    return True


def connect(*arguments):
    client = _connect(*arguments)
    create_run = client.create_run

    def create(*values, **names):
        is_stopped = place != "points" and threading.current_thread().name == runs.SENDER and stop_first()
        run = create_run(*values, **names)
        if is_stopped and place == "killed after a run":
            os.kill(os.getpid(), signal.SIGKILL)
        return run

    client.create_run = create
    return client


def send(self):
    if wanted.is_set() and threading.current_thread().name == runs.SENDER:
        sending.set()
        written.wait()
    return _send(self)


def metrics(self, values, *, step, attempt=0):
    if place == "points" and step == 2 and not Path("held").exists():
        wanted.set()
        self._pending.set()
        sending.wait()
        stop_first()
    _metrics(self, values, step=step, attempt=attempt)
    if wanted.is_set():
        written.set()


runs.connect, runs.Run.send, runs.Run.metrics = connect, send, metrics
"""


@pytest.mark.parametrize("place", ["run", "killed after a run", "points"])
def test_a_hung_worker_does_not_hold_its_trial(twin, tmp_path, place: str) -> None:
    """Another worker continues it, and the first one notices that too late: it already creates a run or sends points.

    MLflow has one run of the trial. The other one is deleted, and says why.
    """
    project = twin(f"hung {place}", changes={"search.workers": 2})
    (tmp_path / "sitecustomize.py").write_text(HELD)
    path = f"{tmp_path}{os.pathsep}{project.environment.get('PYTHONPATH', '')}"
    with searching(project, tmp_path / "log", PYTHONPATH=path, HELD_AT=place) as search:
        assert search.when(lambda: store_of(project).read() and study_of(project).state == "ended")
        before = study_of(project)
        assert sum(trial.losses for trial in before.trials) == 1
        os.kill(int((project.root / "held").read_text()), signal.SIGCONT)
        search.good()
    after = study_of(project)
    assert [content(trial) for trial in after.trials] == [content(trial) for trial in before.trials]
    assert all([epoch for epoch, _ in trial.curve] == list(range(1, trial.epochs + 1)) for trial in after.trials)
    assert "Nothing to send" in project.good("ratchet", "sync")
    assert_recorded_once(project)
    assert_points_once(project)
    (second,) = deleted_runs(project)
    assert "Another worker" in second.data.tags["ratchet.replaced"]
    output = "".join(log.read_text() for log in project.root.glob(".ratchet/search/digits/*.log"))
    assert "sending to MLflow failed" not in output  # a worker that is ended while it exits prints another traceback


def assert_points_once(project) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{project.root}/mlruns/mlflow.db")
    for run in experiments(project)["ratchet-search"]:
        history = client.get_metric_history(run.info.run_id, "validation/accuracy")
        assert len({point.step for point in history}) == len(history)
        assert run.info.status == "FINISHED"


def test_workers_on_a_server_do_not_block_each_other(postgres) -> None:
    """One gives signs and reports while others ask for trials."""
    params, study = new_study(trials=9, pruner="none", seeds=2, epochs=2)
    uri = f"{postgres.uri}?application_name=blocks"
    stores = [StudyStore(None, uri, "blocks") for _ in range(3)]
    assert stores[0].create(dataclasses.replace(study, name="blocks"))
    workers = [Worker(store, params, f"worker-{number}") for number, store in enumerate(stores)]
    errors: list[BaseException] = []

    def act(worker: Worker) -> None:
        try:
            for act in worker.acts():
                if act.startswith("took"):
                    assert worker.scheduler.beat(int(act.split()[1]))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=act, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    ended = stores[0].require()
    assert (ended.state, len(ended.searched)) == ("ended", 9)
    assert max(Counter(trial.key for trial in ended.trials).values()) == 1
    with stores[0]._engine.connect() as connection:  # a worker that hangs with the lock
        assert connection.exec_driver_sql("SHOW idle_in_transaction_session_timeout").scalar() == "2min"


@pytest.mark.slow
def test_a_full_disk_loses_no_trial(undisturbed, twin, tmp_path) -> None:
    """Checkpoints that do not fit are reported; where not even a trial can begin, the same command continues."""
    project = twin("full")
    place = project.root / "data" / "search"
    place.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk is not allowed here")
    try:
        with searching(project, tmp_path / "log") as search:
            assert search.when(search.checkpoints)
            free = os.statvfs(place)
            with (place / "filler").open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize)
            ended = search.process.wait(TIMEOUT)
        output = search.log.read_text()
        assert "Traceback" not in output
        if ended:
            assert "No space left" in output
        assert not any(trial.state == "failed" for trial in study_of(project).trials)
        (place / "filler").unlink()
        project.good("ratchet", "search")
        assert_same_search(project, undisturbed)
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.slow
def test_one_search_at_a_time_in_a_folder(twin, tmp_path) -> None:
    """It can be stopped and resumed by name; others can join from a clone with the same data and code."""
    database = tmp_path / "search.db"
    changes = {"search.storage": f"sqlite:///{database}", "search.trials": 8, "search.lease": 600.0}
    project, helper = twin("first", changes=changes), twin("second", changes=changes)
    other = twin("other", changes=changes)
    (other.root / "nets" / "small.py").write_text((other.root / "nets" / "small.py").read_text() + "CHANGED = True\n")
    with searching(project, tmp_path / "log") as search:
        assert search.when(search.checkpoints)
        (worker,) = search.workers()
        os.kill(worker, signal.SIGSTOP)  # so the search is not over before the next four commands
        assert "held by ratchet search" in project.refused("ratchet", "search")
        assert "no such study" in project.refused("ratchet", "search", "join", "../x")
        assert "nets/small.py changed" in other.refused("ratchet", "search", "join", "digits", "--workers", "1")
        assert "digits: its workers end" in project.good("ratchet", "search", "stop")
        os.kill(worker, signal.SIGCONT)
        assert search.process.wait(TIMEOUT) != 0
    assert "ratchet search resume digits" in search.log.read_text()
    stopped = study_of(project)
    assert (stopped.state, stopped.stop) == ("running", True)
    assert {trial.state for trial in stopped.trials} <= {"waiting", "pruned", "complete"}
    settings.override(project.workspace.params, {"search.study": "auto", "registry.model": "elsewhere"})
    with searching(project, tmp_path / "log", "ratchet", "search", "resume", "digits") as search:
        assert search.when(lambda: any(trial.state == "running" for trial in study_of(project).trials))
        helper.good("ratchet", "search", "join", "digits", "--workers", "1")
        search.good()
    study = study_of(project)
    assert study.state == "ended"
    assert len(study.searched) == 8
    assert max(Counter(trial.key for trial in study.trials).values()) == 1
    assert store_of(project).names() == ["digits"]
