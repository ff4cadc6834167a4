"""A training killed some twenty times, wherever a kill may strike: the real stage, real data, a real MLflow database.

The truth is an undisturbed run of the same command in a project of its own. A kill is SIGKILL, at a moment of chance
or right before a change of the file system; the files on disk show where it was killed.
"""

import contextlib
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ratchet import settings

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="forks a process that has imported PyTorch"),
]

EPOCHS, EPOCH = 20, 20  # steps to an epoch: the digits' training rows in batches of 64
SETTINGS = {
    "training.epochs": EPOCHS,
    "training.batch_size": 64,
    "training.accumulation": 2,
    "training.ema_decay": 0.9,
    "training.schedule": "plateau",
    "training.plateau_patience": 2,
    "training.rate_factor": 0.5,
    "training.precision": "bf16",
    "training.flip": "random",
    "training.checkpoint_steps": 3,
    "training.keep_last": 3,
    "training.keep_best": 2,
    "training.log_every": 1,
}
PLACES = (
    "before the first checkpoint",
    "in the making of MLflow's database",
    "in a checkpoint's write",
    "in a sync",
    "in the handing over",
    "elsewhere",
)
Condition = Callable[[], bool]


class Fire:
    """A project, the zygote that starts its training, and a tally of where the kills have struck."""

    def __init__(self, project: Any, zygote: "subprocess.Popen[str]") -> None:
        self.project, self.zygote = project, zygote
        self.data, self.mlruns = project.root / "data", project.root / "mlruns"
        self.struck: Counter[str] = Counter()
        self.before = self.traces()  # when the last attempt began
        self.started = time.monotonic()

    def train(self, when: Condition = lambda: False, *, near: str = "", after: int = 0) -> int:
        """Start the training and kill it when the condition holds, or let it kill itself (zygote.py); the exit code."""
        self.before = self.traces()
        assert self.zygote.stdin
        assert self.zygote.stdout
        self.zygote.stdin.write(json.dumps({"command": ["tasks.train"], "near": near, "after": after}) + "\n")
        self.zygote.stdin.flush()
        process = int(self.zygote.stdout.readline())
        while not select.select([self.zygote.stdout], [], [], 0.0005)[0]:
            if when():
                os.kill(process, signal.SIGKILL)
                break
        code = int(self.zygote.stdout.readline())
        if code == -signal.SIGKILL:
            place = self.place()
            self.struck[place] += 1
            print(f"{time.monotonic() - self.started:.1f} s, step {self.step()}: {place}", flush=True)
        return code

    def place(self) -> str:
        """Return the place of the last kill, by the files it has left behind."""
        if self.is_handing_over():
            return "in the handing over"
        left = {path for path, _ in self.traces() - self.before}
        if not (self.mlruns / "mlflow.db").exists() and left & {self.mlruns / ".draft-mlflow.db"}:
            return "in the making of MLflow's database"
        if not self.step():
            return "before the first checkpoint"
        if any(path.is_relative_to(self.data / "running") for path in left):
            return "in a checkpoint's write"
        return "in a sync" if left else "elsewhere"

    def traces(self) -> set[tuple[Path, int]]:
        """Return the files that exist only during a write: drafts, and SQLite's transaction journal."""
        result = [*self.data.glob("running/*/.draft-*"), *self.mlruns.glob("journal/*/.draft-*")]
        result += [self.mlruns / ".draft-mlflow.db", self.mlruns / "mlflow.db-journal"]
        traces = set()
        for path in result:
            with contextlib.suppress(FileNotFoundError):
                traces.add((path, path.stat().st_mtime_ns))
        return traces

    def step(self) -> int:
        """The step of the newest checkpoint, 0 before the first."""
        names = [path.stem for path in self.data.glob("running/*/step-*.safetensors")]
        return max((int(name.removeprefix("step-")) for name in names), default=0)

    def running(self) -> Path:
        """The folder of the checkpoints."""
        return next(self.data.glob("running/[!.]*"))

    def is_handing_over(self) -> bool:
        return any(any(self.data.glob(name)) for name in (".draft-*", "model", "checkpoints"))

    def is_making_tables(self) -> bool:
        return (self.mlruns / ".draft-mlflow.db").exists()

    def is_sending(self) -> bool:
        """Whether SQLite is in a transaction of this attempt's."""
        return any(path.name == "mlflow.db-journal" for path, _ in self.traces() - self.before)


def later(seconds: float, condition: Condition = lambda: True) -> Condition:
    """So long after `condition` holds for the first time."""
    since: list[float] = []

    def is_due() -> bool:
        if not since and condition():
            since.append(time.monotonic())
        return bool(since) and time.monotonic() - since[0] >= seconds

    return is_due


@contextmanager
def on_fire(project: Any, log: Path) -> Iterator[Fire]:
    """A project whose training is started by a zygote, which does not outlive the block."""
    command = [sys.executable, str(Path(__file__).with_name("zygote.py"))]
    # A cache without MLflow's empty database: its tables are made here, and not copied.
    environment = project.environment | {"OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(project.home / "cache")}
    with (
        log.open("a") as errors,
        subprocess.Popen(
            command, cwd=project.root, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
        ) as zygote,
    ):  # fmt: skip
        try:
            yield Fire(project, zygote)
        finally:
            zygote.kill()


def test_a_training_killed_anywhere_ends_the_same(new_project, use_small_net, tmp_path, assert_same_training) -> None:
    undisturbed, killed = new_project("undisturbed"), new_project("killed")
    log, chance = tmp_path / "log", random.Random(100)
    for project in (undisturbed, killed):
        use_small_net(project)
        settings.override(project.workspace.params, SETTINGS)
    undisturbed.good(*undisturbed.stage("ingest"))
    shutil.copytree(undisturbed.workspace.packed, killed.workspace.packed)
    undisturbed.good(*undisturbed.stage("train"), OMP_NUM_THREADS="1")
    with on_fire(killed, log) as fire:
        # Before some of the first changes of the disk; then while MLflow's tables are made, which takes a while.
        for after in range(1, 16, 5):
            assert fire.train(near=str(killed.root), after=after) == -signal.SIGKILL, log.read_text()
        for _ in range(2):
            delay = later(chance.uniform(0.0, 0.5), fire.is_making_tables)
            assert fire.train(delay) == -signal.SIGKILL, log.read_text()
        assert fire.train((fire.mlruns / "mlflow.db").exists) == -signal.SIGKILL, log.read_text()

        # On the way: at any moment, in a checkpoint's write, in a sync.
        kinds = ["any", "write", "sync", "sent"] * 3
        chance.shuffle(kinds)
        while kinds or not fire.struck["in a sync"]:
            kind = kinds.pop() if kinds else "sync"
            ahead = fire.step() + chance.randint(0, 1) * 3
            moment = later(chance.uniform(0.0, 0.05), lambda ahead=ahead: fire.step() >= ahead)
            if kind == "any":
                code = fire.train(moment)
            elif kind == "write":
                code = fire.train(near=f"{fire.running()}/.draft-", after=chance.randint(2, 4))
            elif kind == "sync":
                enough = fire.step() + 9  # a transaction is short: it may be missed
                code = fire.train(lambda enough=enough: fire.is_sending() or fire.step() >= enough)
            else:  # MLflow has it, and that is about to be noted; on a busy machine only after many steps
                enough, near = fire.step() + 30, f"/journal/{fire.running().name}/.draft-"
                code = fire.train(lambda enough=enough: fire.step() >= enough, near=near, after=chance.randint(1, 4))
            assert code == -signal.SIGKILL, log.read_text()
        assert fire.step() < EPOCHS * EPOCH

        # At the end: further and further into the handing over, until all is handed over.
        after = 1
        while any(killed.workspace.running.glob("[!.]*")):
            code = fire.train(near=str(killed.root / "data" / ".draft-model"), after=after)
            assert code == -signal.SIGKILL or (code == 0 and after > 1), log.read_text()  # 0: past the last change
            assert after == 1 or fire.is_handing_over()
            after += 12
        print(f"{fire.struck.total()} kills: {dict(fire.struck)}, {time.monotonic() - fire.started:.0f} s")
    for place in PLACES:
        assert fire.struck[place], fire.struck
    assert_same_training(killed, undisturbed, steps=EPOCHS * EPOCH)
    assert "continues at step" in log.read_text()
    assert not [path for name in ("data", "mlruns") for path in killed.root.glob(f"{name}/**/.draft-*")]
