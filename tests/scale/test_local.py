"""The engine `here`: processes that are killed, fail, or lose their parent."""

import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from ratchet import scale
from ratchet.errors import PlatformError, StudyError
from ratchet.scale.calls import ShardCall, answer, result_of, versions
from ratchet.scale.local import ShardWorker, map_here
from ratchet.settings.model import ScaleSettings

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


def lists(shard):
    return [path.name for path in Path(shard["folder"]).glob("*.json")]


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


def results(function: str, shards: Sequence[Any], logs: Path, **more: Any) -> list[Any]:
    """Results in the order of the shards; each has a process unless `workers` says otherwise."""
    workers = more.pop("workers", [ShardWorker()] * len(shards))
    calls = [ShardCall(f"acts:{function}", shard) for shard in shards]
    answers = dict(map_here(calls, workers, logs=logs, patience=3600.0, **more))
    return [answers[place] for place in range(len(shards))]


def test_a_process_has_its_variables_and_cores(logs: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))[:1] if hasattr(os, "sched_getaffinity") else ()
    workers = [ShardWorker({"MARK": "a"}, cores), ShardWorker({"MARK": "b"})]
    both = results("double", [{"value": 1}, {"value": 2}], logs, workers=workers)
    assert [(each["value"], each["variable"]) for each in both] == [(2, "a"), (4, "b")]
    assert len({each["pid"] for each in both} | {os.getpid()}) == 3


def test_few_processes_take_many_shards(logs: Path) -> None:
    many = results("double", [{"value": value} for value in range(9)], logs, workers=[ShardWorker()] * 2)
    assert [each["value"] for each in many] == [2 * value for value in range(9)]
    assert len({each["pid"] for each in many}) <= 2


def test_a_killed_process_is_started_again(logs: Path, tmp_path: Path) -> None:
    lost: list[int] = []

    def note(place: int) -> bool:
        lost.append(place)
        return False

    assert results("killed_twice", [{"marks": str(tmp_path / "marks")}], logs, on_loss=note) == [3]
    assert lost == [0, 0]


def test_process_that_is_killed_at_every_start_is_given_up(logs: Path) -> None:
    with pytest.raises(PlatformError, match=r"a worker ended with SIGKILL: about to be killed. Its output is in .*log"):
        results("always_killed", [{}], logs)


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
        results("always_killed", [{}], logs, on_loss=note)


def test_a_refusal_ends_the_others_in_order(logs: Path, tmp_path: Path) -> None:
    content = {"pid": str(tmp_path / "pid"), "end": str(tmp_path / "end")}
    with pytest.raises(StudyError, match=r"^study: other data here. Fix: get them$"):
        results("refuses", [content | {"refuses": False}, {"refuses": True}], logs)
    assert not (tmp_path / "pid").exists() or (tmp_path / "end").read_text() == "in order"


def test_a_fault_of_the_code_is_shown_with_its_log(logs: Path) -> None:
    with pytest.raises(PlatformError) as refused:
        results("breaks", [{}], logs)
    assert "a worker ended with exit code 1: ValueError: a fault of the code. Its output is in" in str(refused.value)
    assert "Traceback" in (logs / "worker-0.log").read_text()


def test_an_unknown_function_is_shown(logs: Path) -> None:
    with pytest.raises(PlatformError, match=r"a worker ended with exit code 1: \w*Error: "):
        results("nothing", [{}], logs)


def test_an_exception_of_tick_ends_the_processes_in_order(logs: Path, tmp_path: Path) -> None:
    def tick() -> None:
        if (tmp_path / "pid").exists():
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        results("waits", [{"pid": str(tmp_path / "pid"), "end": str(tmp_path / "end")}], logs, tick=tick)
    assert (tmp_path / "end").read_text() == "in order"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_processes_end_in_order_when_their_parent_ends(number: int, logs: Path, tmp_path: Path) -> None:
    content = {"pid": str(tmp_path / "pid"), "end": str(tmp_path / "end")}
    script = (
        "import signal, sys; from pathlib import Path; from ratchet.scale.calls import ShardCall\n"
        "from ratchet.scale.local import ShardWorker, map_here\n"
        "for number in (signal.SIGTERM, signal.SIGINT):  # a shell lets a job in the background ignore Ctrl-C\n"
        "    signal.signal(number, signal.default_int_handler)\n"
        f"calls = [ShardCall('acts:waits', {content!r})]\n"
        f"dict(map_here(calls, [ShardWorker()], logs=Path({str(logs)!r}), patience=3600))"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL, cwd=tmp_path)
    until((tmp_path / "pid").read_text, process=parent)
    parent.send_signal(number)
    parent.wait()
    until((tmp_path / "end").read_text)
    child = int((tmp_path / "pid").read_text())
    until(lambda: not Path(f"/proc/{child}").exists())


@pytest.mark.parametrize("workers", [1, 2])
def test_finished_shards_are_not_done_again(workers: int, logs: Path, tmp_path: Path) -> None:
    settings, earlier = ScaleSettings(workers=workers), list[bool]()

    def spread(shards: Sequence[Any]) -> list[Any]:
        earlier.clear()
        return scale.map(
            "acts:double", shards, folder=str(tmp_path / "results"), settings=settings, state=tmp_path,
            on_result=lambda place, result, is_earlier: earlier.append(is_earlier),
        )  # fmt: skip

    sys.path.insert(0, str(tmp_path))
    sys.modules.pop("acts", None)
    try:
        first = spread([{"value": 1}, {"value": 2}])
        assert earlier == [False, False]
        (damaged,) = [path for path in (tmp_path / "results").glob("*.json") if '"value": 4' in path.read_text()]
        damaged.write_text("{")
        again = spread([{"value": 1}, {"value": 2}, {"value": 3}])
        assert (earlier, [each["value"] for each in again]) == ([True, False, False], [2, 4, 6])
        assert again[0] == first[0]
        (tmp_path / "acts.py").write_text(f"{FUNCTIONS}# other code\n")
        importlib.invalidate_caches()
        spread([{"value": 1}])
        assert earlier == [False]
    finally:
        sys.path.remove(str(tmp_path))


@pytest.mark.parametrize("content", ["[]", "{"])
def test_a_result_that_is_rejected_or_damaged_is_deleted_first(content: str, logs: Path, tmp_path: Path) -> None:
    """The engine prefect takes every result that is there for one of its workers'."""
    folder = tmp_path / "results"

    def spread() -> list[Any]:
        return scale.map(
            "acts:lists", [{"folder": str(folder)}], folder=str(folder), settings=ScaleSettings(), state=tmp_path,
            is_whole=lambda result: False,
        )  # fmt: skip

    sys.path.insert(0, str(tmp_path))
    sys.modules.pop("acts", None)
    try:
        assert spread() == [[]]
        (stored,) = folder.glob("*.json")
        stored.write_text(content)
        assert spread() == [[]]
    finally:
        sys.path.remove(str(tmp_path))


def test_a_worker_with_other_programs_is_refused() -> None:
    call = ShardCall("acts:double", {}, versions={**versions(), "torch": "1.0"})
    with pytest.raises(PlatformError, match=r"has torch .* instead of 1\.0.*Fix: install the same"):
        result_of(answer(call.data))
