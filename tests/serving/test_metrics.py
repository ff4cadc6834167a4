"""Metrics and log of the model server: every request is counted, and no client fills the log."""

import asyncio
import io
import json
import logging
import re
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvicorn
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from waiting import until_in_loop

from ratchet.kinds import ImageInput, ModelSpec
from ratchet.problems import Classes
from ratchet.serving import keys as key_files
from ratchet.serving.app import ModelServer
from ratchet.serving.keys import KeyStore
from ratchet.serving.log_lines import LimitedHandler
from ratchet.serving.process import configuration
from ratchet.serving.server_metrics import ServerMetrics
from ratchet.serving.versions.alias_watcher import AliasWatcher, PinnedVersion
from ratchet.serving.versions.batching import Batcher
from ratchet.serving.versions.loaded import LoadedVersion
from ratchet.settings.model import ServingSettings
from tests.serving.test_alias_watcher import Registry, version
from tests.serving.test_loaded import IDENTITY, store

SPEC = ModelSpec("convnet", ImageInput(8, 8, 3, (120.0,) * 3, (60.0,) * 3), Classes(("a", "b", "c")))
ROW = {"input": np.zeros((1, 8, 8, 3), int).tolist()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stored model."""
    folder = tmp_path_factory.mktemp("model")
    store(folder, SPEC)
    return folder


class Client:
    """Sends requests, each over a connection of its own."""

    def __init__(self, port: int) -> None:
        self.port, self.key = port, ""

    async def send(self, request: bytes) -> tuple[int, str]:
        """Return the status and the body."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(request)
        head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
        writer.close()
        return int(head.split()[1]), body

    async def ask(self, path: str, content: Any = None, **headers: str) -> int:
        """Post JSON, or bytes as they are; without content, get. Return the status."""
        return (await self.send(self.request(path, content, **headers)))[0]

    def request(self, path: str, content: Any = None, **headers: str) -> bytes:
        body = b"" if content is None else content if isinstance(content, bytes) else json.dumps(content).encode()
        fields = {"Content-Type": "application/json", "Authorization": f"Bearer {self.key}"} | headers
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
        head = f"{'GET' if content is None else 'POST'} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n{lines}"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    async def families(self) -> dict[str, Metric]:
        """Return the metrics by name."""
        _, text = await self.send(self.request("/metrics"))
        return {family.name: family for family in text_string_to_metric_families(text)}

    async def requests(self) -> dict[tuple[str, ...], float]:
        """Return the counted requests by envelope, model, status and version."""
        samples = (await self.families())["ratchet_requests"].samples
        return {
            tuple(sample.labels[name] for name in sorted(sample.labels)): sample.value
            for sample in samples
            if sample.name == "ratchet_requests_total"
        }


def serve(server: ModelServer, keys: KeyStore, client: Callable[[Client], Coroutine[Any, Any, None]]) -> None:
    """Run a client beside the server, composed as by `ratchet serve`."""

    async def run() -> None:
        running = uvicorn.Server(configuration(server, keys, host="127.0.0.1", port=0, allowed=("test",)))
        task = asyncio.create_task(running.serve())
        await until_in_loop(lambda: running.started)
        try:
            await client(Client(running.servers[0].sockets[0].getsockname()[1]))
        finally:
            running.should_exit = True
            await task

    asyncio.run(run())


@pytest.fixture
def server(folder: Path) -> ModelServer:
    return ModelServer(PinnedVersion(LoadedVersion(IDENTITY, folder)), ServingSettings(body_mib=1.0, deadline=7.5))


@pytest.fixture
def keys(tmp_path: Path) -> KeyStore:
    return KeyStore(tmp_path / "keys.json")


def test_health_names_keys_that_cannot_be_read(
    server: ModelServer, keys: KeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_files, "_LOOK", -1.0)  # at each request
    keys.add("anna")
    content = keys.path.read_bytes()

    async def ask(client: Client) -> None:
        async def problem() -> str:
            return str(json.loads((await client.send(client.request("/health")))[1]).get("problem", ""))

        assert await problem() == ""
        keys.path.write_bytes(content[:40])
        assert "keys.json: damaged" in await problem()
        assert "The keys of before stay valid" in await problem()
        keys.path.write_bytes(content)
        assert await problem() == ""

    serve(server, keys, ask)


def test_every_refusal_is_counted(server: ModelServer, keys: KeyStore) -> None:
    key = keys.add("anna")

    async def ask(client: Client) -> None:
        client.key = key
        assert await client.ask("/v1/predict", ROW) == 200
        assert await client.ask("/v1/predict", ROW, Authorization="Bearer x") == 401
        assert await client.ask("/v1/predict", ROW, Origin="http://evil.example") == 403
        assert await client.ask("/v1/predict", b"a", Content_Type="text/plain") == 415
        assert await client.ask("/invocations", b" " * (2 << 20)) == 413
        assert await client.ask("/v2/models/model/infer", {}) == 400
        assert await client.ask("/v1/labels", {}) == 404  # there is no request log
        assert await client.ask("/v1/explain", {}) == 400
        assert await client.ask("/unknown") == 404
        assert (await client.send(b"no HTTP\r\n\r\n"))[0] == 400
        assert await client.requests() == {
            ("own", "model", "200", "1"): 1,
            ("own", "", "401", ""): 1,
            ("own", "", "403", ""): 1,
            ("own", "", "415", ""): 1,
            ("mlflow", "model", "413", "1"): 1,
            ("v2", "model", "400", "1"): 1,
            ("labels", "", "404", ""): 1,
            ("explain", "model", "400", "1"): 1,
            ("other", "", "404", ""): 1,
            ("http", "", "400", ""): 1,
        }

    serve(server, keys, ask)


def test_requests_in_flight_and_clients_that_left_are_counted(server: ModelServer, keys: KeyStore) -> None:
    async def in_flight(client: Client) -> float:
        return (await client.families())["ratchet_requests_in_flight"].samples[0].value

    async def ask(client: Client) -> None:
        assert await in_flight(client) == 1  # this question itself
        _, writer = await asyncio.open_connection("127.0.0.1", client.port)
        writer.write(client.request("/v1/predict", ROW)[:-1])
        await until_in_loop(lambda: server.handler.bodies.size > 0)
        assert await in_flight(client) == 2
        writer.close()
        await until_in_loop(lambda: server.handler.bodies.size == 0)
        assert (await client.requests())["own", "model", "499", "1"] == 1
        assert await in_flight(client) == 1

    serve(server, keys, ask)


def test_metrics_have_types_the_deadline_and_the_process(server: ModelServer, keys: KeyStore) -> None:
    lost = iter([3, 4])
    server.metrics.totals["ratchet_log_lost_requests", "Requests that the log could not take"] = lambda: next(lost)

    async def ask(client: Client) -> None:
        await client.ask("/v1/predict", ROW)
        families = await client.families()
        assert families["ratchet_log_lost_requests"].type == "counter"
        assert families["ratchet_log_lost_requests"].samples[0].value == 3
        seconds = families["ratchet_request_seconds"].samples
        limits = [float(sample.labels["le"]) for sample in seconds if sample.name.endswith("_bucket")]
        assert {7.5, 10.0, 20.0} <= set(limits)  # answers at the deadline and after it differ
        assert families["process_resident_memory_bytes"].samples[0].value > 1e6
        assert families["process_cpu_seconds"].type == "counter"
        (version,) = families["ratchet_version_info"].samples
        assert version.labels == {"model": "model", "version": "1"}

    serve(server, keys, ask)


def test_refused_version_is_a_metric(folder: Path, tmp_path: Path) -> None:
    registry: Any = Registry(tmp_path / "stored")
    watcher, batcher = (
        AliasWatcher(registry, lambda: "model@champion", folder=tmp_path, threads=1),
        Batcher(queue_rows=1),
    )

    def refused(*watchers: AliasWatcher) -> tuple[str, float]:
        metrics = ServerMetrics(watchers[0], batcher, deadline=1.0)
        metrics.watchers += watchers[1:]
        families = {family.name: family for family in text_string_to_metric_families(metrics.text().decode())}
        (sample,) = families["ratchet_version_refused"].samples
        return sample.labels["refused"], sample.value

    watcher.check()
    assert refused(watcher) == ("", 0.0)
    other = AliasWatcher(registry, lambda: "model/damaged", folder=tmp_path, threads=1)
    registry.named = version("damaged")
    other.check()
    assert refused(watcher, other) == ("model version damaged", 1.0)
    batcher.close()
    watcher.close()
    other.close()


class Clock:
    """A clock that stands until it is set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def log() -> Iterator[tuple[io.StringIO, Clock]]:
    """The lines of the log of a model server, and the clock of their limit."""
    text, clock, root = io.StringIO(), Clock(), logging.getLogger()
    handler = LimitedHandler(clock=clock)
    handler.setStream(text)
    root.addHandler(handler)
    ours, uvicorn = logging.getLogger("ratchet"), logging.getLogger("uvicorn")
    before = uvicorn.propagate, uvicorn.level
    uvicorn.propagate = True  # Prefect takes its lines, where another test has imported it
    uvicorn.setLevel(logging.NOTSET)
    ours.setLevel(logging.INFO)
    yield text, clock
    root.removeHandler(handler)
    ours.setLevel(logging.NOTSET)
    uvicorn.propagate, level = before
    uvicorn.setLevel(level)


LINE = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4} (INFO|WARNING|ERROR) "


def test_bad_requests_do_not_fill_the_log(server: ModelServer, keys: KeyStore, log: tuple[io.StringIO, Clock]) -> None:
    text, clock = log

    async def ask(client: Client) -> None:
        for _ in range(50):
            await client.send(b"no HTTP\r\n\r\n")
        clock.now = 61.0
        await client.send(b"no HTTP\r\n\r\n")

    serve(server, keys, ask)
    first, second = text.getvalue().splitlines()
    assert re.fullmatch(LINE + r"Invalid HTTP request received\.", first)
    assert re.fullmatch(LINE + r"Invalid HTTP request received\. \(49 more of this kind were left out\)", second)


def test_log_says_which_version_answers_now(tmp_path: Path, log: tuple[io.StringIO, Clock]) -> None:
    registry: Any = Registry(tmp_path / "stored")
    watcher = AliasWatcher(registry, lambda: "model@champion", folder=tmp_path / "served", threads=1)
    for number in ("1", "2", "damaged"):
        registry.named = version(number)
        watcher.check()
    watcher.close()
    first, second, third = log[0].getvalue().splitlines()
    assert re.fullmatch(LINE + "model version 1 answers now, by onnxruntime, fp32", first)
    assert re.fullmatch(LINE + "model version 2 answers now, by onnxruntime, fp32", second)
    assert re.fullmatch(LINE + "its files are damaged", third)
