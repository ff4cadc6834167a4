"""Serving without PyTorch: the server's imports, and an offline bundle in an environment with its packages alone."""

import functools
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from PIL import Image
from ports import reserved_port

from ratchet import settings
from ratchet.servers.http import answers
from tests.serving.test_loaded import store
from tests.serving.test_model_server import HOST, ROWS, SPECS, Served, columns, serve, until

__all__ = ["serve"]  # a fixture

BARRED = ("torch", "mlflow", "prefect", "dvc", "pandas", "sklearn", "scipy", "onnx")
UNEXPLAINED = (400, "explanations of images and texts need PyTorch and the model's weights, which are not here")
ANSWERS = """
import asyncio, json, sys
from pathlib import Path
from ratchet.serving.app import ModelServer
from ratchet.serving.versions.alias_watcher import PinnedVersion
from ratchet.serving.versions.loaded import Identity, LoadedVersion
from ratchet.settings.model import ServingSettings

async def ask(app, path, body):
    sent, received = [], iter([{"type": "http.request", "body": body}])
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": [
        (b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]}
    async def receive():
        return next(received, {"type": "http.disconnect"})
    async def send(message):
        sent.append(message)
    await app(scope, receive, send)
    return sent[0]["status"], json.loads(sent[1]["body"])

loaded = LoadedVersion(Identity("model", "1", "run", None), Path(sys.argv[1]))
server = ModelServer(PinnedVersion(loaded), ServingSettings())
status, answer = asyncio.run(ask(server, "/v1/predict", sys.stdin.buffer.read()))
server.batcher.close()
assert status == 200, answer
print(json.dumps({"predictions": answer["predictions"], "modules": sorted({m.partition(".")[0] for m in sys.modules})}))
"""


@pytest.mark.parametrize("name", ["image", "table", "text"])
def test_requests_are_answered_without_importing_torch_or_mlflow(tmp_path: Path, name: str) -> None:
    store(tmp_path, SPECS[name])
    body = json.dumps({"input": ROWS[name][:3]}).encode()
    done = subprocess.run([sys.executable, "-c", ANSWERS, str(tmp_path)], input=body, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    answer = json.loads(done.stdout)
    assert len(answer["predictions"]) == 3
    assert not {*BARRED} & {*answer["modules"]}
    assert ("polars" in answer["modules"]) == (name == "table")


@pytest.fixture(scope="module")
def registry(new_project: Callable[[str], Any]) -> Served:
    """Return versions with programs, of which `serve` starts servers."""
    project = new_project("bundled")
    settings.override(project.workspace.params, {"registry.export": "onnx"})
    served = Served(project)
    for name in ("image", "table", "text", "tokens"):
        served.add(name, SPECS[name])
    return served


@contextmanager
def running(bundle: Path, python: Path, port: int, *options: str) -> Iterator[list[str]]:
    """Run the bundle's server until the end of the block, in an environment without variables."""
    command = [str(python), str(bundle / "serve.py"), "--port", str(port), *options]
    process = subprocess.Popen(command, cwd="/", env={}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        until(lambda: answers(f"http://{HOST}:{port}/ready") or process.poll() is not None)
        assert process.poll() is None, process.communicate()[0]
        yield command
    finally:
        process.terminate()
        process.communicate()
    assert process.returncode == -signal.SIGTERM


def refused(bundle: Path, python: Path, *options: str) -> str:
    """Return the message of a server that does not start."""
    command = [str(python), "-I", str(bundle / "serve.py"), "--port", str(reserved_port(HOST)), *options]
    done = subprocess.run(command, cwd="/", env={}, capture_output=True, text=True, check=False)
    assert done.returncode
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that makes an environment with some requirements alone, and returns its Python."""
    return functools.cache(lambda requirements: new_environment(tmp_path_factory.mktemp("bundle"), requirements))


def new_environment(folder: Path, requirements: str) -> Path:
    (folder / "requirements.txt").write_text(requirements)
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert uv, "uv is not installed"
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(folder / "venv")], check=True)
    python = folder / "venv" / "bin" / "python"
    install = [uv, "pip", "install", "--quiet", "--python", str(python), "--require-hashes", "-r", "requirements.txt"]
    subprocess.run(install, cwd=folder, check=True)
    listed = subprocess.run([uv, "pip", "freeze", "--python", str(python)], capture_output=True, text=True, check=True)
    assert not {*BARRED} & {line.partition("==")[0] for line in listed.stdout.splitlines()}
    return python


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.parametrize("name", ["image", "table"])
def test_bundle_in_a_fresh_environment_gives_the_servers_bits(
    serve: Callable[..., Served], environment: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    served, rows, bundle = serve(name), ROWS[name], tmp_path / "bundle"
    served.project.good("ratchet", "serve", "--model", f"{name}@champion", "--offline-bundle", str(bundle))
    python = environment((bundle / "requirements.txt").read_text())
    offline = Served(served.project, reserved_port(HOST))
    form, given = ("inputs", rows) if name == "image" else ("dataframe_split", columns(rows))
    own = {"input": rows[:7], "options": {"top_k": 3} if name != "table" else {}}
    with running(bundle, python, offline.port):
        (here,), (there,) = (each.get("/v1/models")[1]["models"] for each in (offline, served))
        assert here == there | {"follows": f"{name}/1"}
        assert here["engine"] == "onnxruntime"
        for path, content in (("/invocations", {form: given}), ("/v1/predict", own)):
            (status, here, _), (_, there, _) = offline.ask(path, content), served.ask(path, content)
            assert status == 200, here
            assert here["predictions"] == there["predictions"]
        status, explained, _ = offline.ask("/v1/explain", {"input": rows[:1]})
        if name == "table":
            assert explained["explanation"] == served.ask("/v1/explain", {"input": rows[:1]})[1]["explanation"]
        else:
            assert (status, explained["error"]) == UNEXPLAINED
        if name == "image":
            content = io.BytesIO()
            Image.fromarray(np.array(rows[0], np.uint8)).resize((20, 30)).save(content, "JPEG")
            photo = content.getvalue()
            here, there = (each.ask("/v1/predict", photo, Content_Type="image/jpeg")[1] for each in (offline, served))
            assert here["predictions"] == there["predictions"]
            head = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.jpg"\r\n\r\n'
            form = head + photo + b"\r\n--x--\r\n"
            status, sent, _ = offline.ask("/v1/predict", form, Content_Type="multipart/form-data; boundary=x")
            assert (status, sent["predictions"]) == (200, there["predictions"])
        assert offline.get("/openapi.json")[0] == 200
        answer = offline.ask("/v1/predict", own, Host="edge.local")
        assert (answer[0], answer[1]["error"]) == (
            400, "Host 'edge.local' is not an address of this server. Fix: name it by the option --allow.",
        )  # fmt: skip
    assert "--host: 0.0.0.0 lets other machines ask the model server" in refused(bundle, python, "--host", "0.0.0.0")
    program = bundle / "model" / "model.onnx"
    program.write_bytes(program.read_bytes()[:-1] + b"x")
    assert "differs from the stored model (changed: model.onnx)" in refused(bundle, python)


@pytest.mark.system
def test_bundle_refuses_strangers_and_wrong_options(registry: Served, tmp_path: Path) -> None:
    """Beyond loopback it answers requests with a key of the project. Here in this environment, by two processes."""
    bundle, python, project = tmp_path / "bundle", Path(sys.executable), registry.project
    key = project.good("ratchet", "keys", "add", "edge").strip()
    try:
        project.good("ratchet", "serve", "--model", "image/1", "--offline-bundle", str(bundle))
    finally:
        project.good("ratchet", "keys", "off")
    assert (bundle / "keys.json").stat().st_mode & 0o777 == 0o600
    offline, content = Served(project, reserved_port(HOST)), {"input": ROWS["image"][:1]}
    options = ("--host", "0.0.0.0", "--allow", "edge.local", "--processes", "2")
    with running(bundle, python, offline.port, *options) as command:
        pid = next(each["pid"] for each in offline.get("/health")[1]["processes"] if each["pid"])
        assert psutil.Process(pid).cmdline()[1:] == command[1:]  # with the same search path of modules
        assert offline.ask("/v1/predict", content)[0] == 401
        assert offline.ask("/v1/predict", content, Authorization=f"Bearer {key}", Host="edge.local")[0] == 200
        status, explained, _ = offline.ask("/v1/explain", content, Authorization=f"Bearer {key}")
        assert (status, explained["error"]) == UNEXPLAINED
    assert "--port: found 0; allowed: 1 to 65535" in refused(bundle, python, "--port", "0")
    assert refused(bundle, python, "--host", "192.0.2.1").startswith("--host: cannot listen on '192.0.2.1'")
    (bundle / "keys.json").unlink()
    assert "serving.keys: found required, and there is no API key" in refused(bundle, python)
    (bundle / "bundle.json").write_text('{"serving": {"rows": 0}}')
    assert "bundle.json: serving: rows: found 0" in refused(bundle, python)
    (bundle / "bundle.json").write_text('{"serving": {}}')
    assert "bundle.json: cannot be read ('identity'). Fix: write the bundle again" in refused(bundle, python)


@pytest.mark.system
def test_what_cannot_be_a_bundle_is_refused(registry: Served, tmp_path: Path) -> None:
    start = ("ratchet", "serve", "--offline-bundle")
    message = registry.project.refused(*start, str(tmp_path / "tokens"), "--model", "tokens/1")
    assert "tokens/1: is a language model, whose texts PyTorch generates" in message
    assert "exists. Fix: name a new folder" in registry.project.refused(*start, str(tmp_path), "--model", "image/1")
    assert not list(tmp_path.iterdir())
