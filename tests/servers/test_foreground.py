"""`ratchet up --foreground` as a service manager uses it: a real process that is ended by signals."""

import contextlib
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from ports import reserved_port
from waiting import until

from flows.server import foreground
from ratchet import settings
from ratchet.servers.server_record import ServerRecord
from ratchet.servers.supervisor import MARK, Service, marked
from ratchet.settings.model import Params
from ratchet.workspace import Workspace

pytestmark = pytest.mark.slow

HOST = "127.0.0.1"
Begin = Callable[[], "subprocess.Popen[str]"]


@pytest.fixture
def begin(project: Any) -> Iterator[Begin]:
    """Start it in a project of its own, for a user whose home folder is not writable."""
    ports = {
        "platform.prefect_port": reserved_port(HOST),
        "platform.mlflow_port": reserved_port(HOST),
        "serving.enabled": False,
    }
    settings.override(project.workspace.params, ports)
    home = project.home / "a file" / "none"
    home.parent.touch()
    processes: list[subprocess.Popen[str]] = []

    def start() -> "subprocess.Popen[str]":
        command = ["ratchet", "up", "--foreground"]
        environment = project.environment | {"HOME": str(home)}
        processes.append(
            subprocess.Popen(command, cwd=project.root, env=environment, stdout=subprocess.PIPE, text=True, bufsize=1)
        )
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()
    project.good("ratchet", "down")


def services(project: Any) -> dict[str, Service]:
    return ServerRecord.read(project.workspace).services


def processes(project: Any) -> list[psutil.Process]:
    """Return every process whose working folder is the project."""
    return [process for process in psutil.process_iter(["cwd"]) if process.info["cwd"] == str(project.root)]


def read_until(process: "subprocess.Popen[str]", text: str) -> str:
    """Return its output up to a line that contains `text`."""
    assert process.stdout is not None
    output = ""
    for line in process.stdout:
        output += line
        if text in line:
            return output
    raise AssertionError(f"{text!r} was not printed:\n{output}")


def test_two_replace_a_dead_supervisor_once_and_sigterm_stops_all(project: Any, begin: Begin) -> None:
    """The second one also ends when the first has stopped all, as after `ratchet down` in another shell."""
    first = begin()
    read_until(first, "staying in the foreground")
    before, supervisor = services(project), ServerRecord.read(project.workspace).pid
    assert list(before) == ["prefect", "mlflow", "worker"]
    second = begin()
    read_until(second, "staying in the foreground")
    assert services(project) == before

    psutil.Process(supervisor).kill()
    outputs = [read_until(process, "staying in the foreground") for process in (first, second)]
    assert sum(f"supervisor: process {supervisor} is gone" in output for output in outputs) == 1
    after = services(project)
    assert not [pid for service in before.values() for pid in marked(service.mark)]
    belonging = {process.environ().get(MARK) for process in processes(project)} - {None}
    assert belonging == {service.mark for service in after.values()}
    assert project.run("ratchet", "status").returncode == 0

    first.send_signal(signal.SIGTERM)
    output = read_until(first, "Prefect server: stopped")
    assert "SIGTERM: stopping" in output
    assert [process.wait() for process in (first, second)] == [0, 0]
    assert not [pid for service in (*before.values(), *after.values()) for pid in marked(service.mark)]
    assert project.run("ratchet", "status").returncode == 3


def test_signal_during_startup_leaves_no_process(project: Any, begin: Begin) -> None:
    process = begin()
    until(lambda: services(project))
    started = services(project)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 0
    assert not services(project)
    assert not [pid for service in started.values() for pid in marked(service.mark)]


def test_a_swallowed_signal_stops_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A callback of a library, such as that of a weak reference, prints and drops what is raised in it."""
    lines, stopped = list[str](), list[Workspace]()

    def up(*_: Any, **__: Any) -> None:
        with contextlib.suppress(BaseException):
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(foreground, "up", up)
    monkeypatch.setattr(foreground, "down", lambda workspace, **_: stopped.append(workspace))
    foreground.stay(Workspace(tmp_path), Params(), say=lines.append)
    assert (lines, stopped) == (["SIGTERM: stopping"], [Workspace(tmp_path)])
