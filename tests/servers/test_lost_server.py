"""`ratchet train` whose Prefect server ends together with it, as when a scheduler signals all processes of a job."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from waiting import until

pytestmark = pytest.mark.system

ENDLESS = {"training.epochs": 100_000, "training.checkpoint_steps": 20}


@pytest.fixture(scope="module")
def project(new_project: Callable[[str], Any]) -> Any:
    project = new_project("lost")
    project.good("ratchet", "set", *(f"{name}={value}" for name, value in ENDLESS.items()))
    return project


@contextmanager
def training(project: Any, log: Path) -> Iterator[Any]:
    """Run the command until its training has written a checkpoint."""
    running = project.root / "data" / "running"
    process = project.start("ratchet", "train", log=log)
    try:
        until(lambda: list(running.glob("*/step-*.safetensors")), process=process, log=log)
        yield process
    finally:
        process.kill()
        process.wait()


def test_signal_to_all_processes_ends_the_run_with_a_checkpoint(project: Any, tmp_path: Path) -> None:
    with training(project, tmp_path / "log") as process:
        for each in (psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)):
            each.send_signal(signal.SIGTERM)
        assert process.wait() == 1
    output = (tmp_path / "log").read_text()
    assert "Traceback" not in output
    assert "continues at step" not in output  # as when Prefect tried the task again
    assert "failed to process" not in output  # as when Prefect had tried for seconds to send an event
    assert "Error logging to API" not in output
    assert "ratchet: stopped at step " in output.splitlines()[-1]
    assert output.endswith("the same command continues there\n")
