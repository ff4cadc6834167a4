"""Parallel work by processes: results are in order and the same as by threads, and workers end with their parent."""

import os
import re
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from waiting import let_run, until

from ratchet.data.reading import pool, storage, survey
from ratchet.errors import DataError, WorkspaceError

WAITING = """
import os, sys, time
from contextlib import nullcontext
from ratchet.data.reading import pool
for done in pool.in_order_by_processes(time.sleep, [0.01, 0.01] + [60] * 8, workers=2, within=nullcontext):
    print("started", flush=True)
"""


def own_children(process: int) -> list[int]:
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], stdout=subprocess.PIPE, text=True, check=True).stdout
    return [int(pid) for pid, parent in (line.split() for line in listed.splitlines()) if int(parent) == process]


def have_ended(processes: list[int]) -> bool:
    """Return whether none of the processes runs."""
    listed = subprocess.run(["ps", "-eo", "pid=,stat="], stdout=subprocess.PIPE, text=True, check=True).stdout
    living = {int(line.split()[0]) for line in listed.splitlines() if not line.split()[1].startswith("Z")}
    return not living & set(processes)


def started() -> subprocess.Popen[str]:
    """Start a process with two busy worker processes."""
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    return process


def test_results_are_in_the_order_of_the_work() -> None:
    numbers = [3, 100_000, 5, 50_000] * 10
    assert list(pool.in_order_by_processes(range, numbers, workers=3, within=nullcontext)) == list(map(range, numbers))


def test_processes_and_threads_pack_the_same_bytes(two_classes, monkeypatch) -> None:
    cat = two_classes.root / "images" / "cat"
    (cat / "cut.png").write_bytes((cat / "0000.png").read_bytes()[:200])
    (cat / "empty.png").write_bytes(b"")
    two_classes.ingest(workers=1, max_bad_fraction=0.1)
    alone = two_classes.bytes()
    assert two_classes.bad() == {"cat/cut.png": {"unreadable"}, "cat/empty.png": {"empty-file"}}
    monkeypatch.setattr(survey, "_MIN_FOR_PROCESSES", 1)
    monkeypatch.setattr(survey, "_CHUNK", 7)
    for workers in (2, 8):
        two_classes.ingest(workers=workers, max_bad_fraction=0.1)
        assert two_classes.bytes() == alone


@pytest.mark.parametrize(("limits", "most"), [({}, 10), ({"_CHUNK_BYTES": 6_000}, 4), ({"_REMOTE_CHUNK": 2}, 2)])
def test_every_worker_gets_some_of_few_or_large_files(two_classes, monkeypatch, limits: dict, most: int) -> None:
    """The sizes are of 80 files of about 1,500 bytes, read by two workers."""
    for name, limit in limits.items():
        monkeypatch.setattr(survey, name, limit)
    monkeypatch.setattr(storage.LocalFolder, "is_local", "_REMOTE_CHUNK" not in limits)
    sizes = []
    read = survey.ReadTask.__call__
    monkeypatch.setattr(
        survey.ReadTask, "__call__", lambda task, chunk: sizes.append(len(chunk[1])) or read(task, chunk)
    )
    two_classes.ingest(workers=2, image_size=8)
    assert sum(sizes) == 80
    assert 1 < max(sizes) <= most


def test_a_killed_worker_process_gives_a_clear_error(two_classes) -> None:
    with pytest.raises(DataError, match=r"was killed, possibly because memory ran out\. .* a smaller data\.workers"):
        list(pool.in_order_by_processes(os._exit, [9], workers=2, within=nullcontext))


def test_a_full_disk_is_reported_by_processes_too(two_classes, monkeypatch) -> None:
    resource = pytest.importorskip("resource", reason="limits as POSIX has them")
    two_classes.ingest()
    before = two_classes.bytes()
    monkeypatch.setattr(survey, "_MIN_FOR_PROCESSES", 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(WorkspaceError, match=re.escape(str(two_classes.packed))):
            two_classes.ingest(image_size=128, workers=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert two_classes.bytes() == before


@pytest.mark.skipif(sys.platform == "win32", reason="signals as POSIX has them")
def test_processes_end_when_their_parent_is_killed() -> None:
    process = started()
    children = own_children(process.pid)
    assert len(children) >= 2
    process.kill()
    process.communicate()
    until(lambda: have_ended(children))


@pytest.mark.skipif(sys.platform == "win32", reason="signals as POSIX has them")
def test_ctrl_c_gives_at_most_one_traceback() -> None:
    process = started()
    children = own_children(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    let_run(process, 0.3)
    process.kill()  # in real use a chunk of work is short; here it lasts a minute
    _, errors = process.communicate()
    assert errors.count("Traceback") <= 1
    until(lambda: have_ended(children))


def test_the_main_module_is_not_run_again(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "print('main')\nfrom contextlib import nullcontext\nfrom ratchet.data.reading import pool\n"
        "print(list(pool.in_order_by_processes(abs, [-1, -2, -3], workers=2, within=nullcontext)))\n"
    )
    output = subprocess.run([sys.executable, script], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert output.splitlines() == ["main", "[1, 2, 3]"]
