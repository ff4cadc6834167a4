"""What Prefect, DVC and MLflow add to the work: a flow with nothing to do, and one that trains a tiny model.

    python -m bench.flow [--rounds 5]

Everything runs against servers that `ratchet up` started in a fresh clone (what is committed; set-up done). Each round
runs, one after the other: the flow on unchanged data, and a bare Prefect flow of as many empty tasks and `dvc status`
on the same tree; then the flow with another share held out, digits for one epoch, and the same stages in one script
with none of the three tools (bench/bare_stages.py). CPU is of all processes that a command starts, and of the servers
meanwhile, less what they spend when nothing is asked of them.
"""

import os
import shutil
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.project import Clone, scratch
from bench.report import Row, alone, options, ratio, spread
from ratchet import files, settings
from ratchet.servers import client_environment
from ratchet.servers.ports import free_port
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
_TINY = {
    "training.epochs": 1, "training.doctor": "never",
    "gate.minimum_accuracy": 0.0, "gate.latency_factor": 0.0, "gate.size_factor": 0.0,  # the script has no champion
}  # fmt: skip
_MOST_TIMES, _MOST_SECONDS = 1.5, 6.0
_WAITING = 30.0  # seconds in which the servers are watched having nothing to do
_ITSELF = "the command"  # and what it starts; beside it, the servers


@dataclass(frozen=True)
class _Cost:
    wall: float  # seconds
    spent: dict[str, float]  # CPU seconds, by who spent them

    @property
    def cpu(self) -> float:
        return sum(self.spent.values())


class _Served:
    """A clone with its servers."""

    def __init__(self, folder: Path) -> None:
        self.clone = Clone(folder)
        self.workspace = Workspace(folder)
        ports = {f"platform.{name}_port": free_port("127.0.0.1") for name in ("prefect", "mlflow")}
        settings.override(self.workspace.params, {**_TINY, **ports})
        self.clone.python("-m", "commands", "up")
        api = f"http://127.0.0.1:{ports['platform.prefect_port']}/api"
        self.clone.environment |= client_environment(self.workspace, api)
        self.clone.python("-c", _FLOW)  # the first of all, which every server has something to set up for
        time.sleep(_WAITING)
        before = self._spent()
        time.sleep(_WAITING)
        self.waiting = {who: (spent - before[who]) / _WAITING for who, spent in self._spent().items()}

    def down(self) -> None:
        self.clone.python("-m", "commands", "down")

    def run(self, *arguments: str) -> _Cost:
        """What Python took with these arguments, and the servers for it."""
        before, began = self._spent(), time.monotonic()
        self.clone.python(*arguments)
        wall = time.monotonic() - began
        spent = self._spent()
        return _Cost(wall, {who: spent[who] - before[who] - self.waiting[who] * wall for who in spent})

    def _spent(self) -> dict[str, float]:
        """CPU seconds so far, of everything that was waited for and of each server."""
        times = os.times()
        spent = {_ITSELF: times.children_user + times.children_system}
        for part in files.read_json(self.workspace.state / "servers.json")["services"]:
            used = [process.cpu_times() for process in psutil.Process(part["pid"]).children(recursive=True)]
            spent[part["name"]] = sum(one.user + one.system + one.children_user + one.children_system for one in used)
        return spent


def measure(rounds: int) -> list[Row]:
    """The table's rows."""
    unchanged, empty, status, tiny, bare = [], [], [], [], []
    with scratch() as folder:
        served = _Served(folder / "clone")
        outputs = (served.workspace.packed, served.workspace.model)
        try:
            for number in range(rounds):
                unchanged.append(served.run("-c", _FLOW))
                empty.append(served.run("-c", _BARE))
                status.append(served.run("-m", "dvc", "status"))
                settings.override(served.workspace.params, {"data.test_fraction": 0.15 + 0.001 * (number + 1)})
                for made in outputs:  # both have to make all of it
                    shutil.rmtree(made)
                tiny.append(served.run("-c", _FLOW))
                for made in outputs:
                    shutil.move(made, folder)
                bare.append(served.run("bench/bare_stages.py", str(folder / f"run-{number}")))
                for made in outputs:
                    shutil.rmtree(made)
                    shutil.move(folder / made.name, made)
        finally:
            served.down()
    idle = [
        _Cost(one.wall + other.wall, {_ITSELF: one.cpu + other.cpu}) for one, other in zip(empty, status, strict=True)
    ]
    return _nothing_to_do(unchanged, idle) + _trained(tiny, bare)


def _nothing_to_do(flow: Sequence[_Cost], idle: Sequence[_Cost]) -> list[Row]:
    condition = f"nothing to do, median of {len(flow)} rounds"
    times = ratio([one.wall for one in flow], [one.wall for one in idle])
    return [
        Row("s: the flow", condition, spread([one.wall for one in flow], form=".1f")),
        Row("s: five empty tasks + dvc status", condition, spread([one.wall for one in idle], form=".1f")),
        Row("the flow / those", condition, f"{times:.2f}", f"<= {_MOST_TIMES}", times <= _MOST_TIMES),
        Row("the flow / those, CPU", condition, f"{ratio([o.cpu for o in flow], [o.cpu for o in idle]):.2f}"),
    ]


def _trained(flow: Sequence[_Cost], bare: Sequence[_Cost]) -> list[Row]:
    condition = f"digits, 1 epoch, median of {len(flow)} rounds"
    added = [one.cpu - other.cpu for one, other in zip(flow, bare, strict=True)]
    met = statistics.median(added) <= _MOST_SECONDS
    return [
        Row("CPU-s: the flow", condition, spread([one.cpu for one in flow], form=".1f")),
        *(
            Row(f"CPU-s: {who}", f"of the flow, {condition}", spread([one.spent[who] for one in flow], form=".1f"))
            for who in flow[0].spent
        ),
        Row("CPU-s: the stages in one script", condition, spread([one.cpu for one in bare], form=".1f")),
        Row("CPU-s added", condition, spread(added, form=".1f"), f"<= {_MOST_SECONDS:.0f}", met),
    ]


if __name__ == "__main__":
    alone(options(__doc__), lambda asked: measure(asked.rounds))
