"""Training in a child process that can be killed: `python -m commands.resume_trial FOLDER`."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ratchet import settings
from ratchet.errors import RatchetError, TrainingError
from ratchet.workspace import ROOT_VARIABLE, Workspace
from tasks.scratch_project import Scratch

__all__ = ["Kill", "Trial"]

_POLL_SECONDS = 0.005
_LOG_CHARACTERS = 2000  # shown of a failed training's log


@dataclass(frozen=True)
class Kill:
    """One SIGKILL: the last step that was logged before it, and the newest checkpoint on disk (0: none)."""

    step: int
    checkpoint: int


@dataclass
class Trial:
    """One training, in child processes."""

    workspace: Scratch
    progress: Callable[[int], None]  # called every few milliseconds with the number of finished steps
    kills: list[Kill] = field(default_factory=list)

    @classmethod
    def make(
        cls, workspace: Workspace, folder: Path, changes: Mapping[str, object], progress: Callable[[int], None]
    ) -> "Trial":
        """Prepare a training with the workspace's settings and `changes` (by dotted key), without a budget.

        It logs to an MLflow store in `folder`.
        """
        folder.mkdir()
        scratch = Scratch(workspace.root, folder)
        scratch.packed.symlink_to(workspace.packed)
        shutil.copyfile(workspace.params, scratch.params)
        settings.override(scratch.params, {**changes, **scratch.own})
        return cls(scratch, progress)

    def finish(self) -> None:
        """Train, or resume, to the end.

        Raises:
            TrainingError: it failed; the message has the end of its log.
        """
        with self._running() as process:
            self._wait(process, math.inf)
        self._refuse_if_failed(process.returncode)

    def kill_at(self, step: int, *, delay: float) -> bool:
        """Start, wait until `step` is logged and `delay` seconds more, then kill. Return False if it ended before.

        Raises:
            TrainingError: it failed; the message has the end of its log.
        """
        with self._running() as process:
            self._wait(process, step)
            time.sleep(delay)
        if process.returncode != -signal.SIGKILL:
            self._refuse_if_failed(process.returncode)
            return False
        checkpoints = self.workspace.running.glob("[!.]*/step-*.safetensors")
        newest = max((int(path.stem.removeprefix("step-")) for path in checkpoints), default=0)
        self.kills.append(Kill(self.steps, newest))
        return True

    @property
    def tags(self) -> dict[str, str]:
        """Tags of the run."""
        return {name: value for content in self.entries("tags") for name, value in content["values"].items()}

    def entries(self, kind: str) -> list[dict[str, Any]]:
        """Return the contents of all journal entries of one kind, in order."""
        lines = [json.loads(line) for line in self._journal()]
        return [line["content"] for line in lines if line["kind"] == kind]

    def _journal(self) -> list[bytes]:
        """Return the journal's complete lines; the training may be writing the last one."""
        written = b"".join(path.read_bytes() for path in self.workspace.mlruns.glob("journal/*/events.jsonl"))
        return [line for line in written.splitlines(keepends=True) if line.endswith(b"\n")]

    @property
    def steps(self) -> int:
        """Last optimizer step that was logged."""
        last = next((line for line in reversed(self._journal()) if b'"step/loss"' in line), None)
        return int(json.loads(last)["content"]["step"]) if last else 0

    def _wait(self, process: "subprocess.Popen[bytes]", step: float) -> None:
        """Return when `step` is logged, or the process has ended."""
        while process.poll() is None and (done := self.steps) < step:
            self.progress(done)
            time.sleep(_POLL_SECONDS)

    @contextmanager
    def _running(self) -> Iterator["subprocess.Popen[bytes]"]:
        """Start the training as a child process, and kill it if it has not ended inside the block."""
        with (self.workspace.folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "commands.resume_trial", str(self.workspace.folder)],
                cwd=self.workspace.root,
                env={**os.environ, ROOT_VARIABLE: str(self.workspace.root)},
                stdout=log,
                stderr=log,
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def _refuse_if_failed(self, code: int) -> None:
        if code:
            log = (self.workspace.folder / "log").read_text(errors="replace").strip()
            raise TrainingError(f"the verified training failed with exit code {code}. Log: {log[-_LOG_CHARACTERS:]}")


def _train(folder: Path) -> None:
    from tasks.progress import Terminal
    from tasks.train import train

    workspace = Scratch(Workspace.find().root, folder)
    with Terminal("train", unit="steps") as watch:
        train(settings.load(workspace.params), workspace, watch=watch)


if __name__ == "__main__":
    try:
        _train(Path(sys.argv[1]))
    except RatchetError as error:
        sys.exit(str(error))
