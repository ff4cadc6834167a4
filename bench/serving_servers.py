"""The servers of bench.serving: each is started, asked in the form that suits it best, and its answers are compared."""

import base64
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from bench.http_load import Load, measure_load
from bench.project import ROOT
from bench.serving_models import CORES, Model
from ratchet.kinds import ImageInput
from ratchet.servers.http import answers
from ratchet.servers.ports import free_port

__all__ = ["BARE", "Server", "own_server", "servers"]

BARE = "bare ASGI"
_HOST = "127.0.0.1"
_TOLERANCE = 1e-5
_PEERS = Path(__file__).parent / "peers"
_UVICORN = ("-m", "uvicorn", "--port", "PORT", "--log-level", "warning", "--no-access-log")
Question = tuple[str, dict[str, str], Sequence[bytes]]  # path, headers, bodies


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

    @property
    def rates(self) -> list[float]:
        """Answers per second of each round."""
        return [load.rate for load in self.loads]

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


def own_server(model: Model, folder: Path, cores: Sequence[int] = CORES[-1:]) -> AbstractContextManager[Server]:
    """Return the context in which `ratchet serve` answers."""
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    command = (sys.executable, "-m", "commands", "serve", "--model", f"{model.name}@champion", "--port", "PORT")
    environment = {"PYTHONPATH": path, "TMPDIR": str(folder)}
    return _running("ours", command, "/ready", _own_requests(model), model, environment, model.project.folder, cores)


def servers(model: Model, folder: Path, peers: Path | None) -> Iterator[AbstractContextManager[Server]]:
    """Yield contexts that start the servers, ours first. `peers`: folder with their environments."""
    yield own_server(model, folder)
    if isinstance(model.spec.input, ImageInput):
        shape = ",".join(map(str, model.arrays[0].shape[1:]))
        variables = {"MODEL": str(model.program), "SHAPE": shape, "OMP_NUM_THREADS": "1"}
        command = (sys.executable, "bare_asgi.py", "PORT")
        yield _running(BARE, command, "/ready", _own_requests(model), model, variables, _PEERS)
    if peers is None:
        return
    saved, lists, encoded = folder / "mlflow-model", _lists(model), _encoded(model)
    batches = [json.dumps({"input": [json.loads(body)["input"]]}).encode() for body in encoded]
    inputs = [(name, str(array.dtype), array.shape[1:]) for name, array in zip(model.names, model.arrays, strict=True)]
    environment = {
        "MODEL": str(model.program), "FOLDER": str(model.folder), "INPUTS": json.dumps(inputs), "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT / "src"), "BENTOML_DO_NOT_TRACK": "True",
    }  # fmt: skip
    mlflow = ("-m", "mlflow", "models", "serve", "-m", str(saved), "--env-manager", "local", "-p", "PORT", "-h", _HOST)
    bentoml = ("-m", "bentoml", "serve", "bentoml_onnx:Model", "--port", "PORT", "--host", _HOST)
    for name, title, command, ready, path, bodies in (
        ("fastapi", "FastAPI + PyTorch", (*_UVICORN, "fastapi_torch:app"), "/docs", "/predict", encoded),
        ("fastapi", "FastAPI + onnxruntime", (*_UVICORN, "fastapi_onnx:app"), "/docs", "/predict", encoded),
        ("litserve", "LitServe", ("litserve_onnx.py", "PORT"), "/health", "/predict", encoded),
        ("bentoml", "BentoML", bentoml, "/readyz", "/predict", batches),
        ("mlflow", "MLflow", mlflow, "/ping", "/invocations", lists),
    ):
        python = peers.resolve() / name / "bin" / "python"
        if not python.exists():
            continue
        environment["PATH"] = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
        if name == "mlflow":
            subprocess.run([python, _PEERS / "mlflow_model.py", saved], env={**os.environ, **environment}, check=True)
        question: Question = (path, {}, bodies)
        yield _running(title, (str(python), *command), ready, question, model, dict(environment), _PEERS)


@contextmanager
def _running(
    name: str, command: Sequence[str], ready: str, question: Question, model: Model, environment: dict[str, str],
    cwd: Path, cores: Sequence[int] = CORES[-1:],
) -> Iterator[Server]:  # fmt: skip
    """Run a server on these cores, in a session of its own, until the context ends."""
    path, headers, bodies = question
    log, port = model.folder.parent / f"{name}.log", free_port(_HOST)
    line = ["taskset", "-c", ",".join(map(str, cores)), *(part.replace("PORT", str(port)) for part in command)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            line, cwd=cwd, env={**os.environ, **environment}, stdout=output, stderr=output, start_new_session=True
        )
    try:
        while not answers(f"http://{_HOST}:{port}{ready}"):
            if process.poll() is not None:
                raise RuntimeError(f"{name} did not start:\n{log.read_text()}")
            time.sleep(0.1)
        requests = [_request(path, port, headers, body) for body in bodies]
        yield Server(name, port, process, requests, lambda place, body: _is_right(model, place, body))
    finally:
        if process.poll() is None:
            started = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            for each in started:
                each.kill()  # a stopped process does not end by SIGTERM
        process.wait()


def _request(path: str, port: int, headers: dict[str, str], body: bytes) -> bytes:
    lines = {"Host": f"{_HOST}:{port}", "Content-Type": "application/json", "Content-Length": str(len(body)), **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + body


def _own_requests(model: Model) -> Question:
    """Return images as bytes of a tensor (Open Inference Protocol), rows of a table and texts as JSON."""
    if not isinstance(model.spec.input, ImageInput):
        field = "inputs" if model.name == "text" else "dataframe_records"
        return "/invocations", {}, [json.dumps({field: [row]}).encode() for row in model.rows]
    (images,) = model.arrays
    parameters = {"binary_data_size": images[0].nbytes}
    tensor = {"name": "pixels", "shape": [1, *images.shape[1:]], "datatype": "UINT8", "parameters": parameters}
    head = json.dumps({"inputs": [tensor]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head)), "Content-Type": "application/octet-stream"}
    return f"/v2/models/{model.name}/infer", headers, [head + image.tobytes() for image in images]


def _encoded(model: Model) -> list[bytes]:
    """Return requests with base64 of each array of the program."""
    return [
        json.dumps({"input": [base64.b64encode(array[row].tobytes()).decode() for array in model.arrays]}).encode()
        for row in range(model.count)
    ]


def _lists(model: Model) -> list[bytes]:
    """Return requests with each array of the program as lists, in MLflow's format."""
    named = list(zip(model.names, model.arrays, strict=True))
    return [
        json.dumps({"inputs": {name: array[row : row + 1].tolist() for name, array in named}}).encode()
        for row in range(model.count)
    ]


def _is_right(model: Model, place: int, body: bytes) -> bool:
    content: Any = json.loads(body)
    if isinstance(content, list):
        answer = content[0]
    else:
        answer = content["outputs"][0]["data"] if "outputs" in content else content["predictions"][0]
    return bool(np.abs(np.asarray(answer, np.float64) - model.expected[place]).max() < _TOLERANCE)
