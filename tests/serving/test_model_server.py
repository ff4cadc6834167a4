"""The model server over HTTP: three request formats, real clients, a moving alias, overload and hostile requests."""

import base64
import functools
import gzip
import http.client
import io
import itertools
import json
import re
import signal
import socket
import struct
import subprocess
import threading
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from openapi_spec_validator import validate
from PIL import Image
from ports import reserved_port
from scored import add_untrained
from waiting import until

from ratchet import settings
from ratchet.kinds import Column, ImageInput, ModelSpec, TableInput, TextInput, TokensInput
from ratchet.monitoring.sketch import WindowSketch
from ratchet.monitoring.sketch_log import read_sketches, sketch_folder
from ratchet.problems import Classes, Labels, NextToken, Numbers
from ratchet.registry.models import ModelRegistry
from ratchet.servers.http import answers
from ratchet.traffic.log_reader import find, log_folder, read, read_shadow

pytestmark = pytest.mark.system

HOST = "127.0.0.1"
RANDOM = np.random.default_rng(0)
ANIMALS = Classes(("ant", "bee", "cat"))
COLUMNS = (
    Column("age", "numeric", 40.0, 10.0, tuple(np.linspace(20.0, 60.0, 9).tolist())),
    Column("fare", "numeric", 10.0, 5.0, tuple(np.linspace(0.0, 30.0, 9).tolist())),
    Column("class", "categorical", categories=("first", "second")),
)
SPECS = {
    "image": ModelSpec("convnet", ImageInput(8, 8, 3, (120.0,) * 3, (60.0,) * 3), ANIMALS),
    "table": ModelSpec("tabm", TableInput(COLUMNS), Numbers(("price",), (50.0,), (7.0,))),
    "labels": ModelSpec("mlp", TableInput(COLUMNS), Labels(("red", "round"))),
    "text": ModelSpec("bag", TextInput("hashed", buckets=512, longest=64), ANIMALS),
    "tokens": ModelSpec("decoder", TokensInput("bytes", context=32), NextToken(256)),
}
ROWS = {
    "image": RANDOM.integers(0, 256, (40, 8, 8, 3)).tolist(),
    "table": [
        {
            "age": round(float(age), 2),
            "fare": None if row % 7 == 0 else row / 2,
            "class": ["first", "third", None][row % 3],
        }
        for row, age in enumerate(RANDOM.normal(40, 10, 40))
    ],
    "text": [" ".join(RANDOM.choice(["good", "bad", "film", "plot"], 1 + row % 5)) for row in range(40)],
}
ROWS["labels"] = ROWS["table"]
RUNS = itertools.count(1)
INFER = "/v2/models/image/infer"
TENSOR = {"name": "pixels", "shape": [1], "datatype": "UINT8", "data": [1]}


class Served:
    """A project with versions of untrained models, and the model server of one of them."""

    def __init__(self, project: Any, port: int = 0) -> None:
        self.project, self.workspace, self.port = project, project.workspace, port
        self.params = settings.load(self.workspace.params)
        self.registry = ModelRegistry(self.workspace, self.params)

    def add(self, name: str, spec: ModelSpec, *, seed: int = 1) -> str:
        """Register a version and return its number; the first is champion."""
        key = f"{name}-{next(RUNS)}"  # two versions of one run would be one version
        number = add_untrained(self, key, name, spec, seed=seed)
        if number == "1":
            self.promote(name, number)
        return number

    def promote(self, name: str, number: str) -> None:
        self.registry.set_aliases(name, {"champion": number})

    def url(self, path: str) -> str:
        return f"http://{HOST}:{self.port}{path}"

    def ask(self, path: str, content: Any, **headers: str) -> tuple[int, Any, dict[str, str]]:
        """Post JSON, or bytes as they are; return status, answer and headers."""
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        headers = {"Content-Type": "application/json"} | {
            key.replace("_", "-"): value for key, value in headers.items()
        }
        try:
            with urllib.request.urlopen(urllib.request.Request(self.url(path), body, headers)) as answer:
                return answer.status, json.load(answer), dict(answer.headers)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error), dict(error.headers)

    def get(self, path: str) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(self.url(path)) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)


@pytest.fixture(scope="module")
def registry(new_project: Callable[[str], Any]) -> Served:
    project = new_project("served")
    settings.override(project.workspace.params, {"registry.export": "onnx"})
    served = Served(project)
    for name, spec in SPECS.items():
        served.add(name, spec)
    settings.override(project.workspace.params, {"registry.export": "none"})  # an export takes seconds
    return Served(project)


@contextmanager
def model_server(registry: Served, name: str, **changed: Any) -> Iterator[Served]:
    """Run `ratchet serve` with a model, and with other settings if given, until the end of the block."""
    served = Served(registry.project, reserved_port(HOST))
    usual = {
        "poll": 60.0,  # servers that follow nothing leave the processor to the tests
        "rows": 4096,
        "queue": 1024,
        "body_mib": 16.0,
        "tokens": 512,
        "fallback": "none",
        "shadow": "none",
        "canary": "none",
        "deadline": 120.0,  # the first explanation imports a library
        "log_inputs": "keep",
    }
    values = usual | changed
    settings.override(served.workspace.params, {f"serving.{key}": value for key, value in values.items()})
    log = served.workspace.root / f"serve-{served.port}.log"
    process = served.project.start(
        "ratchet", "serve", "--model", f"{name}@champion", "--port", str(served.port), log=log
    )
    try:
        until(lambda: answers(served.url("/ready")), process=process, log=log)
        yield served
    finally:
        process.terminate()
        status = process.wait()
    assert status == -signal.SIGTERM, log.read_text()  # uvicorn ends by the signal that it got
    assert not list((served.workspace.state / "served").glob(f"{process.pid}-*"))


@pytest.fixture
def serve(registry: Served) -> Iterator[Callable[..., Served]]:
    """Return a function that starts a `model_server`, which runs until the end of the test."""
    with ExitStack() as stack:
        yield lambda name, **changed: stack.enter_context(model_server(registry, name, **changed))


@pytest.fixture(scope="module")
def shared(registry: Served) -> Iterator[Callable[[str], Served]]:
    """Return a function that returns the `model_server` of a model, which runs until the end of the file."""
    changed = {"tokens": {"tokens": 10_000_000, "deadline": 10_000.0}}  # the language model may write for hours
    with ExitStack() as stack:
        yield functools.cache(lambda name: stack.enter_context(model_server(registry, name, **changed.get(name, {}))))


@pytest.fixture(scope="module")
def images(shared: Callable[[str], Served]) -> Served:
    return shared("image")


@pytest.fixture(scope="module")
def tables(shared: Callable[[str], Served]) -> Served:
    return shared("table")


@pytest.fixture(scope="module")
def tokens(shared: Callable[[str], Served]) -> Served:
    return shared("tokens")


def expected(served: Served, name: str, rows: Any, version: str = "1") -> Any:
    """Return the answers of MLflow's own loader."""
    import pandas as pd

    is_image = name not in ("table", "labels", "text", "shadow-table")
    given = np.array(rows, np.uint8) if is_image else pd.DataFrame(rows)
    with served.registry.opened(f"models:/{name}/{version}") as (model, _):
        return model.predict(given)


def columns(rows: list[dict[str, Any]]) -> dict[str, Any]:
    names = list(rows[0])
    return {"columns": names, "data": [[row[name] for name in names] for row in rows]}


def tensors(name: str, rows: list[Any]) -> list[dict[str, Any]]:
    """Return rows as tensors of the Open Inference Protocol."""
    if name == "image":
        pixels = np.array(rows)
        return [{"name": "pixels", "shape": list(pixels.shape), "datatype": "UINT8", "data": pixels.ravel().tolist()}]
    if name == "text":
        return [{"name": "text", "shape": [len(rows)], "datatype": "BYTES", "data": rows}]
    kinds = {"age": "FP64", "fare": "FP64", "class": "BYTES"}
    return [
        {"name": key, "shape": [len(rows)], "datatype": kind, "data": [row[key] for row in rows]}
        for key, kind in kinds.items()
    ]


@pytest.mark.parametrize("name", ["image", "table", "labels", "text"])
def test_a_row_has_the_same_bits_in_every_format(shared: Callable[[str], Served], name: str) -> None:
    served, rows = shared(name), ROWS[name]
    form, given = ("inputs", rows) if name in ("image", "text") else ("dataframe_split", columns(rows))
    status, together, headers = served.ask("/invocations", {form: given})
    assert status == 200, together
    batch = np.array(together["predictions"], np.float32)
    assert headers["ratchet-version"] == f"{name}/1"
    assert headers["ratchet-provenance"] == "record-1"
    assert np.abs(batch - expected(served, name, rows)).max() < 1e-3

    def alone(row: int) -> Any:
        if row % 2:
            own = served.ask("/v1/predict", {"input": [rows[row]], "options": {"top_k": 3}})[1]["predictions"][0]
            if "top" in own:
                return [
                    next(each["probability"] for each in own["top"] if each["class"] == kind) for kind in ANIMALS.names
                ]
            return list(own.get("values", own.get("probabilities")).values())
        return served.ask(f"/v2/models/{name}/infer", {"inputs": tensors(name, [rows[row]])})[1]["outputs"][0]["data"]

    with ThreadPoolExecutor(8) as pool:
        singles = np.array(list(pool.map(alone, range(len(rows)))), np.float32)
    assert singles.tobytes() == batch.tobytes()


def test_triton_client_and_mlflow_client_are_answered(images: Served) -> None:
    import tritonclient.http as triton  # type: ignore[import-untyped]
    from mlflow.pyfunc.scoring_server.client import ScoringServerClient

    pixels = np.array(ROWS["image"][:5], np.uint8)
    client = triton.InferenceServerClient(f"{HOST}:{images.port}")
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("image", "1")
    described = client.get_model_metadata("image")
    assert described["inputs"] == [{"name": "pixels", "datatype": "UINT8", "shape": [-1, 8, 8, 3]}]
    results = []
    for binary in (True, False):
        given = triton.InferInput("pixels", pixels.shape, "UINT8")
        given.set_data_from_numpy(pixels, binary_data=binary)
        wanted = triton.InferRequestedOutput("probabilities", binary_data=binary)
        result = client.infer("image", [given], outputs=[wanted], request_id="mine")
        assert result.get_response()["id"] == "mine"
        results.append(result.as_numpy("probabilities"))
    client.close()
    mlflows = ScoringServerClient(HOST, images.port).invoke(pixels).get_predictions()
    assert results[0].tobytes() == results[1].tobytes() == mlflows.to_numpy(np.float32).tobytes()


VISITS = TableInput(
    (
        Column("Größe", "numeric", 170.0, 10.0, tuple(np.linspace(150.0, 190.0, 9).tolist())),
        Column("née le", "datetime", 0.0, 1e8, tuple(np.linspace(-1e8, 1e8, 9).tolist()), offset=1e9),
        Column("Straße", "categorical", categories=("Alt-Moabit", "日本")),
        Column("klass", "categorical", categories=("1", "2", "3")),
        Column("insured", "categorical", categories=("True", "False")),
    )
)


def visits() -> Any:
    """Return rows as users have them: each kind of missing value that pandas knows, dates, names beyond ASCII."""
    import pandas as pd

    rows = pd.DataFrame(
        {
            "Größe": [171.5, np.nan, 180.0, 165.0],
            "née le": pd.to_datetime(
                ["2001-09-09 01:46:40", None, "1999-12-31 00:00", "2004-02-29 12:00:01"], format="ISO8601"
            ),
            "Straße": ["日本", None, "elsewhere", np.nan],
            "klass": [1.0, 3.0, np.nan, 2.0],
            "insured": [True, None, False, np.nan],
        }
    )
    return rows.astype({"insured": object})


@pytest.fixture(scope="module")
def visited(registry: Served) -> Iterator[Served]:
    registry.add("visits", ModelSpec("tabm", VISITS, ANIMALS))
    with model_server(registry, "visits") as served:
        yield served


def test_mlflows_client_sends_missing_values_and_dates(visited: Served) -> None:
    """In the order of `visits`, with missing values of each kind: NaN, NaT, None."""
    from mlflow.pyfunc.scoring_server.client import ScoringServerClient

    served, frame = visited, visits()
    with served.registry.opened("models:/visits/1") as (model, _):
        wanted = np.array(model.predict(frame), np.float32)
    given = ScoringServerClient(HOST, served.port).invoke(frame).get_predictions().to_numpy(np.float32)
    assert np.abs(given - wanted).max() < 1e-6
    records = json.loads(frame.to_json(orient="records", date_format="iso"))
    answer = served.ask("/invocations", {"dataframe_records": records})[1]
    assert np.array(answer["predictions"], np.float32).tobytes() == given.tobytes()


def test_triton_client_sends_missing_values_and_names(visited: Served) -> None:
    import tritonclient.http as triton

    served, frame = visited, visits()
    with served.registry.opened("models:/visits/1") as (model, _):
        wanted = np.array(model.predict(frame), np.float32)
    with closing(triton.InferenceServerClient(f"{HOST}:{served.port}")) as client:
        for binary in (True, False):
            given = []
            for name in frame.columns:
                is_number = frame[name].dtype == np.float64
                texts = np.array([str(value).encode() for value in frame[name]], object)
                given.append(triton.InferInput(name, [len(frame)], "FP64" if is_number else "BYTES"))
                given[-1].set_data_from_numpy(frame[name].to_numpy() if is_number else texts, binary_data=binary)
            answered = client.infer("visits", given).as_numpy("probabilities")
            assert np.abs(answered - wanted).max() < 1e-6


@pytest.mark.parametrize("binary", [True, False])
def test_options_of_tritons_client_have_their_effect(images: Served, binary: bool) -> None:
    import tritonclient.http as triton
    from tritonclient.utils import InferenceServerException

    pixels = np.array(ROWS["image"][:5], np.uint8)
    scores = np.array(images.ask("/invocations", {"inputs": ROWS["image"][:5]})[1]["predictions"], np.float32)
    client = triton.InferenceServerClient(f"{HOST}:{images.port}")

    def infer(class_count: int = 0, **options: Any) -> Any:
        given = triton.InferInput("pixels", pixels.shape, "UINT8")
        given.set_data_from_numpy(pixels, binary_data=binary)
        wanted = triton.InferRequestedOutput("probabilities", binary_data=binary, class_count=class_count)
        return client.infer("image", [given], outputs=[wanted], **options).as_numpy("probabilities")

    with closing(client):
        assert infer(timeout=5_000_000).tobytes() == scores.tobytes()
        assert infer(priority=1).tobytes() == scores.tobytes()
        packed = infer(request_compression_algorithm="gzip", response_compression_algorithm="gzip")
        assert packed.tobytes() == scores.tobytes()
        with pytest.raises(InferenceServerException, match=r"\[503\] .*within the deadline"):
            infer(timeout=1)  # a microsecond
        with pytest.raises(InferenceServerException, match=r"outputs\[0\]\.parameters\.classification: unknown field"):
            infer(class_count=2)
    assert images.get("/v2")[1]["extensions"] == ["binary_tensor_data", "schedule_policy"]


@pytest.mark.parametrize(
    ("coding", "pack"),
    [
        ("gzip", gzip.compress),
        ("X-Gzip", gzip.compress),
        ("gzip", lambda body: gzip.compress(body[:99]) + gzip.compress(body[99:])),  # two members
        ("identity", bytes),
    ],
)
def test_compressed_requests_are_answered(images: Served, coding: str, pack: Callable[[bytes], bytes]) -> None:
    body = json.dumps({"input": ROWS["image"][:2]}).encode()
    wanted = images.ask("/v1/predict", body)[1]["predictions"]
    status, answer, _ = images.ask("/v1/predict", pack(body), Content_Encoding=coding)
    assert (status, answer.get("predictions")) == (200, wanted), answer


@pytest.mark.parametrize(
    ("coding", "body", "status", "message"),
    [
        ("br", b"{}", 415, "Content-Encoding: found 'br'; allowed: gzip, or none"),
        ("gzip, gzip", b"{}", 415, "allowed: gzip"),
        ("gzip", b'{"input": []}', 400, "the body is not gzip: "),
        ("gzip", gzip.compress(b'{"input": []}', mtime=0)[:-8], 400, "the body is cut off"),
        ("gzip", b"", 400, "the body is cut off"),
        ("gzip", gzip.compress(b" " * 1_048_577, mtime=0), 413, "the body is larger than 1 MiB"),
        ("gzip", gzip.compress(b" " * 1_048_576, mtime=0), 400, "the body is not JSON"),
    ],
)
def test_bad_compressed_body_is_refused_by_name(
    small: Served, coding: str, body: bytes, status: int, message: str
) -> None:
    code, answer, headers = small.ask("/v1/predict", body, Content_Encoding=coding)
    assert (code, message in answer["error"]) == (status, True), answer
    assert (headers.get("accept-encoding") == "gzip") == (status == 415)


def test_large_answers_are_compressed_for_clients_that_accept_it(images: Served) -> None:
    import requests

    rows = ROWS["image"] * 100
    whole = None
    for accepted, coding in (
        ("gzip;q=0", None),
        ("identity", None),
        ("gzip", "gzip"),
        ("deflate", None),
        ("br, *;q=0.5", "gzip"),
    ):
        answer = requests.post(
            images.url("/invocations"), json={"inputs": rows}, headers={"Accept-Encoding": accepted}, timeout=60
        )
        assert answer.headers.get("Content-Encoding") == coding
        whole = whole or answer.content
        assert answer.content == whole
    assert len(json.loads(whole or b"")["predictions"]) == 4000


@pytest.mark.parametrize("path", ["/v1/predict", INFER, "/v1/labels", "/v1/explain"])
def test_too_long_body_is_refused_before_100_continue(images: Served, path: str) -> None:
    head = f"POST {path} HTTP/1.1\r\nHost: {HOST}:{images.port}\r\nContent-Type: application/json\r\n"
    head += f"Expect: 100-continue\r\nContent-Length: {99 << 20}\r\n\r\n"
    with socket.create_connection((HOST, images.port)) as connection, connection.makefile("rb") as answer:
        connection.sendall(head.encode())
        assert answer.readline() == b"HTTP/1.1 413 Request Entity Too Large\r\n"
        assert b"larger than 16 MiB (serving.body_mib)" in answer.read()  # the server closes the connection


@pytest.mark.parametrize("connection", ["keep-alive", "close"])
@pytest.mark.parametrize(
    "path",
    ["/v1/predict", "/invocations", INFER, INFER.replace("/infer", "/versions/1/infer"), "/v1/labels", "/v1/explain"],
)
def test_too_long_body_is_refused_before_it_comes(images: Served, path: str, connection: str) -> None:
    """The client gets the whole answer before it sends a byte of the body, and may send the body afterwards."""
    size = 17 << 20
    head = f"POST {path} HTTP/1.1\r\nHost: {HOST}:{images.port}\r\nContent-Type: application/json\r\n"
    head += f"Connection: {connection}\r\nContent-Length: {size}\r\n\r\n"
    with socket.create_connection((HOST, images.port)) as stream, stream.makefile("rb") as answer:
        stream.sendall(head.encode())
        assert answer.readline() == b"HTTP/1.1 413 Request Entity Too Large\r\n"
        headers = dict(line.rstrip().split(b": ") for line in iter(answer.readline, b"\r\n"))
        assert b"larger than 16 MiB (serving.body_mib)" in answer.read(int(headers[b"content-length"]))
        stream.sendall(b" " * size)
        if connection == "keep-alive":
            stream.sendall(f"GET /health HTTP/1.1\r\nHost: {HOST}:{images.port}\r\n\r\n".encode())
            assert answer.readline() == b"HTTP/1.1 200 OK\r\n"
        else:
            assert answer.read() == b""


def test_generated_text_is_that_of_mlflows_loader(tokens: Served) -> None:
    served, prompts = tokens, ["To be", "Alas"]
    options = {"max_tokens": 20, "temperature": 0.0}
    own = served.ask("/v1/predict", {"input": prompts, "options": options})[1]["predictions"]
    theirs = served.ask("/invocations", {"inputs": prompts, "params": options})[1]["predictions"]
    infer = {"inputs": tensors("text", prompts), "parameters": options}
    third = served.ask("/v2/models/tokens/infer", infer)[1]["outputs"][0]["data"]
    assert [answer["text"] for answer in own] == theirs == third
    status, answer, _ = served.ask("/v1/predict", {"input": prompts, "options": {"max_tokens": 10_000_001}})
    assert (status, answer["error"]) == (
        400,
        "max_tokens: found 10000001; allowed: up to 10000000 (serving.tokens)",
    )


def test_long_generation_ends_at_its_deadline(tokens: Served) -> None:
    served = tokens
    much = {"input": ["To be"] * 1000, "options": {"max_tokens": 512}}
    status, answer, _ = served.ask("/v1/predict", much, Ratchet_Deadline="1")  # refused before the first token
    assert (status, "found 1000 prompts with up to 512 tokens each" in answer["error"]) == (413, True)
    long = {"input": ["To be"], "options": {"max_tokens": 100_000}}
    status, answer, _ = served.ask("/v1/predict", long, Ratchet_Deadline="1")
    assert (status, answer["error"]) == (503, "it was not answered within the deadline")
    status, answer, _ = served.ask("/v1/predict", {"input": ["To be"], "options": {"max_tokens": 5}})
    assert (status, len(answer["predictions"])) == (200, 1)


def events_of(answer: Any) -> Iterator[tuple[str, Any]]:
    """The server-sent events of a response: name and data."""
    name = ""
    for line in map(bytes.decode, answer):
        if line.startswith("event: "):
            name = line[7:].strip()
        elif line.startswith("data: "):
            yield name, json.loads(line[6:])
            name = ""


def stream(served: Served, prompt: str, **options: Any) -> Any:
    body = {"input": [prompt], "options": {"stream": True, **options}}
    request = urllib.request.Request(
        served.url("/v1/predict"), json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    return urllib.request.urlopen(request)


def test_streamed_text_is_that_of_a_whole_answer(tokens: Served) -> None:
    served, options = tokens, {"max_tokens": 60, "seed": 7}
    _, whole, _ = served.ask("/v1/predict", {"input": ["To be"], "options": options})
    with stream(served, "To be", **options) as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        *pieces, (name, last) = events_of(answer)
    assert len(pieces) > 10
    assert "".join(data["text"] for _, data in pieces) == whole["predictions"][0]["text"]
    assert name == "end"
    assert last | {"id": whole["id"]} == whole
    for prompts, changed, message in (
        (["a", "b"], {}, "options.stream: found 2 prompts; allowed: 1"),
        (["a"], {"stream": 1}, "options.stream: found 1; allowed: true, false"),
        (["a"], {"max_tokens": 10_000_001}, "max_tokens: found 10000001; allowed: up to 10000000"),
        ([""], {}, "the prompt is empty"),
    ):
        body = {"input": prompts, "options": {"stream": True} | changed}
        status, answer, _ = served.ask("/v1/predict", body)
        assert (status, message in answer["error"]) == (400, True)


def test_generation_ends_with_its_client_or_deadline(tokens: Served) -> None:
    served = tokens
    with stream(served, "To be", max_tokens=10_000_000) as answer:
        next(events_of(answer))
    ask = {"input": ["To be"], "options": {"max_tokens": 5}}
    until(lambda: served.ask("/v1/predict", ask)[0] == 200)  # busy until the server sees that the client has gone
    body = json.dumps({"input": ["To be"], "options": {"stream": True, "max_tokens": 100_000}}).encode()
    headers = {"Content-Type": "application/json", "Ratchet-Deadline": "3"}
    with urllib.request.urlopen(urllib.request.Request(served.url("/v1/predict"), body, headers)) as answer:
        *_, last = events_of(answer)
    assert last == ("error", {"error": "it was not answered within the deadline"})


def test_generations_end_when_their_clients_leave(tokens: Served) -> None:
    served = tokens
    body = json.dumps({"input": ["To be"], "options": {"max_tokens": 10_000_000}}).encode()
    head = f"POST /v1/predict HTTP/1.1\r\nHost: {HOST}:{served.port}\r\nContent-Type: application/json\r\n"
    for _ in range(6):
        with socket.create_connection((HOST, served.port)) as client:
            client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            assert served.get("/health")[0] == 200
    ask = {"input": ["To be"], "options": {"max_tokens": 5}}
    until(lambda: served.ask("/v1/predict", ask)[0] == 200)


def test_server_ends_though_its_model_hangs(serve: Callable[..., Served], registry: Served) -> None:
    add_own(registry, "hung", '__import__("threading").Event().wait()', model="hung")
    served = serve("hung", deadline=2.0)  # `model_server` waits for its end
    for _ in range(2):
        status, answer, _ = served.ask("/v1/predict", {"input": WHITE})
        assert (status, "deadline" in answer["error"] or "busy" in answer["error"]) == (503, True)
    assert served.get("/health")[1]["status"] == "live"


def test_image_file_is_decoded_as_by_ingest(images: Served) -> None:
    from ratchet.data.reading.pixels import to_pixels

    image = Image.fromarray(RANDOM.integers(0, 256, (30, 20, 3), dtype=np.uint8))
    file = io.BytesIO()
    image.save(file, "PNG")
    pixels = to_pixels(Image.open(io.BytesIO(file.getvalue())), size=8, channels=3)
    encoded = {"b64": base64.b64encode(file.getvalue()).decode()}
    by_file = images.ask("/v1/predict", {"input": [encoded]})[1]["predictions"]
    assert by_file == images.ask("/v1/predict", {"input": [pixels.tolist()]})[1]["predictions"]


def test_hostile_image_files_fill_no_log(images: Served) -> None:
    """Pillow warns of many pixels once for each size, and libtiff prints what it finds."""
    log = images.workspace.root / f"serve-{images.port}.log"
    before = len(log.read_text())
    files = [png_header(10_000 + number, 10_000) for number in range(4)]
    tiff = io.BytesIO()
    Image.fromarray(RANDOM.integers(0, 256, (40, 40, 3), np.uint8)).save(tiff, "TIFF", compression="tiff_lzw")
    damaged = bytearray(tiff.getvalue())
    damaged[200:1200] = b"\xff" * 1000
    files += [bytes(damaged)] * 3
    for content in files:
        status, answer, _ = images.ask("/v1/predict", {"input": [{"b64": base64.b64encode(content).decode()}]})
        assert status == 400, answer
    lines = log.read_text()[before:].splitlines()
    assert [line for line in lines if not re.match(r"[\d-]{10}T[\d:]{8}[+-]\d{4} ", line)] == []
    assert "pixels" not in "".join(lines)


def test_alias_is_followed_and_a_damaged_version_never_answers(serve: Callable[..., Served], registry: Served) -> None:
    """Requests run all the time; each answer equals that of the version it names."""
    registry.add("moving", SPECS["image"])
    served, rows = serve("moving", poll=0.3), ROWS["image"][:3]
    known = {"1": expected(served, "moving", rows)}
    given: list[tuple[str, Any]] = []
    stop = threading.Event()

    def load() -> None:
        while not stop.is_set():
            status, answer, headers = served.ask("/invocations", {"inputs": rows})
            assert status == 200, answer
            given.append((headers["ratchet-version"].partition("/")[2], answer["predictions"]))

    def state() -> dict[str, Any]:
        about: dict[str, Any] = served.get("/v1/models")[1]["models"][0]
        return about

    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(load) for _ in range(2)]
        try:
            second = served.add("moving", SPECS["image"], seed=2)
            known[second] = expected(served, "moving", rows, second)
            served.promote("moving", second)
            until(lambda: state()["version"] == second)
            third = served.add("moving", SPECS["image"], seed=3)
            [weights] = [
                path
                for path in served.workspace.mlruns.rglob("model.safetensors")
                if served.registry.find(f"moving/{third}").run_id in (path.parents[2] / "MLmodel").read_text()
            ]
            weights.write_bytes(weights.read_bytes()[:-1] + b"x")
            served.promote("moving", third)
            until(lambda: state()["problem"])
            served.promote("moving", "1")
            until(lambda: state()["version"] == "1")
        finally:
            stop.set()
        for job in jobs:
            job.result()
    assert {version for version, _ in given} == {"1", second}
    for version, predictions in given:
        assert np.abs(np.array(predictions) - known[version]).max() < 1e-5


@pytest.mark.parametrize(
    ("path", "content", "status", "message"),
    [
        ("/v1/predict", b"{", 400, "the body is not JSON"),
        ("/v1/predict", [1], 400, "the body: allowed: a JSON object"),
        ("/v1/predict", {}, 400, "input: is missing"),
        ("/v1/predict", {"inptu": []}, 400, "inptu: unknown field; allowed: input, model, options"),
        ("/v1/predict", {"input": [], "model": "cats"}, 400, "model: found 'cats'; allowed: image"),
        ("/v1/predict", {"input": [[1, [2]]]}, 400, "input: found shape [1, 2]; allowed"),
        ("/v1/predict", {"input": [[[["a"] * 3] * 8] * 8]}, 400, "input: has other values; allowed"),
        ("/v1/predict", {"input": [[[[256] * 3] * 8] * 8]}, 400, "input: has other values; allowed"),
        ("/v1/predict", {"input": [[[[0.5] * 3] * 8] * 8]}, 400, "input: has other values; allowed"),
        ("/v1/predict", {"input": [{"b64": "%"}]}, 400, "input[0].b64: is not base64"),
        ("/v1/predict", {"input": [{"b64": "AAAA"}]}, 400, "input[0]: is not an image that can be read"),
        ("/v1/predict", {"input": [], "options": {"top_k": 0}}, 400, "options.top_k: found 0"),
        ("/v1/predict", b'{"input": [NaN]}', 400, "input: found shape [1]"),
        ("/v1/predict", b'{"input": [-Infinity]}', 400, "the body: found -Infinity; allowed: finite numbers"),
        ("/v1/predict", b'{"input": [NaN], "model": "\\ud800"}', 400, "the body is not JSON"),
        ("/v1/predict", b'NaN' + b"[" * 100_000, 400, "the body is not JSON"),
        ("/v1/predict", b"[" * 100_000, 400, "the body is not JSON"),
        ("/v1/predict", {"input": [[[[0] * 3] * 8] * 8] * 5}, 413, "found 5 rows; allowed: 4"),
        ("/v1/predict", b" " * 1_200_000, 413, "the body is larger than 1 MiB"),
        ("/invocations", {"inputs": [], "instances": []}, 400, "allowed: exactly one of"),
        ("/invocations", {"dataframe_split": {"columns": ["a"], "data": [[1, 2]]}}, 400, "dataframe_split.data"),
        ("/v2/models/image/infer", {"inputs": []}, 400, "inputs: allowed: a list of tensors"),
        ("/v2/models/image/infer", {"inputs": [{"name": "pixels", "shape": [-1], "datatype": "UINT8", "data": []}]},
         400, "inputs[0].shape: found [-1]"),
        ("/v2/models/image/infer", {"inputs": [{"name": "pixels", "shape": [9], "datatype": "FP99", "data": []}]},
         400, "inputs[0].datatype: found 'FP99'"),
        ("/v2/models/image/infer", {"inputs": [{"name": "pixels", "shape": [9], "datatype": "UINT8", "data": [1]}]},
         400, "inputs[0]: found 1 values"),
        ("/v2/models/image/infer", {"inputs": [{"name": "p", "shape": [1], "datatype": "UINT8", "data": [1]}]},
         400, "inputs: found p; allowed: pixels"),
        (INFER, {"inputs": [TENSOR | {"shape": [1] * 99}]}, 400, "inputs[0].shape: allowed: a list of 1 to 8"),
        (INFER, {"inputs": [TENSOR | {"shape": [0, *[2**31 - 1] * 7], "data": []}]}, 400, "which is too large"),
        (INFER, {"inputs": [TENSOR | {"shape": [2], "data": [256, 0.5]}]}, 400, "has values that are not UINT8"),
        (INFER, {"inputs": [TENSOR], "parameters": {"foo": 1}}, 400, "parameters.foo: unknown field"),
        (INFER, {"inputs": [TENSOR], "parameters": {"priority": -1}}, 400, "priority: found -1; allowed: a whole"),
        ("/invocations", {"inputs": [], "params": 5}, 400, "params: allowed: an object"),
        ("/v2/models/other/infer", {"inputs": []}, 404, "found other; served is image/"),
        ("/v2/models/image/versions/99/infer", {"inputs": []}, 404, "found image/99"),
    ],
)  # fmt: skip
def test_bad_request_is_refused_by_name(small: Served, path: str, content: Any, status: int, message: str) -> None:
    code, answer, _ = small.ask(path, content)
    assert (code, message in answer["error"]) == (status, True), answer


MARKS = "a" + "\u0301\u0316" * 10_000
LONG = ["a" * 600_000, "b" * 400_001]
EXPANDS = ["\ufdfa" * 60_000]  # each has 18 characters in the Unicode form NFKC
TOO_MANY = "found more than 1,000,000 characters in "


@pytest.mark.parametrize(
    ("texts", "status", "message"),
    [
        (LONG, 413, f"{TOO_MANY}2 of 2 texts; allowed: 1,000,000 in one request. Fix: send fewer or shorter texts"),
        (EXPANDS, 413, f"{TOO_MANY}1 of 1 texts"),
        (["a", MARKS], 400, "[1]: found 128 combining marks in a row; allowed: up to 127"),
    ],
)
@pytest.mark.parametrize("name", ["text", "tokens"])
def test_too_long_texts_are_refused_in_every_format(
    shared: Callable[[str], Served], name: str, texts: list[str], status: int, message: str
) -> None:
    """One call of a tokenizer would stop the whole server."""
    served = shared(name)
    infer = {"inputs": tensors("text", texts)}
    for path, content in (
        ("/v1/predict", {"input": texts}),
        ("/invocations", {"inputs": texts}),
        (f"/v2/models/{name}/infer", infer),
    ):
        code, answer, _ = served.ask(path, content)
        assert (code, message in answer["error"]) == (status, True), (path, answer["error"][:300])


def test_long_texts_up_to_the_limit_are_answered(shared: Callable[[str], Served]) -> None:
    texts = ["a " * 450_000, "é" + "\u0301" * 127, "\ufdfa" * 5_000]
    status, answer, _ = shared("text").ask("/v1/predict", {"input": texts})
    assert (status, len(answer["predictions"])) == (200, 3)
    for text, code in (("one two " + "a" * 99_992, 200), ("one two " + "a" * 99_993, 413)):
        status, answer, _ = shared("text").ask("/v1/explain", {"input": [text]})
        assert status == code, answer
    assert "found more than 100,000 characters in 1 of 1 texts" in answer["error"]


def test_a_column_name_of_marks_is_refused(tables: Served) -> None:
    status, answer, _ = tables.ask("/v1/predict", {"input": [ROWS["table"][0] | {MARKS: 1}]})
    assert (status, "input: unknown column 'a\u0301" in answer["error"]) == (400, True)
    assert len(answer["error"]) < 600


@pytest.fixture(scope="module")
def small(registry: Served) -> Iterator[Served]:
    """A server with low limits."""
    with model_server(registry, "image", rows=4, body_mib=1.0) as served:
        yield served


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"age": 1, "fare": 2}], "the rows have no column 'class'"),
        ([{"age": 1, "fare": 2, "class": "first", "sex": 1}], "unknown column 'sex'; allowed: age, class, fare"),
        ([{"age": "old", "fare": 2, "class": "first"}], "column 'age': 'old' is no number"),
        ([{"age": [1], "fare": 2, "class": "first"}], "input[0].age: found a list"),
        ([{"age": 1, "fare": 2, "class": "first"}, {"age": 1}], "input[1]: has no 'fare'"),
        ("text", "input: found a text; allowed: a list of objects"),
        ([{}, {}], "input[0]: has no columns"),
        ({"age": "12", "fare": "34"}, "input: allowed: an object of lists that have one length"),
        ([{"age": 1, "fare": 2, "class": "a"}, {"age": "1", "fare": 2, "class": "a"}], "has values of several types"),
    ],
)
def test_bad_row_of_a_table_is_refused_by_name(tables: Served, rows: Any, message: str) -> None:
    status, answer, _ = tables.ask("/v1/predict", {"input": rows})
    assert (status, message in answer["error"]) == (400, True), answer


def test_unknown_path_and_method_are_refused_as_json(images: Served) -> None:
    assert images.get("/v1/predikt") == (404, {"error": "/v1/predikt: unknown path; /openapi.json lists them"})
    assert images.get("/v1/predict") == (405, {"error": "GET /v1/predict; allowed: POST"})


def test_too_short_deadline_is_refused_with_the_time_to_wait(images: Served) -> None:
    rows = ROWS["image"] * 25
    assert images.ask("/invocations", {"inputs": rows})[0] == 200  # so that the server knows how long it takes
    status, answer, headers = images.ask("/invocations", {"inputs": rows}, Ratchet_Deadline="0.000001")
    assert (status, int(headers["retry-after"]) >= 1) == (503, True), answer
    status, answer, _ = images.ask("/invocations", {"inputs": rows[:1]}, Ratchet_Deadline="soon")
    assert (status, "Ratchet-Deadline: found 'soon'" in answer["error"]) == (400, True)


def test_pages_of_other_origins_are_refused(images: Served) -> None:
    status, answer, _ = images.ask("/v2/models/image/infer", b"{}", Origin="http://evil.example")
    assert (status, "not a page of this server" in answer["error"]) == (403, True)


@pytest.fixture
def key(images: Served) -> Iterator[str]:
    key = images.project.good("ratchet", "keys", "add", "anna").strip()
    yield key
    images.project.good("ratchet", "keys", "off")
    until(lambda: images.get("/v1/models")[0] == 200)


def test_a_key_is_asked_for_once_there_is_one(images: Served, key: str) -> None:
    from tritonclient.http import InferenceServerClient, InferInput
    from tritonclient.utils import InferenceServerException

    question = {"inputs": ROWS["image"][:1]}
    until(lambda: images.ask("/invocations", question)[0] == 401)  # without another start
    assert images.ask("/invocations", question, Authorization=f"Bearer {key}x")[0] == 401
    assert images.ask("/invocations", question, Authorization=f"Basic {key}")[0] == 401
    status, _, headers = images.ask("/v1/predict", {"input": ROWS["image"][:1]})
    assert (status, headers["www-authenticate"]) == (401, 'Bearer realm="Ratchet"')
    assert [images.get(path)[0] for path in ("/health", "/ready", "/v1/models")] == [200, 200, 401]

    client = InferenceServerClient(f"{HOST}:{images.port}")
    tensor = InferInput("pixels", [1, 8, 8, 3], "UINT8").set_data_from_numpy(np.array(ROWS["image"][:1], np.uint8))
    with pytest.raises(InferenceServerException, match="no valid key"):
        client.infer("image", [tensor])
    client.infer("image", [tensor], headers={"Authorization": f"Bearer {key}"})

    path = images.workspace.state / "keys.json"
    assert (path.stat().st_mode & 0o777, key in path.read_text()) == (0o600, False)
    assert images.project.good("ratchet", "keys", "list").startswith("anna: made ")
    images.project.good("ratchet", "keys", "remove", "anna")
    given = {"Authorization": f"Bearer {key}"}
    until(lambda: images.ask("/invocations", question, **given)[0] == 401)
    assert images.ask("/invocations", question)[0] == 401
    images.project.good("ratchet", "keys", "off")
    until(lambda: images.ask("/invocations", question)[0] == 200)


def test_key_with_a_wrong_name_is_refused(images: Served, key: str) -> None:
    output = images.project.refused("ratchet", "keys", "add", "anna")
    assert "there is a key 'anna'. Fix: another name, or `ratchet keys remove anna` first" in output
    assert "found the name 'a b'; allowed: up to 64" in images.project.refused("ratchet", "keys", "add", "a b")
    assert "there is no key 'bob'; there are anna" in images.project.refused("ratchet", "keys", "remove", "bob")


def test_beyond_loopback_a_key_is_needed(images: Served) -> None:
    settings.override(images.workspace.params, {"platform.host": "0.0.0.0"})
    try:
        output = images.project.refused("ratchet", "serve")
    finally:
        settings.override(images.workspace.params, {"platform.host": HOST})
    assert "platform.host: 0.0.0.0 lets other machines ask the model server" in output
    assert "Fix: `ratchet keys add NAME`" in output


def test_answers_are_logged_and_traced(tables: Served) -> None:
    served = tables
    status, answer, _ = served.ask("/v1/predict", {"input": ROWS["table"][:2]})
    assert status == 200
    _, other, _ = served.ask("/v2/models/table/infer", {"inputs": tensors("table", ROWS["table"][:1])})
    folder = log_folder(served.workspace)
    until(lambda: len(find(folder, other["id"])))
    rows = read(folder).filter(answer=answer["id"])
    assert rows["version"].to_list() == ["1", "1"]
    prices = [np.float32(row["values"]["price"]) for row in answer["predictions"]]
    assert prices == [np.float32(row[0]) for row in rows["prediction"]]
    assert rows["input.numbers"].to_list()[0][0] == pytest.approx(ROWS["table"][0]["age"])
    assert find(folder, other["id"])["envelope"].to_list() == ["v2"]


def sketch(served: Served, version: str) -> WindowSketch:
    """Return the counts of a version."""
    windows = read_sketches(sketch_folder(log_folder(served.workspace)), 0, 1 << 40, window=300)
    return sum((each for each in windows if each.version == version), WindowSketch(version, 0))


def test_inputs_and_refusals_are_counted_without_being_kept(serve: Callable[..., Served]) -> None:
    served = serve("table", log_inputs="none")
    before, content = sketch(served, "table/1"), {"input": ROWS["table"][:2] * 100}  # enough rows to make bins
    _, answer, _ = served.ask("/v1/predict", content)
    served.ask("/v1/predict", content)  # a client sends it again
    for wrong in ({"input": "wrong"}, {"input": 7}, {"rows": 3}):
        assert served.ask("/v1/predict", wrong)[0] == 400
    folder = log_folder(served.workspace)
    until(lambda: len(find(folder, answer["id"])))
    until(lambda: sketch(served, "table/1").rows > before.rows)
    after = sketch(served, "table/1")
    added = {name: number - before.requests.get(name, 0) for name, number in after.requests.items()}
    assert added | {"repeated": 1, "logged": 2, "answered": 2, "refused (400)": 3} == added
    assert (after.rows - before.rows, sum(after.counts["input.age"])) == (200, after.rows)
    rows = read(folder).filter(answer=answer["id"])
    assert rows["source"].to_list() == ["model"] * 200
    assert rows["input_sha256"].null_count() == 200


def test_labels_join_their_answers(images: Served) -> None:
    served = images
    _, answer, _ = served.ask("/v1/predict", {"input": ROWS["image"][:2]})
    folder = log_folder(served.workspace)
    until(lambda: len(find(folder, answer["id"])))
    right = [row["class"] for row in answer["predictions"]]
    labels = [{"id": answer["id"], "row": row, "label": label} for row, label in enumerate(right)]
    assert served.ask("/v1/labels", {"labels": labels})[:2] == (200, {"new": 2, "corrected": 0, "known": 0})
    assert served.ask("/v1/labels", {"labels": labels})[1] == {"new": 0, "corrected": 0, "known": 2}
    wrong = labels[1] | {"label": next(name for name in ANIMALS.names if name != right[1])}
    assert served.ask("/v1/labels", {"labels": [wrong]})[1] == {"new": 0, "corrected": 1, "known": 0}
    refusals = [
        (404, labels[0] | {"id": "f" * 32}, "not in the log"),
        (404, labels[0] | {"row": 2}, "not in the log"),
        (400, labels[0] | {"label": "dog"}, "found 'dog'; allowed: ant, bee, cat"),
        (400, labels[0] | {"row": -1}, "row -1; allowed"),
        (400, {"id": answer["id"]}, "labels[0]: allowed: id, row and label"),
    ]
    for status, entry, message in refusals:
        refused = served.ask("/v1/labels", {"labels": [entry]})
        assert (refused[0], message in refused[1]["error"]) == (status, True), refused
    assert served.ask("/v1/labels", b"[")[0] == 400
    assert "2 labels, accuracy 50.0%" in served.project.good("ratchet", "requests")


@pytest.mark.parametrize("name", ["image", "table", "labels", "text"])
def test_files_get_the_answers_of_the_server(registry: Served, shared: Callable[[str], Served], name: str) -> None:
    served, folder = shared(name), registry.workspace.root / "files"
    rows, column = ROWS[name][:30], ["--column", "words"] if name == "text" else []
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{name}.csv"]
    if name == "image":
        paths = [folder / f"{number:02}.png" for number in range(30)]
        for path, pixels in zip(paths, rows, strict=True):
            Image.fromarray(np.array(pixels, np.uint8)).save(path)
    elif name == "text":
        pl.DataFrame({"words": rows, "other": 1}).write_csv(paths[0])
    else:
        pl.DataFrame(rows).with_columns(price=pl.lit(1.0)).write_csv(paths[0])
    out = folder / f"{name}-answers.parquet"
    served.project.good(
        "ratchet", "predict", *map(str, paths), "--model", f"{name}@champion", "--out", str(out), *column
    )
    answers = pl.read_parquet(out)
    assert answers["refused"].null_count() == len(answers) == 30
    assert set(answers["version"]) == {"1"}
    for row, answer in zip(rows, answers.iter_rows(named=True), strict=True):
        (alone,) = served.ask("/invocations", {"inputs": [row]})[1]["predictions"]
        expected = [max(alone)] if "class" in answer else alone
        names = ["probability"] if "class" in answer else SPECS[name].target.names
        assert [np.float32(answer[name]) for name in names] == [np.float32(value) for value in expected]


def test_bad_files_are_named_and_the_others_scored(registry: Served) -> None:
    folder = registry.workspace.root / "some bad"
    folder.mkdir()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(folder / "good.png")
    (folder / "cut-off.png").write_bytes((folder / "good.png").read_bytes()[:40])
    out = registry.workspace.root / "answers.csv"
    output = registry.project.good("ratchet", "predict", str(folder), "--model", "image@champion", "--out", str(out))
    first, second = pl.read_csv(out).iter_rows(named=True)
    assert (first["class"], second["refused"]) == (None, None)
    assert first["refused"].startswith("is not an image that can be read")
    assert "1 of 2 rows answered by image version 1" in output
    (folder / "good.png").unlink()
    registry.project.refused("ratchet", "predict", str(folder), "--model", "image@champion", "--out", str(out))
    table = folder / "rows.csv"
    table.write_text("age,fare,class\n31,8,first\nold,8,first\n,,\n5,first\n")
    registry.project.good("ratchet", "predict", str(table), "--model", "table@champion", "--out", str(out))
    answers = pl.read_csv(out)
    assert answers["row"].to_list() == [1, 2, 3, 4]
    assert [answer is None for answer in answers["price"]] == [False, True, False, True]
    assert [reason is None for reason in answers["refused"]] == [True, False, True, False]
    assert answers["refused"][3] == "line 5 has 2 cells, the header has 3"
    table.write_text("age,class\n31,first\n")
    output = registry.project.refused("ratchet", "predict", str(table), "--model", "table@champion")
    assert f"{table}: has no column 'fare'; it has age, class" in output
    good = folder / "more.csv"
    good.write_text("age,fare,class\n31,8,first\n")
    missing, inputs = folder / "missing.csv", ["--model", "table@champion", "--out", str(out)]
    output = registry.project.refused("ratchet", "predict", str(missing), str(table), str(good), *inputs)
    assert f"ratchet: {missing}: there is no such file or folder\nratchet: {table}: has no column 'fare'" in output
    assert "1 of 1 rows answered by table version 1; 2 of the files could not be read, see above" in output
    assert pl.read_csv(out)["file"].to_list() == [str(good)]
    before = out.read_bytes()
    registry.project.refused("ratchet", "predict", str(missing), str(table), *inputs)
    assert out.read_bytes() == before
    output = registry.project.refused("ratchet", "predict", str(table), "--out", "answers.txt")
    assert "allowed: a file that ends in .csv, .parquet, .jsonl" in output


def test_overload_is_answered_by_cache_and_fallback(serve: Callable[..., Served], registry: Served) -> None:
    registry.add("small", ModelSpec("resnet", SPECS["image"].input, ANIMALS))
    served = serve("image", queue=200, fallback="small@champion", deadline=10.0)
    rows = [RANDOM.integers(0, 256, (200, 8, 8, 3)).tolist() for _ in range(3)]
    bodies = [
        json.dumps({"input": part}).encode() for part in rows
    ]  # once, so that the clients are faster than the model
    alone = [served.ask("/v1/predict", body)[1] for body in bodies]
    smaller = [expected(served, "small", part) for part in rows]

    def ask(number: int) -> tuple[int, int, Any]:
        part = number % len(rows)
        status, answer, _ = served.ask("/v1/predict", bodies[part])
        return part, status, answer

    seen = set()
    with ThreadPoolExecutor(24) as clients:
        for part, status, answer in clients.map(ask, range(240)):
            seen.add(answer.get("instead", "") if status == 200 else str(status))
            if status != 200:
                assert (status, "busy" in answer["error"]) == (503, True)
            elif answer.get("instead") == "fallback":
                assert (answer["model"], answer["version"]) == ("small", "1")
                probabilities = np.array([row["probability"] for row in answer["predictions"]])
                np.testing.assert_allclose(probabilities, smaller[part].max(1), atol=1e-5)
            else:
                assert (answer["model"], answer["predictions"]) == ("image", alone[part]["predictions"])
    assert {"", "cache"} <= seen
    until(lambda: sketch(served, "image/1").requests.get("cache"))
    assert set(read(log_folder(served.workspace)).filter(pl.col("model") == "image")["source"]) >= {"model", "cache"}


@pytest.mark.parametrize("name", ["image", "table"])
def test_shadow_answers_go_to_the_log_only(serve: Callable[..., Served], registry: Served, name: str) -> None:
    if name == "image":
        registry.add("shadow", ModelSpec("resnet", SPECS["image"].input, ANIMALS))
    else:
        encoded = SPECS["table"].input
        columns = tuple(reversed(encoded.columns))  # other places in the arrays
        registry.add("shadow-table", replace(SPECS["table"], input=replace(encoded, columns=columns)))
    shadow = "shadow" if name == "image" else "shadow-table"
    served = serve(name, shadow=f"{shadow}@champion", log_columns=["class", "age"])
    until(lambda: served.get("/v1/models")[1]["models"][0].get("shadow"))
    alone = served.ask("/v1/predict", {"input": ROWS[name][:4]})[1]
    assert (alone["model"], alone["version"]) == (name, "1")
    folder = log_folder(served.workspace)

    def logged() -> Any:
        rows = read_shadow(folder)
        return rows if rows.is_empty() else rows.filter(pl.col("answer") == alone["id"])

    until(lambda: len(logged()) == 4)
    assert set(logged()["model"]) == {shadow}
    answers = np.array(logged()["prediction"].to_list(), np.float32)
    np.testing.assert_allclose(answers, expected(served, shadow, ROWS[name][:4]), atol=1e-5)
    assert f"{shadow}/1 beside {name}/1  1 request, 4 rows" in served.project.good("ratchet", "shadow")
    if name == "table":
        output = served.project.good("ratchet", "shadow", "--by", "class")
        assert "class=first  1 request, 2 rows" in output
        assert "class=(not in the training rows)  1 request, 1 row" in output
    assert f"the answer {alone['id']} of {name} version 1 to 4 rows" in served.project.good(
        "ratchet", "trace", alone["id"]
    )


def test_version_of_another_kind_is_named_and_not_used(serve: Callable[..., Served]) -> None:
    served = serve("image", shadow="table@champion", canary="table@champion", fallback="table@champion")

    def problems() -> str:
        about = served.get("/v1/models")[1]["models"][0]
        return f"{served.get('/ready')[1].get('problem')} {about.get('shadow_problem')}"

    for name in ("shadow", "canary", "fallback"):
        wanted = f"serving.{name}: table version 1 has another input or target than image version 1"
        until(lambda wanted=wanted: wanted in problems())
    answers = [served.ask("/v1/predict", {"input": ROWS["image"][:1]}) for _ in range(10)]
    assert {(status, answer["model"]) for status, answer, _ in answers} == {(200, "image")}


def canary_of(served: Served) -> dict[str, Any]:
    about: dict[str, Any] = served.get("/v1/models")[1]["models"][0]["canary"]
    return about


def test_canary_answers_its_share_and_keeps_its_clients(serve: Callable[..., Served], registry: Served) -> None:
    number = registry.add("image", SPECS["image"], seed=2)
    served = serve("image", canary=f"image/{number}", canary_share=0.3, canary_latency=1000.0)
    until(lambda: canary_of(served)["version"])
    row = ROWS["image"][:1]
    answers = [served.ask("/v1/predict", {"input": row}, X_Canary_Key=f"user-{user}")[1] for user in range(100)] * 2
    again = [served.ask("/v1/predict", {"input": row}, X_Canary_Key=f"user-{user}")[1] for user in range(100)]
    assert [answer["version"] for answer in answers[:100]] == [answer["version"] for answer in again]
    share = sum(answer["version"] == number for answer in again)
    assert 12 <= share <= 50
    assert canary_of(served)["requests"] == 2 * share
    probabilities = {version: expected(served, "image", row, version).max() for version in ("1", number)}
    for answer in again:
        np.testing.assert_allclose(answer["predictions"][0]["probability"], probabilities[answer["version"]], atol=1e-5)
    mixed = {served.ask("/v1/predict", {"input": row})[1]["version"] for _ in range(60)}
    assert mixed == {"1", number}  # without a key a request is drawn
    content = {"inputs": tensors("image", row)}
    named = {served.ask("/v2/models/image/versions/1/infer", content)[1]["model_version"] for _ in range(20)}
    assert named == {"1"}
    assert f'ratchet_requests_total{{envelope="own",model="image",status="200",version="{number}"}}' in (
        urllib.request.urlopen(served.url("/metrics")).read().decode()
    )


NETWORK = """
import threading

import torch
from torch import nn


class Network(nn.Module):
    def __init__(self, classes, channels, height, width):
        super().__init__()
        self.linear = nn.Linear(channels, classes)

    def forward(self, images):
        if len(images) and float(images.amin()) > 2.0:  # white
            ACT
        return self.linear(images.mean((2, 3)))
"""
WHITE = np.full((1, 8, 8, 3), 255, np.uint8).tolist()


def add_own(registry: Served, name: str, act: str, *, model: str = "image") -> str:
    """Register a version with a network of its own, which does `act` with white images."""
    root = registry.workspace.root
    (root / f"{name}.py").write_text(NETWORK.replace("ACT", act))
    own = replace(SPECS["image"], factory=f"{name}:Network", code=f"{name}.py", root=str(root))
    return registry.add(model, own)


def ask_from(served: Served, client: int) -> int:
    """Send a white image from the loopback address of a client, and return the status."""
    address = f"127.0.{1 + client // 250}.{1 + client % 250}"
    with closing(http.client.HTTPConnection(HOST, served.port, source_address=(address, 0))) as connection:
        connection.request("POST", "/v1/predict", json.dumps({"input": WHITE}), {"Content-Type": "application/json"})
        return connection.getresponse().status


def test_failing_canary_is_withdrawn(serve: Callable[..., Served], registry: Served) -> None:
    number = add_own(registry, "fragile", 'raise RuntimeError("a white image")')
    served = serve("image", canary=f"image/{number}", canary_share=0.5, canary_latency=1000.0)
    until(lambda: canary_of(served)["version"])
    statuses = []
    while not canary_of(served)["withdrawn"]:
        statuses.append(ask_from(served, len(statuses)))
        assert len(statuses) < 500
    assert set(statuses) == {200, 500}
    assert "of its requests failed, and 0 of the served version's" in canary_of(served)["withdrawn"]
    assert served.get("/health")[1]["withdrawn"]["canary"] == f"image version {number}"
    assert {served.ask("/v1/predict", {"input": WHITE})[0] for _ in range(30)} == {200}


def test_failing_shadow_is_counted_and_compared(serve: Callable[..., Served], registry: Served) -> None:
    add_own(registry, "failing_shadow", "raise ValueError('white')", model="failing")
    served = serve("image", shadow="failing@champion")
    until(lambda: served.get("/v1/models")[1]["models"][0].get("shadow"))
    for rows in (ROWS["image"][:1], WHITE, WHITE * 2):
        assert served.ask("/v1/predict", {"input": rows})[0] == 200
    name = "ratchet_shadow_failed_requests_total"

    def failed() -> float:
        with urllib.request.urlopen(served.url("/metrics")) as answer:
            lines = answer.read().decode().splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))

    until(lambda: failed() == 2.0)
    assert "failing@champion failed: white" in served.get("/v1/models")[1]["models"][0]["shadow_problem"]
    wanted = "failing/1 beside image/1  1 request, 4 rows, 2 failed, agreement"
    until(lambda: wanted in served.project.good("ratchet", "shadow"))


def test_slow_canary_is_withdrawn(serve: Callable[..., Served], registry: Served) -> None:
    number = add_own(registry, "slow", "threading.Event().wait(0.05)")
    served = serve("image", canary=f"image/{number}", canary_share=0.5, canary_latency=1.5)
    until(lambda: canary_of(served)["version"])
    for client in range(1000):
        assert ask_from(served, client) == 200
        if canary_of(served)["withdrawn"]:
            break
    assert "times the seconds of the served version" in canary_of(served)["withdrawn"]


def png_header(width: int, height: int) -> bytes:
    """Return the beginning of a PNG file of this size."""
    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + head + struct.pack(">II", zlib.crc32(head), 9) + b"IDAT"


def png(pixels: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.array(pixels, np.uint8)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def image_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("files") / "a.png"
    path.write_bytes(png(ROWS["image"][0]))
    return path


def curl(url: str, *arguments: str) -> tuple[int, Any]:
    done = subprocess.run(["curl", "-s", "-w", "\n%{http_code}", url, *arguments], capture_output=True, check=True)
    body, _, status = done.stdout.decode().rpartition("\n")
    return int(status), json.loads(body)


def test_uploaded_files_have_the_answer_of_their_pixels(images: Served, image_file: Path) -> None:
    url = images.url("/v1/predict")
    _, expected, _ = images.ask("/v1/predict", {"input": [ROWS["image"][0]] * 2, "options": {"top_k": 2}})
    status, form = curl(
        url, "-F", f"files=@{image_file};filename=../../etc/passwd", "-F", f"file=@{image_file}", "-F", "top_k=2"
    )
    assert (status, form["predictions"]) == (200, expected["predictions"])
    status, raw = curl(url, "--data-binary", f"@{image_file}", "-H", "Content-Type: image/png")
    assert status == 200
    assert raw["predictions"][0]["class"] == expected["predictions"][0]["class"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "no end"),
        (b"--x\r\nA: b\r\n\r\nc\r\n--x--", "part 0 of the form: Field name not found in Content-Disposition; allowed"),
        (b"--x\r\nContent-Disposition: form-data\r\n\r\nc\r\n--x--", 'Content-Disposition: "form-data"; allowed'),
        (b'--x\r\nContent-Disposition: form-data; name="path"\r\n\r\n/etc/passwd\r\n--x--', "path: unknown field"),
        (b'--x\r\nContent-Disposition: form-data; name="top_k"\r\n\r\n-1\r\n--x--', "top_k: found '-1'"),
        (b'--x\r\nContent-Disposition: form-data; name="file"\r\n\r\nGIF8\r\n--x--', "input[0]: is not an image"),
        (b"--x--", "file: is missing"),
        (b'--x\r\nContent-Disposition: form-data; name="file"\r\n\r\n\r\n' * 5000, "too many parts"),
    ],
)
def test_damaged_form_is_refused_by_name(images: Served, body: bytes, message: str) -> None:
    status, answer, _ = images.ask("/v1/predict", body, Content_Type="multipart/form-data; boundary=x")
    assert status == 400
    assert message in answer["error"]


@pytest.mark.parametrize("header", ["Origin: http://evil.example", "Origin: null", "Sec-Fetch-Site: cross-site"])
def test_form_of_another_page_is_refused(images: Served, image_file: Path, header: str) -> None:
    assert curl(images.url("/v1/predict"), "-F", f"file=@{image_file}", "-H", header)[0] == 403


@pytest.mark.parametrize("name", SPECS)
def test_examples_of_the_openapi_document_are_answered(name: str, shared: Callable[[str], Served]) -> None:
    served = shared(name)
    _, document = served.get("/openapi.json")
    validate(document)
    examples = 0
    for path, methods in document["paths"].items():
        if "post" in methods and path != "/v1/labels":  # which needs the id of an answer
            body = methods["post"]["requestBody"]["content"]["application/json"]["example"]
            status, answer, _ = served.ask(path, body)
            assert status == 200, (path, answer)
            examples += 1
    assert examples == (3 if name == "tokens" else 4)


def test_explanations_name_columns_words_and_pixels(shared: Callable[[str], Served]) -> None:
    explained = {}
    for name in ("table", "text", "image"):
        served = shared(name)
        status, answer, _ = served.ask("/v1/explain", {"input": ROWS[name][4:5]})
        assert status == 200, answer
        explained[name], folder, answer_id = answer["explanation"], log_folder(served.workspace), answer["id"]
        until(lambda folder=folder, answer_id=answer_id: len(find(folder, answer_id)) == 1)
    assert {item["name"] for item in explained["table"]["contributions"]} == {"age", "fare", "class"}
    assert any(item["value"] for item in explained["table"]["contributions"])
    assert [item["name"] for item in explained["text"]["contributions"]] == ROWS["text"][4].split()
    with Image.open(io.BytesIO(base64.b64decode(explained["image"]["png"]))) as overlay:
        assert overlay.size == (8, 8)


def test_explanation_is_refused_with_its_reason(images: Served, shared: Callable[[str], Served]) -> None:
    assert images.ask("/v1/explain", {"input": ROWS["image"][:2]})[:2] == (
        400,
        {"error": "input: found 2 rows; allowed: 1 for an explanation"},
    )
    status, answer, _ = shared("tokens").ask("/v1/explain", {"input": ["a"]})
    assert status == 400
    assert "tokens have no explanations" in answer["error"]


def test_page_allows_its_own_script_only(images: Served) -> None:
    with urllib.request.urlopen(images.url("/")) as answer:
        policy, content = answer.headers["Content-Security-Policy"], answer.read().decode()
        assert answer.headers["X-Frame-Options"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in content.replace("http://www.w3.org/2000/svg", "")
