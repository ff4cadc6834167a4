"""A test session that is ended leaves no process behind: no server, no supervisor, no worker."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from waiting import until

pytestmark = pytest.mark.system

INNER = Path(__file__).with_name("inner") / "stays.py"


# As `python -m pytest`, but with the signals that nohup or a shell's background job makes this session ignore.
PYTEST = """
import signal, sys, pytest
signal.signal(signal.SIGTERM, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(pytest.main(sys.argv[1:]))
"""


def end_inner_session(test: str, number: int, place: Path) -> tuple[list[psutil.Process], int]:
    """Run a test of the inner session until it stays, then send a signal. Return what it started, and its exit code."""
    command = [sys.executable, "-c", PYTEST, "-q", "-p", "no:cacheprovider", f"--basetemp={place / 'tmp'}"]
    with (place / "log").open("wb") as log:
        session = subprocess.Popen(
            [*command, f"{INNER}::{test}"], env=os.environ | {"STAYS_AT": str(place)}, stdout=log, stderr=log
        )
    try:
        until((place / "pids").exists, process=session, log=place / "log")
        started = [psutil.Process(pid) for pid in json.loads((place / "pids").read_text())]
        session.send_signal(number)
        code = session.wait()
    finally:
        session.kill()
        session.wait()
    return started, code


def until_gone(processes: list[psutil.Process]) -> None:
    until(lambda: all(not each.is_running() or each.status() == psutil.STATUS_ZOMBIE for each in processes))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_ended_session_tears_down_and_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    started, code = end_inner_session("test_small", number, tmp_path)
    assert code == pytest.ExitCode.INTERRUPTED
    assert (tmp_path / "torn-down").exists()
    until_gone(started)


def test_a_killed_session_leaves_nothing(tmp_path: Path) -> None:
    started, _ = end_inner_session("test_small", signal.SIGKILL, tmp_path)
    until_gone(started)
