"""MLflow alone loads and serves a registered model: by its API in a fresh process, and by its own server."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from ports import reserved_port
from waiting import until

from ratchet.kinds import image_spec
from ratchet.registry.models import ModelRegistry
from ratchet.registry.runs import Run
from ratchet.servers.http import answers
from ratchet.settings.model import Params
from ratchet.training import build, load_model, save_model
from ratchet.workspace import Workspace

pytestmark = pytest.mark.system

SPEC = image_spec("convnet", ("ant", "bee", "cat"), 1, 8, 8, (128.0,), (64.0,))
IMAGES = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 1), dtype=np.uint8)
LOADS = """
import json, sys
import mlflow, numpy as np
model = mlflow.pyfunc.load_model("models:/served@champion")
print(json.dumps(model.predict(np.array(json.load(sys.stdin), np.uint8)).tolist()))
"""

ASKS = """
import json, sys
import mlflow.artifacts, numpy as np, onnxruntime
folder = mlflow.artifacts.download_artifacts("models:/served@champion")
session = onnxruntime.InferenceSession(f"{folder}/data/model/model.onnx")
(probabilities,) = session.run(None, {"pixels": np.array(json.load(sys.stdin), np.uint8)})
print(json.dumps([probabilities.tolist(), [name for name in ("torch", "ratchet") if name in sys.modules]]))
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with one champion, "served"."""
    root = tmp_path_factory.mktemp("served").resolve()
    workspace, params = Workspace(root), Params()
    with torch.random.fork_rng():
        torch.manual_seed(1)
        save_model(root / "trained", build(SPEC).state_dict(), SPEC, about={"training": {}})
    run = Run(workspace, params, "served")
    registry = ModelRegistry(workspace, params)
    uri = registry.log_model(run_id := run.send(), root / "trained", SPEC)
    registry.add_version("served", run_id, uri, tags={})
    registry.set_aliases("served", {"champion": "1"})
    run.journal.close()
    return root


@pytest.fixture(scope="module")
def environment(root: Path) -> dict[str, str]:
    """Return the environment of a user of MLflow: the address of the database, and this library to import."""
    source = Path(__file__).parents[2] / "src"
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(source),
        "HOME": str(root),
        "MLFLOW_TRACKING_URI": f"sqlite:///{root}/mlruns/mlflow.db",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }


@pytest.fixture(scope="module")
def expected(root: Path) -> Any:
    from ratchet.registry.pyfunc import ServedModel

    return ServedModel(*load_model(root / "trained")).predict(IMAGES)


def run_script(script: str, root: Path, environment: dict[str, str]) -> Any:
    """Run a fresh process with the images as input; return its output."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        input=json.dumps(IMAGES.tolist()),
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_a_version_loads_in_a_fresh_process_by_its_alias(root: Path, environment: Any, expected: Any) -> None:
    np.testing.assert_array_equal(np.array(run_script(LOADS, root, environment), np.float32), expected)


def test_its_onnx_program_needs_no_pytorch(root: Path, environment: Any, expected: Any) -> None:
    answered, imported = run_script(ASKS, root, environment)
    np.testing.assert_allclose(np.array(answered, np.float32), expected, atol=1e-6)
    assert imported == []


def test_mlflow_models_serve_returns_the_same_probabilities(root: Path, environment: Any, expected: Any) -> None:
    before, port = _files(root), reserved_port("127.0.0.1")
    program = ["mlflow", "models", "serve", "--model-uri", "models:/served@champion", "--env-manager", "local"]
    with (root.parent / "serve.log").open("wb") as log:
        server = subprocess.Popen(
            [*program, "--host", "127.0.0.1", "--port", str(port)],
            cwd=root,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        until(
            lambda: answers(f"http://127.0.0.1:{port}/ping"), process=server, log=root.parent / "serve.log", pause=0.2
        )
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/invocations",
            data=json.dumps({"inputs": IMAGES.tolist()}).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            answered = json.load(answer)["predictions"]
        family = psutil.Process(server.pid).children(recursive=True)
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait()
    np.testing.assert_allclose(np.array(answered, np.float32), expected, atol=1e-6)
    psutil.wait_procs(family)
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in family)
    assert _files(root) == before


def _files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if "mlflow.db" not in path.name)
