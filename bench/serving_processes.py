"""The model server in one process and in two: answers per second to 32 clients, and CPU time of an answer.

    python -m bench.serving_processes [--rounds N]

The ConvNet for images of 32 pixels, with every answer compared. The client has the first core. One process has the
last core, two have the last two. The claim needs three cores: with two, the client takes a part of the second
process's core, and only the CPU time of an answer says something.
"""

import time
from contextlib import ExitStack
from typing import Any

import numpy as np

from bench.project import Project, scratch
from bench.report import Row, alone, options, ratio, spread
from bench.serving_models import CORES, Model
from bench.serving_servers import Server, own_server
from ratchet import settings
from ratchet.servers.http import read_json
from ratchet.workspace import Workspace

__all__ = ["measure"]

_CLIENTS, _SECONDS = 32, 4.0
_LEAST, _MOST_CPU = 1.7, 1.15  # times the answers per second, and times the CPU time of an answer


def measure(rounds: int, *, quick: bool) -> list[Row]:
    """Measure both servers in turn, and return the rows of the table."""
    seconds, rounds = (0.3, 1) if quick else (_SECONDS, rounds)
    with scratch() as folder, ExitStack() as stack:
        model = Model("convnet", Project(folder / "project", {}), folder / "model")
        model.register()
        servers = list[Server]()
        for count in (1, 2):
            settings.override(Workspace(model.project.folder).params, {"serving.processes": count})
            servers.append(stack.enter_context(own_server(model, folder, cores=CORES[-count:])))
            _wait_until_ready(servers[-1])
            servers[-1].load(connections=_CLIENTS, seconds=seconds)  # warm
            with servers[-1].awake():
                pass
        for _ in range(rounds):
            for server in servers:
                with server.awake():
                    before = server.cpu_seconds()
                    server.loads.append(server.load(connections=_CLIENTS, seconds=seconds))
                    server.cpu.append((server.cpu_seconds() - before) / len(server.loads[-1].latencies))
    return _rows(*servers)


def _wait_until_ready(server: Server) -> None:
    """Wait for all processes. The first one answers while the others start, which would count as time of answers."""
    while not all(process["version"] for process in _health(server).get("processes", ())):
        time.sleep(0.2)


def _health(server: Server) -> Any:
    return read_json(f"http://127.0.0.1:{server.port}/health") or {"processes": [{"version": None}]}


def _rows(single: Server, double: Server) -> list[Row]:
    times, cpu, has_cores = ratio(double.rates, single.rates), ratio(double.cpu, single.cpu), len(CORES) > 2
    measured = [
        f"{spread(server.rates)} answers/s, CPU {1e6 * float(np.median(server.cpu)):.0f} us"
        for server in (single, double)
    ]
    return [
        Row("1 process", f"{_CLIENTS} clients", measured[0]),
        Row("2 processes", f"{_CLIENTS} clients", measured[1]),
        Row("answers/s, 2 / 1", f"{len(CORES)} cores", f"{times:.2f} times", f"at least {_LEAST}, with 3 cores",
            times >= _LEAST if has_cores else None),
        Row("CPU of an answer, 2 / 1", "", f"{cpu:.2f} times", f"at most {_MOST_CPU}", cpu <= _MOST_CPU),
    ]  # fmt: skip


def main() -> None:
    """Measure, and print the table."""
    alone(options(__doc__), lambda given: measure(given.rounds, quick=given.quick))


if __name__ == "__main__":
    main()
