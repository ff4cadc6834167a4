"""The model server beside other servers of the same ONNX program, and beside the bare onnxruntime call.

    python -m bench.serving --peers FOLDER [--models convnet resnet18 digits] [--rounds N]

Measured for each server: answers per second to 32 clients with p50 and p99, and latency of one client; for ours and
for a bare ASGI application with batches (`peers/bare_asgi.py`) also p99 / p50 at 70 % of those answers per second.

Conditions: every request has one image and every answer is compared with the bare call's. Servers take turns in each
round while the others are stopped, and ratios are medians over the rounds. The client has the first core, servers have
the last one, and onnxruntime has one thread everywhere. A request carries what suits its server best: bytes of a tensor
(ours), base64 (FastAPI, LitServe, BentoML), lists (MLflow). Weights are random, because speed does not depend on them.

FOLDER has one virtual environment for each peer: fastapi (with uvicorn, uvloop, httptools), litserve, bentoml, mlflow,
each with onnxruntime and NumPy. Peers without one are left out.
"""

import base64
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from bench.http_load import Load, measure_load
from bench.project import ROOT, Project, scratch
from bench.report import Row, alone, options, ratio, spread
from ratchet import settings
from ratchet.exports.program import PROGRAM
from ratchet.kinds import Classes, ImageInput, ModelSpec
from ratchet.registry.models import ModelRegistry
from ratchet.registry.runs import Run
from ratchet.servers.http import answers
from ratchet.servers.ports import free_port
from ratchet.training import build, save_model
from ratchet.workspace import Workspace

__all__ = ["CORES", "Model", "Server", "measure", "own_server"]

_HOST, _CLIENTS, _ROWS = "127.0.0.1", 32, 64
_TOLERANCE = 1e-5
_SHAPES = {"digits": ("convnet", 8, 1), "convnet": ("convnet", 32, 3), "resnet18": ("resnet18", 224, 3)}
_PEERS = Path(__file__).parent / "peers"
_BARE = "bare ASGI"
CORES = sorted(os.sched_getaffinity(0))


@dataclass
class Model:
    """A registered model with random weights, and rows for it."""

    name: str
    project: Project
    folder: Path
    count: int = _ROWS

    @cached_property
    def spec(self) -> ModelSpec:
        name, side, channels = _SHAPES[self.name]
        described = ImageInput(side, side, channels, (120.0,) * channels, (60.0,) * channels)
        return ModelSpec(name, described, Classes(tuple(map(str, range(10)))))

    @cached_property
    def images(self) -> Any:
        _, side, channels = _SHAPES[self.name]
        return np.random.default_rng(0).integers(0, 256, (self.count, side, side, channels), dtype=np.uint8)

    def register(self) -> None:
        """Register the model as champion, with its program."""
        workspace = Workspace(self.project.folder)
        params = settings.load(workspace.params)
        torch.manual_seed(0)
        save_model(self.folder, build(self.spec).state_dict(), self.spec, about={"training": {}})
        run, registry = Run(workspace, params, self.name), ModelRegistry(workspace, params)
        run_id = run.send()
        uri = registry.log_model(run_id, self.folder, self.spec)
        run.journal.close()
        number = registry.add_version(self.name, run_id, uri, tags={"ratchet.provenance": "bench"}).number
        registry.set_aliases(self.name, {"champion": number})
        with registry.opened(f"models:/{self.name}/{number}") as (_, opened):
            program = next(Path(opened).rglob(PROGRAM))
            self.program.write_bytes(program.read_bytes())

    @property
    def program(self) -> Path:
        return self.folder.with_suffix(".onnx")

    @cached_property
    def session(self) -> Any:
        import onnxruntime

        chosen = onnxruntime.SessionOptions()
        chosen.intra_op_num_threads = 1
        return onnxruntime.InferenceSession(self.program, chosen, providers=["CPUExecutionProvider"])

    @cached_property
    def expected(self) -> Any:
        parts = [self.images[first : first + 64] for first in range(0, self.count, 64)]
        return np.concatenate([self.session.run(None, {"pixels": part})[0] for part in parts])

    def bare(self, rows: int, seconds: float) -> list[float]:
        """Return the seconds of calls with `rows` images, on the core of the servers."""
        os.sched_setaffinity(0, {CORES[-1]})
        times, ends = [], time.perf_counter() + seconds
        while time.perf_counter() < ends:
            began = time.perf_counter()
            self.session.run(None, {"pixels": self.images[:rows]})
            times.append(time.perf_counter() - began)
        os.sched_setaffinity(0, {CORES[0]})
        return times


@dataclass
class Server:
    """A running server and how it is asked."""

    name: str
    port: int
    process: "subprocess.Popen[bytes]"
    requests: list[bytes]
    check: Callable[[int, bytes], bool]
    loads: list[Load] = field(default_factory=list)
    singles: list[Load] = field(default_factory=list)
    partials: list[Load] = field(default_factory=list)  # at 70 % load
    cpu: list[float] = field(default_factory=list)  # seconds for each answer

    def load(self, *, connections: int, seconds: float, rate: float | None = None) -> Load:
        return measure_load(
            self.port, self.requests, connections=connections, seconds=seconds, rate=rate, check=self.check
        )

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Let the server run within the context. Outside it is stopped: some servers never sleep."""
        for process in self._processes():
            process.resume()
        yield
        for process in self._processes():
            process.suspend()

    def cpu_seconds(self) -> float:
        """Return the CPU time of its processes."""
        times = [process.cpu_times() for process in self._processes()]
        return sum(time.user + time.system for time in times)

    def _processes(self) -> list[psutil.Process]:
        server = psutil.Process(self.process.pid)
        return [server, *server.children(recursive=True)]


def measure(
    rounds: int, *, quick: bool, peers: Path | None = None, models: Sequence[str] = tuple(_SHAPES), seconds: float = 4.0
) -> list[Row]:
    """Measure each model, and return the rows of the table. `seconds`: of each measurement."""
    seconds, rounds = (0.3, 1) if quick else (seconds, rounds)
    os.sched_setaffinity(0, {CORES[0]})
    rows: list[Row] = []
    for name in models:
        with scratch() as folder, ExitStack() as stack:
            model = Model(name, Project(folder / "project", {}), folder / name)
            model.register()
            servers = [stack.enter_context(each) for each in _servers(model, folder, peers)]
            rows += _measured(model, servers, rounds, seconds)
    return rows


def _measured(model: Model, servers: Sequence[Server], rounds: int, seconds: float) -> list[Row]:
    singles, batches = list[float](), list[float]()
    for server in servers:
        server.load(connections=_CLIENTS, seconds=seconds)  # warm
        with server.awake():
            pass
    for _ in range(rounds):
        batches.append(32 / float(np.median(model.bare(32, seconds / 2))))
        singles.append(float(np.median(model.bare(1, seconds / 2))))
        for server in servers:
            with server.awake():
                before = server.cpu_seconds()
                server.loads.append(server.load(connections=_CLIENTS, seconds=seconds))
                server.cpu.append((server.cpu_seconds() - before) / len(server.loads[-1].latencies))
                server.singles.append(server.load(connections=1, seconds=seconds / 2))
                if server.name in ("ours", _BARE):
                    rate = 0.7 * server.loads[-1].rate
                    server.partials.append(server.load(connections=4 * _CLIENTS, seconds=seconds, rate=rate))
    rows = [
        Row(f"{model.name}: bare call", "32 rows, 1 row", f"{spread(batches)} rows/s, {_ms(np.median(singles))} ms")
    ]
    ours, rates = servers[0], {server.name: [load.rate for load in server.loads] for server in servers}
    for server in servers:
        middle = server.loads[len(server.loads) // 2]
        single = np.median([load.quantile(0.5) for load in server.singles])
        rows.append(Row(
            f"{model.name}: {server.name}", f"{_CLIENTS} clients; 1 client",
            f"{spread(rates[server.name])} answers/s, p50 {_ms(middle.quantile(.5))}, p99 {_ms(middle.quantile(.99))}, "
            f"CPU {_ms(np.median(server.cpu))} ms; p50 {_ms(single)} ms",
        ))  # fmt: skip
    for server in servers[1:]:
        times = ratio(rates[ours.name], rates[server.name])
        least = {"LitServe": 6.0, "BentoML": 6.0, "MLflow": 25.0}.get(server.name) if model.name == "convnet" else None
        claim = f"at least {least:g} times" if least else ""
        rows.append(Row(f"{model.name}: ours / {server.name}", f"{_CLIENTS} clients", f"{times:.2f} times", claim,
                        times >= least if least else None))  # fmt: skip
    share = ratio(rates[ours.name], batches)
    is_large = model.name == "resnet18"
    rows.append(Row(f"{model.name}: ours / bare call", f"{_CLIENTS} clients", f"{share:.3f} times",
                    "at least .97" if is_large else "", share >= 0.97 if is_large else None))  # fmt: skip
    over = float(np.median([load.quantile(0.5) - bare for load, bare in zip(ours.singles, singles, strict=True)]))
    rows.append(Row(f"{model.name}: ours above the bare call", "1 client, p50", f"{_ms(over)} ms", "at most .45 ms",
                    over <= 0.45e-3))  # fmt: skip
    return rows + [_tail(model, server) for server in servers if server.partials]


def _tail(model: Model, server: Server) -> Row:
    tails = [load.quantile(0.99) / load.quantile(0.5) for load in server.partials]
    middle = _ms(np.median([load.quantile(0.5) for load in server.partials]))
    has_claim = server.name != _BARE
    return Row(
        f"{model.name}: {server.name}, p99 / p50", "70 % load", f"{spread(tails, form='.1f')} times, p50 {middle} ms",
        "at most 3" if has_claim else "", bool(np.median(tails) <= 3) if has_claim else None,
    )  # fmt: skip


def own_server(model: Model, folder: Path) -> "AbstractContextManager[Server]":
    """Return the context in which `ratchet serve` answers."""
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    command = (sys.executable, "-m", "commands", "serve", "--model", f"{model.name}@champion", "--port")
    port = free_port(_HOST)
    environment = {"PYTHONPATH": path, "TMPDIR": str(folder)}
    return _running(
        "ours", [*command, str(port)], port, "/ready", _tensor(model), model, environment, model.project.folder
    )


def _servers(model: Model, folder: Path, peers: Path | None) -> "Iterator[Any]":
    """Yield contexts that start the servers, ours first."""
    yield own_server(model, folder)
    common = {"MODEL": str(model.program), "SHAPE": ",".join(map(str, model.images.shape[1:])), "OMP_NUM_THREADS": "1"}
    port = free_port(_HOST)
    yield _running(
        _BARE, [sys.executable, "bare_asgi.py", str(port)], port, "/ready", _tensor(model), model, common, _PEERS
    )
    if peers is None:
        return
    lists = _lists(model)
    text = [json.dumps({"input": base64.b64encode(image.tobytes()).decode()}).encode() for image in model.images]

    def peer(name: str, title: str, command: Sequence[str], ready: str, path: str, bodies: Sequence[bytes]) -> Any:
        port = free_port(_HOST)
        python = peers.resolve() / name / "bin" / "python"
        line = [str(python), *(part.replace("PORT", str(port)) for part in command)]
        changed = common | {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}", "BENTOML_DO_NOT_TRACK": "True"}
        return _running(title, line, port, ready, (path, {}, bodies), model, changed, _PEERS)

    if (peers / "fastapi").is_dir():
        uvicorn = ("-m", "uvicorn", "fastapi_onnx:app", "--port", "PORT", "--log-level", "warning", "--no-access-log")
        yield peer("fastapi", "FastAPI", uvicorn, "/docs", "/predict", text)
    if (peers / "litserve").is_dir():
        yield peer("litserve", "LitServe", ("litserve_onnx.py", "PORT"), "/health", "/predict", text)
    if (peers / "bentoml").is_dir():
        bodies = [json.dumps({"input": [json.loads(body)["input"]]}).encode() for body in text]
        serve = ("-m", "bentoml", "serve", "bentoml_onnx:Model", "--port", "PORT", "--host", _HOST)
        yield peer("bentoml", "BentoML", serve, "/readyz", "/predict", bodies)
    if (peers / "mlflow").is_dir():
        python, saved = peers.resolve() / "mlflow" / "bin" / "python", folder / "mlflow-model"
        subprocess.run([python, _PEERS / "mlflow_model.py", saved], env={**os.environ, **common}, check=True)
        serve = (
            "-m",
            "mlflow",
            "models",
            "serve",
            "-m",
            str(saved),
            "--env-manager",
            "local",
            "-p",
            "PORT",
            "-h",
            _HOST,
        )
        yield peer("mlflow", "MLflow", serve, "/ping", "/invocations", lists)


@contextmanager
def _running(
    name: str, command: Sequence[str], port: int, ready: str, question: "tuple[str, dict[str, str], Sequence[bytes]]",
    model: Model, environment: dict[str, str], cwd: Path,
) -> Iterator[Server]:  # fmt: skip
    """Run a server on the last core, in a session of its own, until the context ends."""
    path, headers, bodies = question
    log = model.folder.parent / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["taskset", "-c", str(CORES[-1]), *command], cwd=cwd, env={**os.environ, **environment}, stdout=output,
            stderr=output, start_new_session=True,
        )  # fmt: skip
    try:
        address = f"http://{_HOST}:{port}{ready}"
        while not answers(address):
            if process.poll() is not None:
                raise RuntimeError(f"{name} did not start:\n{log.read_text()}")
            time.sleep(0.1)
        requests = [_request(path, port, headers, body) for body in bodies]
        yield Server(name, port, process, requests, lambda place, body: _is_right(model, place, body))
    finally:
        started = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        for each in started:
            each.kill()  # a stopped process does not end by SIGTERM
        process.wait()


def _request(path: str, port: int, headers: dict[str, str], body: bytes) -> bytes:
    lines = {"Host": f"{_HOST}:{port}", "Content-Type": "application/json", "Content-Length": str(len(body)), **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + body


def _tensor(model: Model) -> "tuple[str, dict[str, str], list[bytes]]":
    """Return requests of the Open Inference Protocol with the bytes of a tensor; the answer is JSON."""
    shape = [1, *model.images.shape[1:]]
    parameters = {"binary_data_size": model.images[0].nbytes}
    tensor = {"name": "pixels", "shape": shape, "datatype": "UINT8", "parameters": parameters}
    head = json.dumps({"inputs": [tensor]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head)), "Content-Type": "application/octet-stream"}
    return f"/v2/models/{model.name}/infer", headers, [head + image.tobytes() for image in model.images]


def _lists(model: Model) -> list[bytes]:
    """Return requests in MLflow's format."""
    return [json.dumps({"inputs": image[None].tolist()}).encode() for image in model.images]


def _is_right(model: Model, place: int, body: bytes) -> bool:
    content = json.loads(body)
    if isinstance(content, list):
        answer = content[0]
    else:
        answer = content["outputs"][0]["data"] if "outputs" in content else content["predictions"][0]
    return bool(np.abs(np.asarray(answer, np.float64) - model.expected[place]).max() < _TOLERANCE)


def _ms(seconds: Any) -> str:
    return f"{1000 * float(seconds):.2f}"


def main() -> None:
    """Measure, and print the table."""
    parser = options(__doc__)
    parser.add_argument("--peers", type=Path, help="folder with the environments of the other servers")
    parser.add_argument("--models", nargs="+", choices=tuple(_SHAPES), default=tuple(_SHAPES))
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement; default: 4")
    alone(parser, lambda given: measure(
        given.rounds, quick=given.quick, peers=given.peers, models=given.models, seconds=given.seconds
    ))  # fmt: skip


if __name__ == "__main__":
    main()
