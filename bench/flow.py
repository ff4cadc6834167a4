"""What Prefect, DVC and MLflow add to the work: a flow with nothing to do, and one that trains a tiny model.

    python -m bench.flow [--rounds 5]

Everything runs against servers that `ratchet up` started in a fresh clone (what is committed; set-up done). Each round
runs, one after the other: the flow on unchanged data, and a bare Prefect flow of as many empty tasks and `dvc status`
on the same tree; then the flow with another share held out, digits for one epoch, and the same stages in one script
with none of the three tools (bench/bare_stages.py). CPU is of all processes that a command starts, and of the servers
meanwhile.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.project import ROOT, scratch
from bench.report import Row, alone, options, ratio, spread
from ratchet import files, settings
from ratchet.platform import client_environment
from ratchet.platform.processes import free_port
from ratchet.workspace import Workspace

__all__ = ["measure"]

_BARE = """
from prefect import flow, task
from prefect.cache_policies import NO_CACHE


@task(cache_policy=NO_CACHE, persist_result=False)
def nothing(): ...


@flow(persist_result=False)
def bare():
    for _ in range(5):
        nothing()


bare()
"""
_FLOW = """
from flows.train import train_flow

assert train_flow(return_state=True).is_completed()
"""
_TINY = {"training.epochs": 1, "training.doctor": "never", "gate.minimum_accuracy": 0.0}
_MOST_TIMES, _MOST_SECONDS = 1.5, 6.0


@dataclass(frozen=True)
class _Cost:
    wall: float  # seconds
    cpu: float


class _Served:
    """A clone with its servers."""

    def __init__(self, folder: Path) -> None:
        self.clone = folder / "clone"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(self.clone)], check=True)
        ports = {"platform.prefect_port": free_port("127.0.0.1"), "platform.mlflow_port": free_port("127.0.0.1")}
        self.workspace = Workspace(self.clone)
        settings.override(self.workspace.params, {**_TINY, **ports})
        self.environment = {**os.environ, "PYTHONPATH": f"{self.clone / 'src'}{os.pathsep}{self.clone}"}
        self.run(sys.executable, "-m", "ratchet.cli", "up")
        self.environment |= client_environment(self.workspace, f"http://127.0.0.1:{ports['platform.prefect_port']}/api")

    def down(self) -> None:
        self.run(sys.executable, "-m", "ratchet.cli", "down")

    def run(self, *command: str) -> _Cost:
        """What a command took, and the servers for it."""
        before, began = self._spent(), time.monotonic()
        done = subprocess.run(
            command, cwd=self.clone, env=self.environment, check=False, capture_output=True, text=True
        )
        wall = time.monotonic() - began
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return _Cost(wall, self._spent() - before)

    def _spent(self) -> float:
        """CPU seconds of everything that was waited for, and of the servers so far."""
        times = os.times()
        spent = times.children_user + times.children_system
        record = self.workspace.state / "servers.json"
        for part in files.read_json(record)["parts"] if record.exists() else ():
            for process in psutil.Process(part["pid"]).children(recursive=True):
                used = process.cpu_times()
                spent += used.user + used.system + used.children_user + used.children_system
        return spent


def measure(rounds: int) -> list[Row]:
    """The table's rows."""
    unchanged, empty, status, tiny, bare = [], [], [], [], []
    python = sys.executable
    with scratch() as folder:
        served = _Served(folder)
        try:
            served.run(python, "-c", _FLOW)
            for number in range(rounds):
                unchanged.append(served.run(python, "-c", _FLOW))
                empty.append(served.run(python, "-c", _BARE))
                status.append(served.run(python, "-m", "dvc", "status"))
                settings.override(served.workspace.params, {"data.test_fraction": 0.15 + 0.001 * (number + 1)})
                for made in (served.workspace.packed, served.workspace.model):  # both have to make all of it
                    shutil.rmtree(made)
                tiny.append(served.run(python, "-c", _FLOW))
                for made in (served.workspace.packed, served.workspace.model):
                    shutil.move(made, folder)
                bare.append(served.run(python, str(ROOT / "bench" / "bare_stages.py"), str(folder / f"run-{number}")))
                for made in (served.workspace.packed, served.workspace.model):
                    shutil.rmtree(made)
                    shutil.move(folder / made.name, made)
        finally:
            served.down()
    return _rows(
        rounds,
        unchanged,
        [_Cost(a.wall + b.wall, a.cpu + b.cpu) for a, b in zip(empty, status, strict=True)],
        tiny,
        bare,
    )


def _rows(
    rounds: int, unchanged: Sequence[_Cost], idle: Sequence[_Cost], tiny: Sequence[_Cost], bare: Sequence[_Cost]
) -> list[Row]:
    condition = f"nothing to do, median of {rounds} rounds"
    times = ratio([one.wall for one in unchanged], [one.wall for one in idle])
    trained = f"digits, 1 epoch, median of {rounds} rounds"
    added = [one.cpu - other.cpu for one, other in zip(tiny, bare, strict=True)]
    seconds = sorted(added)[len(added) // 2]
    return [
        Row("s: the flow", condition, spread([one.wall for one in unchanged], form=".1f")),
        Row("s: five empty tasks + dvc status", condition, spread([one.wall for one in idle], form=".1f")),
        Row("the flow / those", condition, f"{times:.2f}", f"<= {_MOST_TIMES}", times <= _MOST_TIMES),
        Row("the flow / those, CPU", condition, f"{ratio([o.cpu for o in unchanged], [o.cpu for o in idle]):.2f}"),
        Row("CPU-s: the flow", trained, spread([one.cpu for one in tiny], form=".1f")),
        Row("CPU-s: the stages in one script", trained, spread([one.cpu for one in bare], form=".1f")),
        Row("CPU-s added", trained, spread(added, form=".1f"), f"<= {_MOST_SECONDS:.0f}", seconds <= _MOST_SECONDS),
    ]


if __name__ == "__main__":
    alone(options(__doc__), lambda asked: measure(asked.rounds))
