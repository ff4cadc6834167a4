"""Processes of `map_here`: killed, failing, and without their parent."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import until

from ratchet.errors import PlatformError
from ratchet.scale import ShardCall, map_here

FUNCTIONS = """
import os
import signal
import sys
from pathlib import Path

from ratchet.errors import StudyError


def double(shard):
    return {"value": 2 * shard["value"], "variable": os.environ.get("MARK"), "pid": os.getpid()}


def killed_twice(shard):
    marks = Path(shard["marks"])
    marks.write_text(marks.read_text() + "x" if marks.exists() else "x")
    if len(marks.read_text()) < 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return len(marks.read_text())


def always_killed(shard):
    print("about to be killed", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def refuses(shard):
    if shard["refuses"]:
        raise StudyError("study: other data here. Fix: get them")
    return waits(shard)


def breaks(shard):
    raise ValueError("a fault of the code")


def waits(shard):
    asked = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
    Path(shard["pid"]).write_text(str(os.getpid()))
    while not asked:
        signal.sigtimedwait([], 0.02)
    Path(shard["end"]).write_text("in order")
    return "stopped"
"""


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for logs, beside a module with functions."""
    (tmp_path / "acts.py").write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "logs"


def test_results_come_in_the_order_of_the_shards(logs: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))[:1] if hasattr(os, "sched_getaffinity") else ()
    shards = [ShardCall({"value": 1}, {"MARK": "a"}, cores), ShardCall({"value": 2}, {"MARK": "b"})]
    results = map_here("acts:double", shards, logs=logs)
    assert [(each["value"], each["variable"]) for each in results] == [(2, "a"), (4, "b")]
    assert len({each["pid"] for each in results} | {os.getpid()}) == 3


def test_a_killed_process_is_started_again(logs: Path, tmp_path: Path) -> None:
    lost: list[int] = []

    def note(place: int) -> bool:
        lost.append(place)
        return False

    shards = [ShardCall({"marks": str(tmp_path / "marks")})]
    assert map_here("acts:killed_twice", shards, logs=logs, on_loss=note) == [3]
    assert lost == [0, 0]


def test_process_that_is_killed_at_every_start_is_given_up(logs: Path) -> None:
    with pytest.raises(PlatformError, match=r"a worker ended with SIGKILL: about to be killed. Its output is in .*log"):
        map_here("acts:always_killed", [ShardCall({})], logs=logs)


def test_recorded_losses_are_not_limited_here(logs: Path) -> None:
    """A trial that kills its workers fails after search.max_losses, however large that is."""
    lost = 0

    def note(place: int) -> bool:
        nonlocal lost
        lost += 1
        if lost == 5:
            raise KeyboardInterrupt
        return True

    with pytest.raises(KeyboardInterrupt):
        map_here("acts:always_killed", [ShardCall({})], logs=logs, on_loss=note)


def test_a_refusal_ends_the_others_in_order(logs: Path, tmp_path: Path) -> None:
    content = {"pid": str(tmp_path / "pid"), "end": str(tmp_path / "end")}
    with pytest.raises(PlatformError) as refused:
        map_here("acts:refuses", [ShardCall(content | {"refuses": False}), ShardCall({"refuses": True})], logs=logs)
    assert str(refused.value) == "study: other data here. Fix: get them"
    assert not (tmp_path / "pid").exists() or (tmp_path / "end").read_text() == "in order"


def test_a_fault_of_the_code_is_shown_with_its_log(logs: Path) -> None:
    with pytest.raises(PlatformError) as refused:
        map_here("acts:breaks", [ShardCall({})], logs=logs)
    assert "a worker ended with exit code 1: ValueError: a fault of the code. Its output is in" in str(refused.value)
    assert "Traceback" in (logs / "worker-0.log").read_text()


@pytest.mark.parametrize("function", ["acts:nothing", "nowhere:double"])
def test_an_unknown_function_is_shown(function: str, logs: Path) -> None:
    with pytest.raises(PlatformError, match=r"a worker ended with exit code 1: \w*Error: "):
        map_here(function, [ShardCall({})], logs=logs)


def test_an_exception_of_tick_ends_the_processes_in_order(logs: Path, tmp_path: Path) -> None:
    def tick() -> None:
        if (tmp_path / "pid").exists():
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        map_here(
            "acts:waits",
            [ShardCall({"pid": str(tmp_path / "pid"), "end": str(tmp_path / "end")})],
            logs=logs,
            tick=tick,
        )
    assert (tmp_path / "end").read_text() == "in order"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_processes_end_in_order_when_their_parent_ends(number: int, logs: Path, tmp_path: Path) -> None:
    content = {"pid": str(tmp_path / "pid"), "end": str(tmp_path / "end")}
    script = (
        "import sys; from pathlib import Path; from ratchet.scale import ShardCall, map_here\n"
        f"map_here('acts:waits', [ShardCall({json.dumps(content)})], logs=Path({str(logs)!r}))"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL, cwd=tmp_path)
    until((tmp_path / "pid").read_text, process=parent)
    parent.send_signal(number)
    parent.wait()
    until((tmp_path / "end").read_text)
    child = int((tmp_path / "pid").read_text())
    until(lambda: not Path(f"/proc/{child}").exists())
