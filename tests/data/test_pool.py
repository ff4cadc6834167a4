"""Work shared among processes: in order, the same as by threads, and ended with whoever asked for it."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from ratchet.data.reading import pool, survey
from ratchet.errors import DataError, WorkspaceError

WAITING = """
import os, sys, time
from contextlib import nullcontext
from ratchet.data.reading import pool
for done in pool.in_order_apart(time.sleep, [0.01, 0.01] + [60] * 8, workers=2, within=nullcontext):
    print("begun", flush=True)
"""


def own_children(process: int) -> list[int]:
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], stdout=subprocess.PIPE, text=True, check=True).stdout
    return [int(pid) for pid, parent in (line.split() for line in listed.splitlines()) if int(parent) == process]


def end_of(processes: list[int]) -> bool:
    """Wait until none of them runs any more."""
    for _ in range(200):
        listed = subprocess.run(["ps", "-eo", "pid=,stat="], stdout=subprocess.PIPE, text=True, check=True).stdout
        living = {int(line.split()[0]) for line in listed.splitlines() if not line.split()[1].startswith("Z")}
        if not living & set(processes):
            return True
        time.sleep(0.1)
    return False


def begun() -> subprocess.Popen[str]:
    """A process that shares work among two others, which are at it."""
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


def test_results_come_in_the_order_of_the_work() -> None:
    numbers = [3, 100_000, 5, 50_000] * 10
    assert list(pool.in_order_apart(range, numbers, workers=3, within=nullcontext)) == list(map(range, numbers))


def test_processes_and_threads_pack_the_same_bytes(two_classes, monkeypatch) -> None:
    cat = two_classes.root / "pictures" / "cat"
    (cat / "cut.png").write_bytes((cat / "0000.png").read_bytes()[:200])
    (cat / "empty.png").write_bytes(b"")
    two_classes.ingest(workers=1, max_bad_fraction=0.1)
    alone = two_classes.bytes()
    assert two_classes.bad() == {"cat/cut.png": {"unreadable"}, "cat/empty.png": {"empty-file"}}
    monkeypatch.setattr(survey, "_APART", 1)
    monkeypatch.setattr(survey, "_CHUNK", 7)
    for workers in (2, 8):
        two_classes.ingest(workers=workers, max_bad_fraction=0.1)
        assert two_classes.bytes() == alone


def test_a_process_that_is_killed_ends_the_work_with_a_reason(two_classes) -> None:
    with pytest.raises(DataError, match=r"was killed, for want of memory perhaps: .* a smaller data\.workers"):
        list(pool.in_order_apart(os._exit, [9], workers=2, within=nullcontext))


def test_a_disk_that_takes_no_more_is_told_by_processes_too(two_classes, monkeypatch) -> None:
    resource = pytest.importorskip("resource", reason="limits as POSIX has them")
    two_classes.ingest()
    before = two_classes.bytes()
    monkeypatch.setattr(survey, "_APART", 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(WorkspaceError, match=re.escape(str(two_classes.packed))):
            two_classes.ingest(image_size=128, workers=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert two_classes.bytes() == before


@pytest.mark.skipif(sys.platform == "win32", reason="signals as POSIX has them")
def test_processes_end_with_a_parent_that_is_killed() -> None:
    process = begun()
    children = own_children(process.pid)
    assert len(children) >= 2
    process.kill()
    process.communicate()
    assert end_of(children)


@pytest.mark.skipif(sys.platform == "win32", reason="signals as POSIX has them")
def test_ctrl_c_is_one_interruption_and_not_one_of_each_process() -> None:
    process = begun()
    children = own_children(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    time.sleep(0.3)
    process.kill()  # in an interactive run the work at hand is short; here it lasts a minute
    _, said = process.communicate()
    assert said.count("Traceback") <= 1
    assert end_of(children)


def test_the_main_module_is_not_run_again(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "print('main')\nfrom contextlib import nullcontext\nfrom ratchet.data.reading import pool\n"
        "print(list(pool.in_order_apart(abs, [-1, -2, -3], workers=2, within=nullcontext)))\n"
    )
    said = subprocess.run([sys.executable, script], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert said.splitlines() == ["main", "[1, 2, 3]"]
