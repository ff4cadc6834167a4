"""A user's own model and weights to begin with, through the whole pipeline: by params.yaml alone, seen by DVC."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from safetensors import safe_open

pytestmark = pytest.mark.slow

NET = """
from torch import nn

from mynets.parts import block


def net(*, classes, channels, height, width):
    features = nn.Sequential(block(channels, 8), nn.MaxPool2d(2), block(8, 8), block(8, 16), nn.AdaptiveAvgPool2d(2))
    return nn.Sequential(features, nn.Flatten(), nn.Linear(16 * 4, classes))
"""
PARTS = """
from torch import nn


def block(inside, outside):
    return nn.Sequential(nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU())
"""
UNFOLLOWED = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, inside, classes):
        super().__init__()
        self.layer = nn.Linear(inside, classes)

    def forward(self, images):
        if images.mean() > 9.0:
            images = images - 9.0
        return self.layer(images.flatten(1))


def net(*, classes, channels, height, width):
    return Net(channels * height * width, classes)
"""
RULES = ("gate.minimum=0.0", "gate.champion=not-worse", "gate.tolerance=0.99", "gate.slice_tolerance=0.99")
SERVE = """
import json, os, sys
os.chdir(sys.argv[3])
import mlflow, numpy as np

mlflow.set_tracking_uri(sys.argv[1])
model = mlflow.pyfunc.load_model(f"models:/digits/{sys.argv[2]}")
answers = model.predict(np.zeros((1, 8, 8, 1), np.uint8))
print(json.dumps(answers.shape))
print(sys.modules["mynets.parts"].__file__)
"""


@pytest.fixture(scope="module")
def own(new_project: Callable[[str], Any]) -> Any:
    """A project whose model is the user's, all stages done by `dvc repro`."""
    project = new_project("own-model")
    folder = project.root / "mynets"
    folder.mkdir()
    (folder / "net.py").write_text(NET)
    (folder / "parts.py").write_text(PARTS)
    project.good("ratchet", "set", "model.factory=mynets.net:net", "model.code=mynets", "registry.export=onnx", *RULES)
    project.good("dvc", "repro")
    return project


def shapes(path: Path) -> dict[str, list[int]]:
    with safe_open(path, "pt") as file:
        return {name: list(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118


def served(project: Any, version: int, elsewhere: Path) -> list[str]:
    """Return what a process outside the project prints: the shape of the prediction, the path of the code."""
    elsewhere.mkdir()
    shutil.copytree(project.root / "src", elsewhere / "src")
    uri = f"sqlite:///{project.root}/mlruns/mlflow.db"
    command = (sys.executable, "-c", SERVE, uri, str(version), str(elsewhere))
    return project.good(*command, PYTHONPATH=str(elsewhere / "src")).splitlines()[-2:]


def test_a_users_model_is_trained_and_registered(own) -> None:
    """It is named by its factory."""
    described = json.loads((own.root / "data" / "model" / "model.json").read_text())
    assert described["spec"]["factory"] == "mynets.net:net"
    assert str(own.root) not in json.dumps(described)
    assert own.good("dvc", "status").strip() == "Data and pipelines are up to date."


def test_mlflow_loads_the_users_model_where_the_project_is_not(own, tmp_path) -> None:
    shape, code = served(own, 1, tmp_path / "elsewhere")
    assert json.loads(shape) == [1, 10]
    assert Path(code).is_relative_to(own.root / "mlruns")


def test_the_exported_program_works_without_the_users_code(own, tmp_path) -> None:
    (program,) = (own.root / "mlruns").rglob("model.onnx")
    answers = onnxruntime.InferenceSession(program).run(None, {"pixels": np.zeros((3, 8, 8, 1), np.uint8)})[0]
    assert answers.shape == (3, 10)
    rules = json.loads((own.root / "data" / "registration.json").read_text())["verdict"]["rules"]
    assert [rule["passed"] for rule in rules if rule["name"] == "ONNX export"] == [True]


def test_a_changed_model_file_causes_a_new_training(own, tmp_path) -> None:
    """The old version keeps its code."""
    (own.root / "mynets" / "net.py").write_text(NET.replace("block(8, 16)", "block(8, 12)").replace("16 * 4", "12 * 4"))
    status = own.good("dvc", "status", "code")
    assert "modified:           mynets" in status
    own.good("ratchet", "set", "registry.promotion=manual")
    message = own.good("dvc", "repro")
    assert "mynets.net:net" in message
    assert shapes(own.root / "data" / "model" / "model.safetensors")["network.2.weight"] == [10, 48]
    assert json.loads(served(own, 1, tmp_path / "elsewhere")[0]) == [1, 10]
    assert own.good("dvc", "status").strip() == "Data and pipelines are up to date."


def test_a_model_that_cannot_be_exported_is_refused(own) -> None:
    """With registry.export: none it is registered without a program."""
    own.good("ratchet", "set", "model.code=mynets", "registry.promotion=automatic")
    (own.root / "mynets" / "net.py").write_text(UNFOLLOWED)
    reason = "(net.py, line 12: if images.mean() > 9.0:)"
    assert reason in own.refused("ratchet", "preflight")
    assert "Refused, 1 of" in own.good("dvc", "repro")
    refused = json.loads((own.root / "data" / "registration.json").read_text())
    assert reason in refused["summary"]
    own.good("ratchet", "set", "registry.export=none")
    own.good("dvc", "repro")
    registration = json.loads((own.root / "data" / "registration.json").read_text())
    assert registration["run_id"] == refused["run_id"]
    assert registration["passed"]
    assert registration["aliases"] == ["champion"]
