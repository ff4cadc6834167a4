"""The model server at three times its capacity, for five minutes.

    python -m bench.serving_overload [--models convnet table text] [--seconds N]

Measured: answers per second to 32 clients (the peak). Then requests at three times this rate, each sent when it is due,
whatever became of those before: answers per second, p99 of their latency, the slowest answer to /health, asked four
times a second, and anonymous memory of the server.

Conditions: as bench.serving. A row repeats only after so many others that the server has forgotten its answer, and
there is no fallback, so every answer is computed. The deadline is the default one. Both cores must be free: latency
counts from the time at which a request was due, so a client that is late itself looks like a slow server. The last row
of each model shows it, with the server's processor time: the answers per second of it do not depend on other programs.
An answer costs a, a refusal r, so answers can be (1 - 3 r / a) / (1 - r / a) times the peak at most: .87 with r / a of
1 / 17, and .95 only from 1 / 41.
"""

import os
import resource
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.http_load import Load
from bench.project import Project, scratch
from bench.report import Row, alone, options, print_table
from bench.serving_models import CORES, Model
from bench.serving_servers import Server, own_server
from ratchet.settings.model import ServingSettings

__all__ = ["measure"]

_TIMES, _CLIENTS, _CONNECTIONS = 3.0, 32, 3000
_ROWS = {"convnet": 130_000, "table": 64_000, "text": 40_000}  # at least twice what 32 MiB of remembered answers hold
_HEALTH = 1.0  # seconds
_MIB = 1 << 20


def measure(*, quick: bool, models: Sequence[str] = tuple(_ROWS), seconds: float = 300.0) -> list[Row]:
    """Measure each model, and return the rows of the table. `seconds`: of the overload."""
    seconds = 3.0 if quick else seconds
    os.sched_setaffinity(0, {CORES[0]})
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a connection for each waiting request
    rows: list[Row] = []
    for name in models:
        with scratch() as folder:
            model = Model(name, Project(folder / "project", {}), folder / name, _ROWS[name])
            model.register()
            with own_server(model, folder) as server:
                measured = _measured(name, server, seconds)
        print_table(measured)  # at once, since each takes minutes
        rows += measured
    return rows


def _measured(name: str, server: Server, seconds: float) -> list[Row]:
    loads = [_load_with_cpu(server, connections=_CLIENTS, seconds=min(10.0, seconds)) for _ in range(3)]
    peak, peak_cpu = (max(values) for values in zip(*((load.rate, cpu) for load, cpu in loads), strict=True))
    server.load(connections=_CONNECTIONS, seconds=min(30.0, seconds), rate=_TIMES * peak)  # the queue has been full
    with _watched(server) as sizes:
        load, cpu = _load_with_cpu(server, connections=_CONNECTIONS, seconds=seconds, rate=_TIMES * peak)
    assert server.process.poll() is None, "the server ended"
    share, p99, slowest = load.rate / peak, load.quantile(0.99), max(load.health)
    deadline = ServingSettings().deadline
    growth = max(sizes) / sizes[0] - 1
    refused = load.status.get(503, 0) / sum(load.status.values())
    where = f"{_TIMES:g} times the peak of {peak:,.0f}/s, {seconds:g} s"
    accepted, memory = f"{share:.3f} times ({refused:.0%} refused)", f"{sizes[0] / _MIB:.0f} MiB, then {growth:+.1%}"
    late = sorted(load.late)[int(0.99 * len(load.late))]
    offered = sum(load.status.values()) / load.seconds / peak
    conditions = f"{cpu / peak_cpu:.3f} times the answers per CPU second; {offered:.2f} times the peak was sent; "
    conditions += f"client: p99 {late:.3f} s late"
    return [
        Row(f"{name}: accepted / peak", where, accepted, "at least .95", share >= 0.95),
        Row(f"{name}: p99 of accepted", where, f"{p99:.2f} s", f"at most {deadline:g} s", p99 <= deadline),
        Row(f"{name}: slowest /health", where, f"{slowest:.2f} s of {len(load.health)}", f"at most {_HEALTH:g} s",
            slowest <= _HEALTH),
        Row(f"{name}: memory", where, memory, "at most +5 %", growth <= 0.05),
        Row(f"{name}: processor", where, conditions),
    ]  # fmt: skip


def _load_with_cpu(server: Server, **arguments: Any) -> tuple[Load, float]:
    """Return a load, and its answers per second of the server's processor time."""
    before = server.cpu_seconds()
    load = server.load(**arguments)
    return load, len(load.latencies) / (server.cpu_seconds() - before)


@contextmanager
def _watched(server: Server) -> Iterator[list[int]]:
    """Yield the server's anonymous memory in bytes, four times a second until the end."""
    ends, sizes = threading.Event(), list[int]()
    status = Path(f"/proc/{server.process.pid}/status")

    def look() -> None:
        while not ends.is_set() and server.process.poll() is None:
            line = next(each for each in status.read_text().splitlines() if each.startswith("RssAnon"))
            sizes.append(int(line.split()[1]) * 1024)
            ends.wait(0.25)

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield sizes
    finally:
        ends.set()
        watcher.join()


def main() -> None:
    """Measure, and print the table."""
    parser = options(__doc__)
    parser.add_argument("--models", nargs="+", choices=tuple(_ROWS), default=tuple(_ROWS))
    parser.add_argument("--seconds", type=float, default=300.0, help="of the overload; default: 300")
    alone(parser, lambda given: measure(quick=given.quick, models=given.models, seconds=given.seconds))


if __name__ == "__main__":
    main()
