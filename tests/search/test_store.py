"""The database of studies: writers in several processes, kills, and addresses that do not work."""

import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from simulated_search import finish, new_study

from ratchet.errors import StudyError, StudyUnavailable
from ratchet.search.scheduler import release
from ratchet.search.store import StudyStore, patiently
from ratchet.workspace import Workspace

WRITER = """
import sys
from hashlib import sha256
sys.path.insert(0, sys.argv[3])
from simulated_search import Worker, new_study
from ratchet.search.store import StudyStore

params, study = new_study(trials=6, pruner="none", sampler="random", epochs=1)
store = StudyStore(None, sys.argv[1], "study")
store.create(study)
for act in Worker(store, params, sys.argv[2]).acts():
    print(act, flush=True)
"""


def search(uri: str, owner: str) -> "subprocess.Popen[str]":
    """Start a worker process, which begins the study if there is none."""
    command = [sys.executable, "-c", WRITER, uri, owner, str(Path(__file__).parents[1])]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("scheme", ["sqlite", "journal"])
def test_workers_in_several_processes_train_each_trial_once(scheme: str, tmp_path: Path) -> None:
    """One that has begun the study is killed with a trial. Two others go on at the same time."""
    uri = f"{scheme}:///{tmp_path}/search"
    killed = search(uri, "killed")
    assert killed.stdout
    assert killed.stdout.readline()
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    workers = [search(uri, f"worker-{number}") for number in range(2)]
    store = StudyStore(None, uri, "study")
    release(store, "killed")
    took = []
    for worker in workers:
        output, errors = worker.communicate()
        assert worker.returncode == 0, errors
        took += [line for line in output.splitlines() if line.startswith("took ")]
    study = store.require()
    assert study.state == "ended"
    assert [trial.number for trial in study.trials] == list(range(6))
    assert {trial.state for trial in study.trials} == {"complete"}
    assert len({trial.key for trial in study.trials}) == 6
    assert len(took) == len({*took})


def test_optuna_itself_reads_the_study(new_store) -> None:
    import optuna

    params, study = new_study(trials=4)
    store = new_store(study)
    ended = finish(store, params)
    read = optuna.load_study(study_name="study", storage=store.uri)
    assert read.best_trial.number == ended.winner
    assert [trial.state.name for trial in read.trials] == [
        {"complete": "COMPLETE", "pruned": "PRUNED"}[trial.state] for trial in ended.trials
    ]
    assert read.trials[1].intermediate_values == dict(ended.trials[1].curve)
    assert read.trials[1].params == ended.trials[1].values


def test_storage_holds_no_pickle(new_store) -> None:
    params, study = new_study(trials=3)
    store = new_store(study)
    finish(store, params)
    path = store.uri.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        cells = [cell for name in tables for row in connection.execute(f"SELECT * FROM {name}") for cell in row]
    assert not [cell for cell in cells if isinstance(cell, bytes)]


def test_study_of_another_program_is_not_touched(tmp_path: Path) -> None:
    import optuna

    uri = f"sqlite:///{tmp_path}/search.db"
    theirs = optuna.create_study(study_name="study", storage=uri)
    theirs.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=1)
    _, study = new_study()
    with pytest.raises(StudyError, match="has a study of this name that ratchet did not write"):
        StudyStore(None, uri, "study").create(study)
    assert len(theirs.trials) == 1


def test_trial_of_another_program_counts_as_failed(new_store) -> None:
    import optuna

    params, study = new_study(trials=4)
    store = new_store(study)
    read = optuna.load_study(study_name="study", storage=store.uri)
    read.tell(read.ask(), 99.0)
    ended = finish(store, params)
    assert ended.trials[0].reason == "not a trial of ratchet: another program has added it"
    assert ended.winner != 0


def test_study_that_was_not_written_whole_is_written_again(new_store) -> None:
    """The process that began it was killed."""
    import optuna

    _, study = new_study()
    store = new_store(replace(study, name="other"))
    optuna.create_study(study_name="study", storage=store.uri, direction="maximize").set_user_attr("name", "study")
    begun = StudyStore(None, store.uri, "study")
    assert begun.read() is None
    assert begun.create(study)
    assert begun.require().objectives == study.objectives


def test_settings_that_are_gone_do_not_hide_a_study(new_store) -> None:
    """A study of an earlier release has them."""
    _, study = new_study()
    store = new_store(study)
    store.save(search=study.search.model_dump(mode="json") | {"sampler_seed": 0})
    assert store.require().search == study.search


def test_a_name_is_taken_once(new_store) -> None:
    _, study = new_study()
    store = new_store(study)
    assert not store.create(study)
    assert store.names() == ["study"]
    with pytest.raises(StudyError, match=r"other: no such study in .*Allowed: study"):
        StudyStore(None, store.uri, "other").require()
    with pytest.raises(StudyError, match="no such study"):
        StudyStore(None, store.uri, "'; DROP TABLE x").require()


def test_a_locked_database_is_waited_for(new_store) -> None:
    _, study = new_study()
    store = new_store(study)
    path = store.uri.removeprefix("sqlite:///")
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN EXCLUSIVE")
    timer = threading.Timer(0.5, lambda: other.execute("COMMIT"))
    timer.start()
    store.save(stop=True)
    timer.join()
    other.close()
    assert store.require().stop


@pytest.mark.parametrize("content", ["no database", "", "a directory", "read-only", "damaged"])
def test_an_unusable_file_is_named(content: str, tmp_path: Path, new_store) -> None:
    path = tmp_path / "other.db"
    if content == "a directory":
        path.mkdir()
    elif content == "read-only":
        path = Path("/proc/search.db")
    elif content == "damaged":
        params, study = new_study(trials=3)
        path = Path(new_store(study).uri.removeprefix("sqlite:///"))
        finish(StudyStore(None, f"sqlite:///{path}", "study"), params)
        whole = path.read_bytes()
        path.write_bytes(whole[:4096] + b"x" * (len(whole) - 4096))
    else:
        path.write_text(content * 100)
    store = StudyStore(None, f"sqlite:///{path}", "study")
    if not content:  # an empty file is an empty database
        assert store.names() == []
        return
    with pytest.raises(StudyUnavailable, match=r"search.storage: sqlite:.* does not answer .* Fix: start the database"):
        store.read()


@pytest.mark.parametrize(
    "uri", ["nonsense", "mysql://host/db", "postgres://host/db", "sqlite", "postgresql+nonsense://host/db", "s3://x/y"]
)
def test_a_wrong_address_is_refused_with_examples(uri: str) -> None:
    with pytest.raises(StudyError, match=r"search.storage: found .*Allowed: sqlite:///mlruns/search.db, postgresql"):
        StudyStore(None, uri, "study").read()


def test_a_server_that_is_away_is_named_without_password() -> None:
    store = StudyStore(None, "postgresql://me:hunter2@127.0.0.1:1/search", "study")
    with pytest.raises(StudyUnavailable, match="does not answer") as refused:
        store.read()
    assert "hunter2" not in str(refused.value)


def test_a_relative_path_belongs_to_the_project(tmp_path: Path) -> None:
    store = StudyStore(Workspace(tmp_path), "sqlite:///mlruns/search.db", "study")
    assert store.names() == []
    assert (tmp_path / "mlruns" / "search.db").exists()


def test_waiting_for_the_database_ends_when_asked() -> None:
    texts: list[str] = []
    calls = 0

    def call() -> str:
        nonlocal calls
        calls += 1
        if calls < 3:
            raise StudyUnavailable("search.storage: away")
        return "here"

    assert patiently(call, stop=lambda: False, say=texts.append) == "here"
    assert (texts, calls) == (["search.storage: away"], 3)
    calls = -1_000
    with pytest.raises(StudyUnavailable):
        patiently(call, stop=lambda: True, say=texts.append)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = StudyStore(None, f"sqlite:///{tmp_path}/file/search.db", "study")
    with pytest.raises(StudyError, match=r"search.storage: found .*file/search.db, whose folder cannot be made"):
        store.read()
