"""Supervisor of a service: all its processes end, and no others do. Plain processes stand for the servers."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from ratchet.servers.processes import Service, spawn
from ratchet.servers.supervisor import marked

pytestmark = pytest.mark.system

# A worker and its flow run: the child leads a session of its own, and writes a file when it gets SIGTERM.
CHILD = """
import pathlib, signal, sys, time
def leave(*_):
    pathlib.Path("left").write_text("left")
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
pathlib.Path("started").touch()
time.sleep(600)
"""
WORKER = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {CHILD!r}], start_new_session=True).wait()"
# Runs until it is killed. After a restart it ends at once.
DOOMED = """
import pathlib, sys, time
with open("lives", "a") as file:
    file.write("x")
if pathlib.Path("started").exists():
    sys.exit(3)
pathlib.Path("started").touch()
time.sleep(600)
"""
STUBBORN = (
    "import pathlib, signal, time; signal.signal(15, signal.SIG_IGN); pathlib.Path('started').touch(); time.sleep(600)"
)

Started = Callable[..., tuple[Service, "subprocess.Popen[bytes]"]]


def until(true: Callable[[], object]) -> None:
    while not true():
        time.sleep(0.02)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Started]:
    started: list[tuple[Service, subprocess.Popen[bytes]]] = []

    def begin(program: str, *, grace: float = 20.0, tied: bool = False) -> tuple[Service, "subprocess.Popen[bytes]"]:
        command = [sys.executable, "-c", program]
        log = tmp_path / "service.log"
        started.append(
            spawn("service", command, environment=os.environ, cwd=tmp_path, address="", log=log, grace=grace, tied=tied)
        )
        until((tmp_path / "started").exists)
        return started[-1]

    yield begin
    for service, process in started:
        service.end(grace=0.0)
        process.wait()


def kill_command(service: Service) -> None:
    command = service.command()
    assert command is not None
    command.kill()


def test_dead_service_restarts_after_its_processes_have_ended(start: Started, tmp_path: Path) -> None:
    service, _ = start(WORKER)
    service.keep()
    first = set(marked(service.token))
    (tmp_path / "started").unlink()
    kill_command(service)
    until((tmp_path / "started").exists)
    assert (tmp_path / "left").exists()
    assert len(marked(service.token)) == 3
    assert first & set(marked(service.token)) == {service.pid}
    until(service.restarts)
    assert service.restarts() == 1
    stamp = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \| ratchet \| "
    assert re.search(stamp + "was killed by signal 9: restart in 1 s", service.log.read_text())
    assert service.end(grace=20.0) == 0
    assert marked(service.token) == []


def test_restarts_back_off_and_can_be_ended_during_a_pause(start: Started, tmp_path: Path) -> None:
    service, process = start(DOOMED)
    service.keep()
    kill_command(service)
    until(lambda: "restart in 4 s" in service.log.read_text())
    pauses = re.findall(r"exit status 3: restart in (\d+) s", service.log.read_text())
    assert pauses == ["2", "4"]
    assert service.command() is None
    assert service.alive()
    service.end(grace=20.0)
    assert process.wait() == 143
    assert (tmp_path / "lives").read_text() == "xxx"


def test_large_log_is_rotated_at_a_restart(start: Started, tmp_path: Path) -> None:
    service, _ = start(STUBBORN, grace=0.0)
    service.keep()
    with service.log.open("ab") as file:
        file.write(b"x" * 10_000_001)
    kill_command(service)
    until((tmp_path / "service.old.log").exists)
    until(lambda: service.log.exists() and "starts again" in service.log.read_text())


def test_restarts_of_an_earlier_service_do_not_count(start: Started, tmp_path: Path) -> None:
    (tmp_path / "service.json").write_text('{"token": "of another", "restarts": 7}')
    service, _ = start(STUBBORN, grace=0.0)
    assert service.restarts() == 0


def test_child_in_its_own_session_gets_sigterm(start: Started, tmp_path: Path) -> None:
    service, _ = start(WORKER)
    assert len(marked(service.token)) == 3  # supervisor, worker, run
    assert service.end(grace=20.0) == 0
    assert marked(service.token) == []
    assert (tmp_path / "left").exists()


def test_run_of_a_killed_worker_ends(start: Started, tmp_path: Path) -> None:
    service, process = start(WORKER)
    worker = psutil.Process(service.pid).children()[0]
    worker.kill()
    process.wait()
    assert marked(service.token) == []
    assert (tmp_path / "left").exists()


def test_processes_of_a_killed_supervisor_are_found(start: Started) -> None:
    service, process = start(WORKER)
    process.kill()
    process.wait()
    assert not service.alive()
    assert len(marked(service.token)) == 2
    service.end(grace=20.0)
    assert marked(service.token) == []


def test_process_that_ignores_sigterm_is_killed(start: Started) -> None:
    service, _ = start(STUBBORN, grace=0.3)
    service.end(grace=0.3)
    assert marked(service.token) == []


def test_tied_service_ends_when_its_starter_is_killed(tmp_path: Path) -> None:
    program = f"""
import os, pathlib, sys, time
from ratchet.servers.processes import spawn
service, _ = spawn("service", [sys.executable, "-c", {CHILD!r}], environment=os.environ, cwd=pathlib.Path.cwd(),
                address="", log=pathlib.Path("service.log"), grace=20.0, tied=True)
print(service.token, flush=True)
time.sleep(600)
"""
    starter = subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    with starter:
        token = starter.stdout.readline().strip()
        until((tmp_path / "started").exists)
        assert len(marked(token)) == 2
        starter.kill()
    until(lambda: not marked(token))
    assert (tmp_path / "left").exists()


def test_process_with_a_reused_pid_is_not_signalled(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True) as foreign:
        try:
            created = psutil.Process(foreign.pid).create_time()
            stale = Service("prefect", foreign.pid, created - 3600.0, "unknown-token", "", tmp_path / "log")
            assert not stale.alive()
            assert stale.end(grace=0.0) == 0
            assert foreign.poll() is None
        finally:
            foreign.send_signal(signal.SIGKILL)
