"""A training that is killed at any point of its ending loses nothing: the same command writes the same outputs."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ratchet.training import CheckpointStore
from ratchet.workspace import Workspace
from tasks import finished
from tasks.dvc_store import hash_of


class Killed(BaseException):
    """The end of the process at this point."""


STEPS = ("os.replace", "os.link", "os.fsync", "os.chmod", "shutil.rmtree", "os.mkdir")


def killed_after(monkeypatch: pytest.MonkeyPatch, count: int) -> Callable[[], int]:
    """End the process before the change of the disk number `count`; return the number of changes so far."""
    done = 0

    def guarded(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal done
            done += 1
            if done >= count:
                raise Killed
            return function(*arguments, **named)

        return call

    for name in STEPS:
        module, _, function = name.partition(".")
        owner = {"os": os, "shutil": shutil}[module]
        monkeypatch.setattr(owner, function, guarded(getattr(owner, function)))
    return lambda: done


def end(workspace: Workspace) -> bytes:
    """Do what the stage train does at its beginning and at its end; the last checkpoint decides the model."""
    finished.bring_back(workspace)
    running = workspace.running / "key"
    if not any(running.glob("step-*.safetensors")):
        raise AssertionError("the training is lost: it would start at step 0")
    for target, content in ((workspace.model, b"model"), (workspace.checkpoints, b"kept")):
        with finished.files.draft_directory(target) as draft:
            (draft / "weights").write_bytes(content)
    finished.set_aside(workspace, running)
    return (workspace.model / "weights").read_bytes()


@pytest.mark.parametrize("repeated", [1, 2])
def test_kill_at_any_point_of_the_ending_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repeated: int
) -> None:
    """DVC removes the outputs before it runs the stage again."""
    for point in range(1, 60):
        workspace = Workspace(tmp_path / str(point))
        (workspace.running / "key").mkdir(parents=True)
        (workspace.running / "key" / "step-7.safetensors").write_bytes(b"state")
        was_killed = False
        for _ in range(repeated):
            with monkeypatch.context() as patched:
                killed_after(patched, point)
                try:
                    end(workspace)
                except Killed:
                    was_killed = True
            shutil.rmtree(workspace.model, ignore_errors=True)
            shutil.rmtree(workspace.checkpoints, ignore_errors=True)
        assert end(workspace) == b"model"
        if not was_killed:
            return
    raise AssertionError("the ending never came to its end")


def test_finished_training_has_no_draft_of_a_killed_one(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    code = workspace.running / "key" / "code" / "nets" / "net.py"
    program = """
import os, signal, sys
from pathlib import Path
from ratchet import files
os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
files.write_text(Path(sys.argv[1]), "code")
"""
    source = str(Path(finished.files.__file__).parents[1])
    command = [sys.executable, "-c", program, str(code)]
    killed = subprocess.run(command, env={**os.environ, "PYTHONPATH": source}, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert list(code.parent.glob(".draft-*"))
    (workspace.running / "key" / "step-7.safetensors").write_bytes(b"state")
    with CheckpointStore(workspace.running / "key"):  # as the training that continues has it
        pass
    end(workspace)
    assert list(tmp_path.rglob("step-7.safetensors"))
    assert not list(tmp_path.rglob(".draft-*"))


def test_recorded_training_is_removed(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    (workspace.running / "key").mkdir(parents=True)
    (workspace.running / "key" / "step-7.safetensors").write_bytes(b"state")
    end(workspace)
    finished.remove_recorded(workspace)
    assert [path.name for path in workspace.running.rglob("step-*")] == ["step-7.safetensors"]  # there is no dvc.lock
    lock = f"stages:\n  train:\n    outs:\n    - path: data/model\n      md5: {hash_of(workspace.model)}\n"
    (tmp_path / "dvc.lock").write_text(lock)
    finished.remove_recorded(workspace)
    assert list(workspace.running.rglob("step-*")) == []
