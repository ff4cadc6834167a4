"""The database of studies: writers in several processes, kills, and addresses that do not work."""

import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from simulated_search import new_study

from ratchet.errors import StudyError, StudyUnavailable
from ratchet.search.records import Trial
from ratchet.search.store import StudyStore, patiently
from ratchet.workspace import Workspace

WRITER = """
import sys
from dataclasses import replace
from ratchet.search.records import Trial
from ratchet.search.store import StudyStore

uri, owner, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
store = StudyStore(None, uri, "study")
for place in range(count):
    with store.change() as change:
        number = len(change.study.trials)
        trial = change.put(Trial(number, f"{owner} {place}", {"training.learning_rate": 0.1}, owner=owner))
        change.put(replace(trial, state="complete", objectives=(float(place),)))
        if number:
            first = change.study.trials[0]
            change.put(replace(first, steps=first.steps + 1))
    store.beat(number, owner, lease=60.0)
    assert len(store.require().trials) > number
    print(number, flush=True)
"""


def write(uri: str, owner: str, count: int) -> "subprocess.Popen[str]":
    """Start a process that adds trials."""
    command = [sys.executable, "-c", WRITER, uri, owner, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_writers_in_several_processes_lose_nothing(new_store) -> None:
    _, study = new_study()
    store = new_store(study)
    writers = [write(store.uri, f"writer-{number}", 12) for number in range(3)]
    killed = write(store.uri, "killed", 100_000)
    seen, ends = [0], threading.Event()

    def read() -> None:
        reader = StudyStore(None, store.uri, "study")
        while not ends.wait(0.005):
            seen.append(len(reader.require().trials))

    reading = threading.Thread(target=read)
    reading.start()
    assert killed.stdout
    for _ in range(3):
        killed.stdout.readline()
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    for writer in writers:
        output, errors = writer.communicate()
        assert writer.returncode == 0, errors
        assert len(output.split()) == 12
    ends.set()
    reading.join()
    trials = store.require().trials
    assert seen == sorted(seen)
    assert [trial.number for trial in trials] == list(range(len(trials)))
    assert len(trials) >= 39
    assert trials[0].steps == len(trials) - 1  # no update is lost
    assert len({trial.key for trial in trials}) == len(trials)


def test_an_exception_undoes_a_whole_change(new_store) -> None:
    _, study = new_study()
    store = new_store(study)

    def fail() -> None:
        with store.change() as change:
            change.put(Trial(0, "a", {}))
            change.save(stop=True)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    after = store.require()
    assert (len(after.trials), after.stop) == (0, False)
    with store.change() as change:
        change.put(Trial(0, "b", {}))
    assert [trial.key for trial in store.require().trials] == ["b"]


def test_a_name_is_taken_once(new_store) -> None:
    _, study = new_study()
    store = new_store(study)
    assert not store.create(study)
    assert store.names() == ["study"]
    with pytest.raises(StudyError, match=r"other: no such study in .*Allowed: study"):
        StudyStore(None, store.uri, "other").require()
    with pytest.raises(StudyError, match="no such study"), StudyStore(None, store.uri, "'; DROP TABLE x").change():
        pass


def test_a_locked_database_is_waited_for(new_store) -> None:
    _, study = new_study()
    store = new_store(study)
    path = store.uri.removeprefix("sqlite:///")
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN EXCLUSIVE")
    timer = threading.Timer(0.5, lambda: other.execute("COMMIT"))
    timer.start()
    began = time.monotonic()
    with store.change() as change:
        change.save(stop=True)
    timer.join()
    other.close()
    assert time.monotonic() - began > 0.4
    assert store.require().stop


@pytest.mark.parametrize("content", ["no database", "", "a directory", "read-only"])
def test_an_unusable_file_is_named(content: str, tmp_path: Path, new_store) -> None:
    path = tmp_path / "other.db"
    if content == "a directory":
        path.mkdir()
    elif content == "read-only":
        path = Path("/proc/search.db")
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
    with pytest.raises(StudyError, match=r"search.storage: found .*Allowed: sqlite:///mlruns/search.db or postgresql"):
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
