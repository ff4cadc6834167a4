"""`ratchet up --foreground` as a service manager uses it: a real process that is told to go by signals."""

import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from ratchet import settings
from ratchet.platform.guard import marked
from ratchet.platform.processes import Part, free_port
from ratchet.platform.record import Record

HOST = "127.0.0.1"
Begin = Callable[[], "subprocess.Popen[str]"]


@pytest.fixture
def begin(project: Any) -> Iterator[Begin]:
    """Start it in a project of its own, for a user whose home folder cannot be written."""
    ports = {"platform.prefect_port": free_port(HOST), "platform.mlflow_port": free_port(HOST)}
    settings.override(project.workspace.params, ports)
    home = project.home / "a file" / "none"
    home.parent.touch()
    made: list[subprocess.Popen[str]] = []

    def start() -> "subprocess.Popen[str]":
        command = ["ratchet", "up", "--foreground"]
        environment = project.environment | {"HOME": str(home)}
        made.append(
            subprocess.Popen(command, cwd=project.root, env=environment, stdout=subprocess.PIPE, text=True, bufsize=1)
        )
        return made[-1]

    yield start
    for process in made:
        process.kill()
        process.communicate()
    project.good("ratchet", "down")


def parts(project: Any) -> dict[str, Part]:
    return Record.read(project.workspace).parts


def read_until(process: "subprocess.Popen[str]", words: str) -> str:
    """What it said until a line that contains `words`."""
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if words in line:
            return said
    raise AssertionError(f"{words!r} was never said:\n{said}")


def until(true: Callable[[], object]) -> None:
    while not true():
        time.sleep(0.05)


def test_it_stays_looks_after_the_keepers_and_stops_all_on_sigterm(project: Any, begin: Begin) -> None:
    process = begin()
    read_until(process, "stays here")
    before = parts(project)
    assert list(before) == ["prefect", "mlflow", "worker"]
    psutil.Process(before["mlflow"].pid).kill()
    said = read_until(process, "stays here")
    assert f"MLflow server: process {before['mlflow'].pid} is gone" in said
    after = parts(project)
    assert {name for name in after if after[name] != before[name]} == {"mlflow"}
    assert project.run("ratchet", "status").returncode == 0
    process.send_signal(signal.SIGTERM)
    said = read_until(process, "Prefect server: stopped")
    assert "SIGTERM: stopping" in said
    assert process.wait() == 0
    assert not [pid for part in (*before.values(), *after.values()) for pid in marked(part.token)]
    assert project.run("ratchet", "status").returncode == 3


def test_it_ends_when_somebody_runs_down(project: Any, begin: Begin) -> None:
    process = begin()
    read_until(process, "stays here")
    project.good("ratchet", "down")
    assert process.wait() == 0
    assert not parts(project)


def test_told_to_go_while_starting_it_leaves_nothing(project: Any, begin: Begin) -> None:
    process = begin()
    until(lambda: parts(project))
    started = parts(project)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 0
    assert not parts(project)
    assert not [pid for part in started.values() for pid in marked(part.token)]
