"""The model server over HTTP: three request formats, real clients, a moving alias, overload and hostile requests."""

import base64
import io
import json
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from ratchet import settings
from ratchet.kinds import Classes, Column, ImageInput, Labels, Numbers, TableInput, TextInput, TokensInput
from ratchet.kinds.targets import NextToken
from ratchet.registry.models import ModelRegistry
from ratchet.registry.runs import Run
from ratchet.servers.http import answers
from ratchet.servers.ports import free_port
from ratchet.training import ModelSpec, build, save_model

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
        folder = self.workspace.root / f"{name}-{seed}"
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            save_model(folder, build(spec).state_dict(), spec, about={"training": {}})
        run = Run(self.workspace, self.params, f"{name}-{seed}")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"torch|onnxscript|copyreg|mlflow")
            run_id = run.send()
            uri = self.registry.log_model(run_id, folder, spec)
        run.journal.close()
        number = self.registry.add_version(name, run_id, uri, tags={"ratchet.provenance": f"record-{seed}"}).number
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
    served = Served(new_project("served"))
    for name, spec in SPECS.items():
        served.add(name, spec)
    return served


@pytest.fixture(scope="module")
def serve(registry: Served) -> Iterator[Callable[..., Served]]:
    """Return a function that runs `ratchet serve` with a model, and with other settings if given."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(name: str, **changed: Any) -> Served:
        served = Served(registry.project, free_port(HOST))
        values = {"poll": 0.05, "rows": 1024, "body_mib": 16.0, "tokens": 512} | changed
        settings.override(served.workspace.params, {f"serving.{key}": value for key, value in values.items()})
        environment = served.project.environment | {"TMPDIR": str(served.project.home)}
        command = [sys.executable, "-m", "commands", "serve", "--model", f"{name}@champion", "--port", str(served.port)]
        with (served.workspace.root / f"serve-{served.port}.log").open("wb") as log:
            processes.append(
                subprocess.Popen(command, cwd=served.workspace.root, env=environment, stdout=log, stderr=log)
            )
        _until(lambda: answers(served.url("/ready")) or processes[-1].poll() is not None)
        assert processes[-1].poll() is None, Path(log.name).read_text()
        return served

    yield start
    for process in processes:
        process.terminate()
    assert {process.wait() for process in processes} == {-signal.SIGTERM}  # uvicorn ends by the signal that it got
    assert not list(registry.project.home.glob("ratchet-served-*"))


@pytest.fixture(scope="module")
def images(serve: Callable[..., Served]) -> Served:
    return serve("image")


def _until(condition: Callable[[], object]) -> None:
    ends = time.monotonic() + 300.0
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.02)


def expected(served: Served, name: str, rows: Any, version: str = "1") -> Any:
    """Return the answers of MLflow's own loader."""
    import pandas as pd

    given = np.array(rows, np.uint8) if name == "image" else pd.DataFrame(rows)
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
def test_a_row_has_the_same_bits_in_every_format(serve: Callable[..., Served], name: str) -> None:
    served, rows = serve(name), ROWS[name]
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


def test_generated_text_is_that_of_mlflows_loader(serve: Callable[..., Served]) -> None:
    served, prompts = serve("tokens", tokens=40), ["To be", "Alas"]
    options = {"max_tokens": 20, "temperature": 0.0}
    own = served.ask("/v1/predict", {"input": prompts, "options": options})[1]["predictions"]
    theirs = served.ask("/invocations", {"inputs": prompts, "params": options})[1]["predictions"]
    infer = {"inputs": tensors("text", prompts), "parameters": options}
    third = served.ask("/v2/models/tokens/infer", infer)[1]["outputs"][0]["data"]
    assert [answer["text"] for answer in own] == theirs == third
    status, answer, _ = served.ask("/v1/predict", {"input": prompts, "options": {"max_tokens": 41}})
    assert (status, answer["error"]) == (400, "max_tokens: found 41; allowed: up to 40 (serving.tokens)")


def test_image_file_is_decoded_as_by_ingest(images: Served) -> None:
    from ratchet.data.reading.pixels import to_pixels

    image = Image.fromarray(RANDOM.integers(0, 256, (30, 20, 3), dtype=np.uint8))
    file = io.BytesIO()
    image.save(file, "PNG")
    pixels = to_pixels(Image.open(io.BytesIO(file.getvalue())), size=8, channels=3)
    encoded = {"b64": base64.b64encode(file.getvalue()).decode()}
    by_file = images.ask("/v1/predict", {"input": [encoded]})[1]["predictions"]
    assert by_file == images.ask("/v1/predict", {"input": [pixels.tolist()]})[1]["predictions"]


def test_alias_is_followed_and_a_damaged_version_never_answers(serve: Callable[..., Served]) -> None:
    """Requests run all the time; each answer equals that of the version it names."""
    served = serve("image")
    rows = ROWS["image"][:3]
    known = {"1": expected(served, "image", rows)}
    given: list[tuple[str, Any]] = []
    stop = threading.Event()

    def load() -> None:
        while not stop.is_set():
            status, answer, headers = served.ask("/invocations", {"inputs": rows})
            assert status == 200, answer
            given.append((headers["ratchet-version"].partition("/")[2], answer["predictions"]))

    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(load) for _ in range(2)]
        second = served.add("image", SPECS["image"], seed=2)
        known[second] = expected(served, "image", rows, second)
        served.promote("image", second)
        _until(lambda: served.get("/v1/models")[1]["models"][0]["version"] == second)
        third = served.add("image", SPECS["image"], seed=3)
        [weights] = [
            path
            for path in served.workspace.mlruns.rglob("model.safetensors")
            if served.registry.find(f"image/{third}").run_id in (path.parents[2] / "MLmodel").read_text()
        ]
        weights.write_bytes(weights.read_bytes()[:-1] + b"x")
        served.promote("image", third)
        _until(lambda: served.get("/v1/models")[1]["models"][0]["problem"])
        served.promote("image", "1")
        _until(lambda: served.get("/v1/models")[1]["models"][0]["version"] == "1")
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
        ("/v1/predict", b'{"input": NaN}', 400, "the body is not JSON"),
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
        (INFER, {"inputs": [TENSOR | {"shape": [2], "data": [256, 0.5]}]}, 400, "has values that are no UINT8"),
        (INFER, {"inputs": [TENSOR], "parameters": {"foo": 1}}, 400, "parameters.foo: unknown field"),
        ("/invocations", {"inputs": [], "params": 5}, 400, "params: allowed: an object"),
        ("/v2/models/other/infer", {"inputs": []}, 404, "found other; served is image/"),
        ("/v2/models/image/versions/99/infer", {"inputs": []}, 404, "found image/99"),
    ],
)  # fmt: skip
def test_bad_request_is_refused_by_name(small: Served, path: str, content: Any, status: int, message: str) -> None:
    code, answer, _ = small.ask(path, content)
    assert (code, message in answer["error"]) == (status, True), answer


@pytest.fixture(scope="module")
def small(serve: Callable[..., Served]) -> Served:
    """A server with low limits."""
    return serve("image", rows=4, body_mib=1.0)


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


@pytest.fixture(scope="module")
def tables(serve: Callable[..., Served]) -> Served:
    return serve("table")


def test_too_short_deadline_is_refused_with_the_time_to_wait(images: Served) -> None:
    rows = ROWS["image"] * 25
    assert images.ask("/invocations", {"inputs": rows})[0] == 200  # so that the server knows how long it takes
    status, answer, headers = images.ask("/invocations", {"inputs": rows}, Ratchet_Deadline="0.000001")
    assert (status, int(headers["retry-after"]) >= 1) == (503, True), answer
    status, answer, _ = images.ask("/invocations", {"inputs": rows[:1]}, Ratchet_Deadline="soon")
    assert (status, "Ratchet-Deadline: found 'soon'" in answer["error"]) == (400, True)


def test_pages_of_other_origins_are_refused(images: Served) -> None:
    status, answer, _ = images.ask("/v2/models/image/infer", b"{}", Origin="http://evil.example")
    assert (status, "not a page of this server" in answer["detail"]) == (403, True)
