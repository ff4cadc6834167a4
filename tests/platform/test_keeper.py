"""What must hold for any part: all of it ends, nothing else does. Plain processes stand for the servers."""

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

from ratchet.platform.guard import marked
from ratchet.platform.processes import Part, spawn

# A worker and its flow run: the child leads a session of its own, writes when it is told to go, and then goes.
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
# Lives until it is killed, and from then on dies as soon as it is started.
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

Started = Callable[..., tuple[Part, "subprocess.Popen[bytes]"]]


def until(true: Callable[[], object]) -> None:
    while not true():
        time.sleep(0.02)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Started]:
    made: list[tuple[Part, subprocess.Popen[bytes]]] = []

    def begin(program: str, *, grace: float = 20.0, tied: bool = False) -> tuple[Part, "subprocess.Popen[bytes]"]:
        command = [sys.executable, "-c", program]
        log = tmp_path / "part.log"
        made.append(
            spawn("part", command, environment=os.environ, cwd=tmp_path, address="", log=log, grace=grace, tied=tied)
        )
        until((tmp_path / "started").exists)
        return made[-1]

    yield begin
    for part, process in made:
        part.end(grace=0.0)
        process.wait()


def kill_command(part: Part) -> None:
    command = part.command()
    assert command is not None
    command.kill()


def test_what_dies_unasked_is_started_again_once_all_it_left_has_ended(start: Started, tmp_path: Path) -> None:
    part, _ = start(WORKER)
    part.keep()
    first = set(marked(part.token))
    (tmp_path / "started").unlink()
    kill_command(part)
    until((tmp_path / "started").exists)
    assert (tmp_path / "left").exists()
    assert len(marked(part.token)) == 3
    assert first & set(marked(part.token)) == {part.pid}
    until(part.restarts)
    assert part.restarts() == 1
    stamp = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \| ratchet \| "
    assert re.search(stamp + "was killed by signal 9: started again in 1 s", part.log.read_text())
    assert part.end(grace=20.0) == 0
    assert marked(part.token) == []


def test_what_dies_at_each_start_is_started_ever_more_rarely_and_ends_in_its_pause(
    start: Started, tmp_path: Path
) -> None:
    part, process = start(DOOMED)
    part.keep()
    kill_command(part)
    until(lambda: "started again in 4 s" in part.log.read_text())
    pauses = re.findall(r"exit status 3: started again in (\d+) s", part.log.read_text())
    assert pauses == ["2", "4"]
    assert part.command() is None
    assert part.alive()
    part.end(grace=20.0)
    assert process.wait() == 143
    assert (tmp_path / "lives").read_text() == "xxx"


def test_a_log_that_has_grown_large_is_put_aside_when_a_part_is_started_again(start: Started, tmp_path: Path) -> None:
    part, _ = start(STUBBORN, grace=0.0)
    part.keep()
    with part.log.open("ab") as file:
        file.write(b"x" * 10_000_001)
    kill_command(part)
    until((tmp_path / "part.old.log").exists)
    until(lambda: part.log.exists() and "starts again" in part.log.read_text())


def test_a_tally_of_an_earlier_part_is_not_this_ones(start: Started, tmp_path: Path) -> None:
    (tmp_path / "part.json").write_text('{"token": "of another", "restarts": 7}')
    part, _ = start(STUBBORN, grace=0.0)
    assert part.restarts() == 0


def test_a_child_in_its_own_session_is_told_to_go_and_goes(start: Started, tmp_path: Path) -> None:
    part, _ = start(WORKER)
    assert len(marked(part.token)) == 3  # keeper, worker, run
    assert part.end(grace=20.0) == 0
    assert marked(part.token) == []
    assert (tmp_path / "left").exists()


def test_a_killed_worker_takes_its_run_along(start: Started, tmp_path: Path) -> None:
    part, process = start(WORKER)
    worker = psutil.Process(part.pid).children()[0]
    worker.kill()
    process.wait()
    assert marked(part.token) == []
    assert (tmp_path / "left").exists()


def test_what_a_killed_keeper_left_is_still_found(start: Started) -> None:
    part, process = start(WORKER)
    process.kill()
    process.wait()
    assert not part.alive()
    assert len(marked(part.token)) == 2
    part.end(grace=20.0)
    assert marked(part.token) == []


def test_who_ignores_sigterm_is_killed_after_the_grace(start: Started) -> None:
    part, _ = start(STUBBORN, grace=0.3)
    part.end(grace=0.3)
    assert marked(part.token) == []


def test_a_tied_part_ends_when_its_starter_is_killed(tmp_path: Path) -> None:
    program = f"""
import os, pathlib, sys, time
from ratchet.platform.processes import spawn
part, _ = spawn("part", [sys.executable, "-c", {CHILD!r}], environment=os.environ, cwd=pathlib.Path.cwd(),
                address="", log=pathlib.Path("part.log"), grace=20.0, tied=True)
print(part.token, flush=True)
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


def test_a_reused_pid_is_never_signalled(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True) as foreign:
        try:
            created = psutil.Process(foreign.pid).create_time()
            stale = Part("prefect", foreign.pid, created - 3600.0, "a-token-of-nobody", "", tmp_path / "log")
            assert not stale.alive()
            assert stale.end(grace=0.0) == 0
            assert foreign.poll() is None
        finally:
            foreign.send_signal(signal.SIGKILL)
