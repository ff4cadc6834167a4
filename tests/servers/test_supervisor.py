"""Supervisor of a service: all its processes end, and no others do. Plain processes stand for the servers."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from waiting import until

from ratchet.servers.private import TiedServers
from ratchet.servers.server_record import ServerRecord, start_supervisor
from ratchet.servers.supervisor import Launch, Service, marked
from ratchet.workspace import Workspace

pytestmark = pytest.mark.system

# A worker and its flow run: the child leads a session of its own, and writes a file when it gets SIGTERM.
CHILD = """
import pathlib, signal, sys
def leave(*_):
    pathlib.Path("left").write_text("left")
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
pathlib.Path("started").touch()
signal.pause()
"""
WORKER = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {CHILD!r}], start_new_session=True).wait()"
# Runs until it is killed. After a restart it ends at once.
DOOMED = """
import pathlib, signal, sys
with open("lives", "a") as file:
    file.write("x")
if pathlib.Path("started").exists():
    sys.exit(3)
pathlib.Path("started").touch()
signal.pause()
"""
STUBBORN = "import pathlib, signal; signal.signal(15, signal.SIG_IGN); pathlib.Path('started').touch(); signal.pause()"

MARK = f"test-{os.getpid()}"


def launch(folder: Path, program: str, *, grace: float = 20.0, name: str = "service") -> Launch:
    service = Service(name, "", str(folder / f"{name}.log"), f"{MARK}-{folder}-{name}", grace)
    return Launch(service, [sys.executable, "-c", program], dict(os.environ))


@dataclass(frozen=True)
class Started:
    """A supervisor with one service."""

    workspace: Workspace
    process: "subprocess.Popen[bytes]"
    mark: str
    log: Path

    @property
    def record(self) -> ServerRecord:
        return ServerRecord.read(self.workspace)

    @property
    def service(self) -> Service:
        return self.record.services["service"]

    @property
    def processes(self) -> set[int]:
        return set(marked(self.mark))

    def kill_command(self) -> None:
        assert self.service.pid is not None
        os.kill(self.service.pid, signal.SIGKILL)


Start = Callable[..., Started]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Started] = []

    def begin(program: str, *, grace: float = 20.0) -> Started:
        workspace, launched = Workspace(tmp_path), launch(tmp_path, program, grace=grace)
        process = start_supervisor(workspace, [launched])
        started.append(Started(workspace, process, launched.service.mark, Path(launched.service.log)))
        until((tmp_path / "started").exists)
        return started[-1]

    yield begin
    for supervisor in started:
        supervisor.record.end()
        supervisor.process.wait()


def test_dead_service_restarts_after_its_processes_have_ended(start: Start, tmp_path: Path) -> None:
    started = start(WORKER)
    first = started.processes
    (tmp_path / "started").unlink()
    started.kill_command()
    until((tmp_path / "started").exists)
    assert (tmp_path / "left").exists()
    assert len(started.processes) == 2
    assert not first & started.processes
    assert started.service.restarts == 1
    stamp = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \| ratchet \| "
    assert re.search(stamp + "was killed by signal 9: restart in 1 s", started.log.read_text())
    started.record.end()
    assert not started.processes
    assert "had to be killed" not in started.log.read_text()


def test_restarts_back_off_and_can_be_ended_during_a_pause(start: Start, tmp_path: Path) -> None:
    started = start(DOOMED)
    started.kill_command()
    until(lambda: "restart in 4 s" in started.log.read_text())
    pauses = re.findall(r"exit status 3: restart in (\d+) s", started.log.read_text())
    assert pauses == ["2", "4"]
    assert started.service.pid is None
    assert started.record.alive()
    started.record.end()
    assert started.process.wait() == 143
    assert (tmp_path / "lives").read_text() == "xxx"


def test_large_log_is_rotated_at_a_restart(start: Start, tmp_path: Path) -> None:
    started = start(STUBBORN, grace=0.0)
    with started.log.open("ab") as file:
        file.write(b"x" * 10_000_001)
    started.kill_command()
    until((tmp_path / "service.old.log").exists)
    until(lambda: started.log.exists() and "starts again" in started.log.read_text())


def test_processes_of_a_killed_supervisor_are_found(start: Start) -> None:
    started = start(WORKER)
    started.process.kill()
    started.process.wait()
    assert not started.record.alive()
    assert len(started.processes) == 2
    started.record.end()
    assert not started.processes


def test_process_that_ignores_sigterm_is_killed(start: Start) -> None:
    started = start(STUBBORN, grace=0.3)
    started.record.end()
    assert not started.processes
    assert "1 processes had to be killed" in started.log.read_text()


def test_services_end_in_reverse_order_each_with_its_last_command(tmp_path: Path) -> None:
    def ends(name: str) -> Launch:
        say = f"import pathlib; pathlib.Path('order').open('a').write('{name} ')"
        leave = f"import signal, sys; signal.signal(15, lambda *_: ({say.partition('; ')[2]}, sys.exit()))"
        program = f"import pathlib; {leave}; pathlib.Path('{name}').touch(); signal.pause()"
        launched = launch(tmp_path, program, name=name)
        last = [sys.executable, "-c", say.replace(f"{name} ", f"last-of-{name} ")]
        return Launch(launched.service, launched.command, launched.environment, last)

    workspace, ended = Workspace(tmp_path), list[str]()
    process = start_supervisor(workspace, [ends("server"), ends("worker")])
    until(lambda: (tmp_path / "server").exists() and (tmp_path / "worker").exists())
    ServerRecord.read(workspace).end(lambda service: ended.append(service.name))
    assert (tmp_path / "order").read_text().split() == ["worker", "last-of-worker", "server", "last-of-server"]
    assert ended == ["worker", "server"]
    assert process.wait() == 143
    assert not ServerRecord.read(workspace).services


def test_run_of_a_killed_tied_service_ends(tmp_path: Path) -> None:
    launched = launch(tmp_path, WORKER)
    servers = TiedServers(Workspace(tmp_path), [launched])
    until((tmp_path / "started").exists)
    [worker] = [pid for pid in marked(launched.service.mark) if os.getsid(pid) != pid]
    os.kill(worker, signal.SIGKILL)
    until(lambda: not marked(launched.service.mark))
    assert (tmp_path / "left").exists()
    servers.stop()


def test_tied_service_ends_when_its_starter_is_killed(tmp_path: Path) -> None:
    program = f"""
import os, pathlib, signal, sys
from ratchet.servers.private import TiedServers
from ratchet.servers.supervisor import Launch, Service
from ratchet.workspace import Workspace
folder = pathlib.Path.cwd()
service = Service("service", "", str(folder / "service.log"), f"tied-{{os.getpid()}}", 20.0)
servers = TiedServers(Workspace(folder), [Launch(service, [sys.executable, "-c", {CHILD!r}], dict(os.environ))])
print(service.mark, flush=True)
signal.pause()
"""
    starter = subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    with starter:
        mark = starter.stdout.readline().strip()
        until((tmp_path / "started").exists)
        assert len(marked(mark)) == 1
        starter.kill()
    until(lambda: not marked(mark))
    assert (tmp_path / "left").exists()


def test_process_with_a_reused_pid_is_not_signalled(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True) as foreign:
        try:
            created = psutil.Process(foreign.pid).create_time()
            stale = Service("prefect", "", str(tmp_path / "log"), "unknown-mark", 0.0, pid=foreign.pid)
            record = ServerRecord(tmp_path / "servers.json", foreign.pid, created - 3600.0, {"prefect": stale})
            assert not record.alive()
            record.end()
            assert foreign.poll() is None
        finally:
            foreign.send_signal(signal.SIGKILL)
