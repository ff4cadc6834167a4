"""`ratchet logs`, on files written by these tests."""

import os
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from ratchet.errors import PlatformError
from ratchet.servers import LogLine, read_logs
from ratchet.workspace import Workspace

# As the program begins in a shell: a test may run where SIGINT is ignored, which would be inherited.
PROGRAM = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from commands.cli import main; main()"
)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    (tmp_path / "params.yaml").touch()
    return Workspace(tmp_path.resolve())


def write(workspace: Workspace, part: str, text: str, *, written: str | None = None) -> Path:
    path = workspace.state / "logs" / f"{part}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(text)
    if written:
        moment = datetime.fromisoformat(written).timestamp()
        os.utime(path, (moment, moment))
    return path


def end(workspace: Workspace, part: str | None = None, *, lines: int = 100) -> list[tuple[str, str]]:
    return [(line.service, line.text) for line in read_logs(workspace, part, lines=lines, follow=False)]


def test_unknown_service_is_refused_with_the_known_names(workspace: Workspace) -> None:
    with pytest.raises(PlatformError, match=r"no service is named 'redis'\. Allowed: prefect, mlflow, worker"):
        read_logs(workspace, "redis", lines=1, follow=False)


def test_missing_log_is_reported(workspace: Workspace) -> None:
    with pytest.raises(PlatformError, match=r"no server was started yet in .* Fix: `ratchet up`"):
        read_logs(workspace, lines=1, follow=True)
    write(workspace, "prefect", "here\n")
    with pytest.raises(PlatformError, match="worker: it was not started yet in "):
        read_logs(workspace, "worker", lines=1, follow=False)


def test_lines_of_several_logs_are_ordered_across_midnight(workspace: Workspace) -> None:
    write(
        workspace, "prefect", "23:59:58.500 | INFO | a\nno time\n00:00:03 | INFO | d\n", written="2026-01-02 00:00:04"
    )
    write(workspace, "mlflow", "2026/01/01 23:59:59 INFO b\n", written="2026-01-01 23:59:59")
    write(workspace, "worker", "00:00:01.000 | ERROR | c\n  a traceback\n", written="2026-01-02 00:00:01")
    assert end(workspace) == [
        ("prefect", "23:59:58.500 | INFO | a"),
        ("prefect", "no time"),
        ("mlflow", "2026/01/01 23:59:59 INFO b"),
        ("worker", "00:00:01.000 | ERROR | c"),
        ("worker", "  a traceback"),
        ("prefect", "00:00:03 | INFO | d"),
    ]


def test_last_lines_include_the_rotated_log(workspace: Workspace) -> None:
    log = write(workspace, "mlflow", "1\n2\n3\n")
    log.rename(log.with_suffix(".old.log"))
    log.write_bytes(b"4\n\xff is not UTF-8\n")
    assert [text for _, text in end(workspace, "mlflow", lines=3)] == ["3", "4", "\ufffd is not UTF-8"]
    assert end(workspace, "mlflow", lines=0) == []


def test_following_continues_after_rotation_truncation_and_late_start(workspace: Workspace) -> None:
    log = write(workspace, "worker", "old\n")
    lines = read_logs(workspace, lines=1, follow=True)
    assert next(lines) == LogLine("worker", "old")
    write(workspace, "worker", "half ")
    write(workspace, "worker", "a line\n")
    assert next(lines).text == "half a line"
    write(workspace, "worker", "last of the old\n")
    log.rename(log.with_suffix(".old.log"))
    write(workspace, "worker", "first of the new\n")
    assert [next(lines).text for _ in range(2)] == ["last of the old", "first of the new"]
    log.write_text("")
    write(workspace, "prefect", "later\n")
    assert next(lines) == LogLine("prefect", "later")
    write(workspace, "worker", "after\n")
    assert next(lines) == LogLine("worker", "after")
    lines.close()


def test_ctrl_c_ends_following_without_output(workspace: Workspace) -> None:
    write(workspace, "worker", "here\n")
    command = [sys.executable, "-c", PROGRAM, "logs", "--follow"]
    with subprocess.Popen(
        command, cwd=workspace.root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "worker  | here\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == ""
    assert process.returncode == 130
