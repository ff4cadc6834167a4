"""The model server beside other servers of the same model, and beside the bare onnxruntime call.

    python -m bench.serving --peers FOLDER [--models convnet resnet18 digits table text] [--rounds N]

Measured for each server: answers per second to 32 clients with p50 and p99, and latency of one client; for ours and
for a bare ASGI application with batches (`peers/bare_asgi.py`, images only) also p99 / p50 at 70 % of those answers per
second. Models: three ConvNets and ResNets for images of 8, 32 and 224 pixels; TabM for rows of 14
columns; a bag of words for texts of 40 words.

Conditions: every request has one row and every answer is compared with the bare call's. Servers take turns in each
round while the others are stopped, and ratios are medians over the rounds. The client has the first core, servers have
the last one, and onnxruntime and PyTorch have one thread everywhere. Weights are random, because speed does not depend
on them. A request carries what suits its server best. Images: bytes of a tensor (ours), base64 (FastAPI, LitServe,
BentoML), lists (MLflow). Rows of a table and texts: ours gets them as they are and encodes them. The others get them
encoded, as base64 or lists of numbers, codes and token ids.

FOLDER has one virtual environment for each peer: fastapi (with uvicorn, uvloop, httptools, torch, torchvision,
safetensors), litserve, bentoml, mlflow, each with onnxruntime and NumPy. Peers without one are left out.
"""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from bench.project import Project, scratch
from bench.report import Row, alone, options, print_table, ratio, spread
from bench.serving_models import CORES, MODELS, Model
from bench.serving_servers import BARE, Server, servers

__all__ = ["measure"]

_CLIENTS = 32
_LEAST = {"LitServe": 6.0, "BentoML": 6.0, "MLflow": 25.0}
"""Times that our server is to be faster with the ConvNet for 32 pixels."""


def measure(
    rounds: int, *, quick: bool, peers: Path | None = None, models: Sequence[str] = MODELS, seconds: float = 4.0
) -> list[Row]:
    """Measure each model, and return the rows of the table. `seconds`: of each measurement."""
    seconds, rounds = (0.3, 1) if quick else (seconds, rounds)
    os.sched_setaffinity(0, {CORES[0]})
    rows: list[Row] = []
    for name in models:
        with scratch() as folder, ExitStack() as stack:
            model = Model(name, Project(folder / "project", {}), folder / name)
            model.register()
            running = [stack.enter_context(each) for each in servers(model, folder, peers)]
            measured = _measured(model, running, rounds, seconds)
        print_table(measured)  # at once: all models take an hour
        rows += measured
    return rows


def _measured(model: Model, running: Sequence[Server], rounds: int, seconds: float) -> list[Row]:
    singles, batches = list[float](), list[float]()  # of the bare call: seconds of one row, rows per second in batches
    for server in running:
        server.load(connections=_CLIENTS, seconds=seconds)  # warm
        with server.awake():
            pass
    for _ in range(rounds):
        batches.append(32 / float(np.median(model.bare(32, seconds / 2))))
        singles.append(float(np.median(model.bare(1, seconds / 2))))
        for server in running:
            with server.awake():
                before = server.cpu_seconds()
                server.loads.append(server.load(connections=_CLIENTS, seconds=seconds))
                server.cpu.append((server.cpu_seconds() - before) / len(server.loads[-1].latencies))
                server.singles.append(server.load(connections=1, seconds=seconds / 2))
                if server.name in ("ours", BARE):
                    rate = 0.7 * server.loads[-1].rate
                    server.partials.append(server.load(connections=4 * _CLIENTS, seconds=seconds, rate=rate))
    bare = f"{spread(batches)} rows/s, {_ms(np.median(singles))} ms"
    ours = running[0]
    return [
        Row(f"{model.name}: bare call", "32 rows, 1 row", bare),
        *(_row(model, server) for server in running),
        *(_comparison(model, ours, server) for server in running[1:]),
        *_own_rows(model, ours, singles, batches),
        *(_tail(model, server) for server in running if server.partials),
    ]


def _row(model: Model, server: Server) -> Row:
    middle = server.loads[len(server.loads) // 2]
    return Row(
        f"{model.name}: {server.name}", f"{_CLIENTS} clients; 1 client",
        f"{spread(server.rates)} answers/s, p50 {_ms(middle.quantile(.5))}, p99 {_ms(middle.quantile(.99))}, "
        f"CPU {_ms(np.median(server.cpu))} ms; p50 {_ms(np.median([load.quantile(.5) for load in server.singles]))} ms",
    )  # fmt: skip


def _comparison(model: Model, ours: Server, server: Server) -> Row:
    times = ratio(ours.rates, server.rates)
    least = _LEAST.get(server.name) if model.name == "convnet" else None
    return Row(
        f"{model.name}: ours / {server.name}", f"{_CLIENTS} clients", f"{times:.2f} times",
        f"at least {least:g} times" if least else "", times >= least if least else None,
    )  # fmt: skip


def _own_rows(model: Model, ours: Server, singles: Sequence[float], batches: Sequence[float]) -> list[Row]:
    """Return our server beside the bare call."""
    share, is_large = ratio(ours.rates, batches), model.name == "resnet18"
    over = float(np.median([load.quantile(0.5) - bare for load, bare in zip(ours.singles, singles, strict=True)]))
    return [
        Row(f"{model.name}: ours / bare call", f"{_CLIENTS} clients", f"{share:.3f} times",
            "at least .97" if is_large else "", share >= 0.97 if is_large else None),
        Row(f"{model.name}: ours above the bare call", "1 client, p50", f"{_ms(over)} ms", "at most .45 ms",
            over <= 0.45e-3),
    ]  # fmt: skip


def _tail(model: Model, server: Server) -> Row:
    tails = [load.quantile(0.99) / load.quantile(0.5) for load in server.partials]
    middle = _ms(np.median([load.quantile(0.5) for load in server.partials]))
    has_claim = server.name != BARE
    return Row(
        f"{model.name}: {server.name}, p99 / p50", "70 % load", f"{spread(tails, form='.1f')} times, p50 {middle} ms",
        "at most 3" if has_claim else "", bool(np.median(tails) <= 3) if has_claim else None,
    )  # fmt: skip


def _ms(seconds: Any) -> str:
    return f"{1000 * float(seconds):.2f}"


def main() -> None:
    """Measure, and print the table."""
    parser = options(__doc__)
    parser.add_argument("--peers", type=Path, help="folder with the environments of the other servers")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement; default: 4")
    alone(parser, lambda given: measure(
        given.rounds, quick=given.quick, peers=given.peers, models=given.models, seconds=given.seconds
    ))  # fmt: skip


if __name__ == "__main__":
    main()
