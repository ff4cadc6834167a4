"""Cost of Prefect, DVC and MLflow: a flow without work, and one that trains a tiny model.

    python -m bench.flow [--rounds 5]

Everything uses servers that `ratchet up` started in a fresh clone (last commit; set-up done). Each round runs, one
after the other: the flow on unchanged data; a bare Prefect flow with as many empty tasks; `dvc status` on the same
tree; the flow with another share held out, digits for one epoch; and the same stages in one script without the three
tools (bench/bare_stages.py). CPU time is that of all processes that a command starts and of the servers meanwhile,
without the time that idle servers use.
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
    "gate.minimum": 0.0, "gate.latency_factor": 0.0, "gate.size_factor": 0.0,  # the script has no champion
}  # fmt: skip
_MOST_TIMES, _MOST_SECONDS = 1.5, 6.0
_WAITING = 30.0  # seconds in which the idle servers are measured
_ITSELF = "the command"  # and the processes that it starts, without the servers


@dataclass(frozen=True)
class _Cost:
    wall: float  # seconds
    spent: dict[str, float]  # CPU seconds, by process

    @property
    def cpu(self) -> float:
        return sum(self.spent.values())


class _Served:
    """Clone with its running servers."""

    def __init__(self, folder: Path) -> None:
        self.clone = Clone(folder)
        self.workspace = Workspace(folder)
        ports = {f"platform.{name}_port": free_port("127.0.0.1") for name in ("prefect", "mlflow")}
        settings.override(self.workspace.params, {**_TINY, **ports, "serving.enabled": False})
        self.clone.python("-m", "commands", "up")
        api = f"http://127.0.0.1:{ports['platform.prefect_port']}/api"
        self.clone.environment |= client_environment(self.workspace, api)
        self.clone.python("-c", _FLOW)  # the first flow, for which each server does set-up work
        time.sleep(_WAITING)
        before = self._spent()
        time.sleep(_WAITING)
        self.waiting = {who: (spent - before[who]) / _WAITING for who, spent in self._spent().items()}

    def down(self) -> None:
        self.clone.python("-m", "commands", "down")

    def run(self, *arguments: str) -> _Cost:
        """Run Python with these arguments. Return the cost, with that of the servers."""
        before, began = self._spent(), time.monotonic()
        self.clone.python(*arguments)
        wall = time.monotonic() - began
        spent = self._spent()
        return _Cost(wall, {who: spent[who] - before[who] - self.waiting[who] * wall for who in spent})

    def _spent(self) -> dict[str, float]:
        """Return the CPU seconds so far, of all finished child processes and of each server."""
        times = os.times()
        spent = {_ITSELF: times.children_user + times.children_system}
        for part in files.read_json(self.workspace.state / "servers.json")["services"]:
            used = [process.cpu_times() for process in psutil.Process(part["pid"]).children(recursive=True)]
            spent[part["name"]] = sum(t.user + t.system + t.children_user + t.children_system for t in used)
        return spent


def measure(rounds: int) -> list[Row]:
    """Return the rows of the table."""
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
                for output in outputs:  # both must produce all of it
                    shutil.rmtree(output)
                tiny.append(served.run("-c", _FLOW))
                for output in outputs:
                    shutil.move(output, folder)
                bare.append(served.run("bench/bare_stages.py", str(folder / f"run-{number}")))
                for output in outputs:
                    shutil.rmtree(output)
                    shutil.move(folder / output.name, output)
        finally:
            served.down()
    idle = [
        _Cost(first.wall + second.wall, {_ITSELF: first.cpu + second.cpu})
        for first, second in zip(empty, status, strict=True)
    ]
    return _nothing_to_do(unchanged, idle) + _trained(tiny, bare)


def _nothing_to_do(flow: Sequence[_Cost], idle: Sequence[_Cost]) -> list[Row]:
    condition = f"unchanged data, median of {len(flow)} rounds"
    times = ratio([cost.wall for cost in flow], [cost.wall for cost in idle])
    return [
        Row("s: the flow", condition, spread([cost.wall for cost in flow], form=".1f")),
        Row("s: five empty tasks + dvc status", condition, spread([cost.wall for cost in idle], form=".1f")),
        Row("the flow / those", condition, f"{times:.2f}", f"<= {_MOST_TIMES}", times <= _MOST_TIMES),
        Row("the flow / those, CPU", condition, f"{ratio([c.cpu for c in flow], [c.cpu for c in idle]):.2f}"),
    ]


def _trained(flow: Sequence[_Cost], bare: Sequence[_Cost]) -> list[Row]:
    condition = f"digits, 1 epoch, median of {len(flow)} rounds"
    added = [ours.cpu - theirs.cpu for ours, theirs in zip(flow, bare, strict=True)]
    met = statistics.median(added) <= _MOST_SECONDS
    return [
        Row("CPU-s: the flow", condition, spread([cost.cpu for cost in flow], form=".1f")),
        *(
            Row(f"CPU-s: {who}", f"of the flow, {condition}", spread([cost.spent[who] for cost in flow], form=".1f"))
            for who in flow[0].spent
        ),
        Row("CPU-s: the stages in one script", condition, spread([cost.cpu for cost in bare], form=".1f")),
        Row("CPU-s added", condition, spread(added, form=".1f"), f"<= {_MOST_SECONDS:.0f}", met),
    ]


if __name__ == "__main__":
    alone(options(__doc__), lambda arguments: measure(arguments.rounds))
