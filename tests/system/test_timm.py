"""A model of timm with weights of a hub, through the whole pipeline, and where timm is not installed."""

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import hub_server
import pytest
import timm
import torch
from safetensors.torch import save

from ratchet.errors import TrainingError
from ratchet.kinds import ImageInput, ModelSpec
from ratchet.problems import Classes
from ratchet.training import build
from ratchet.training.models.vision import timm_model

pytestmark = pytest.mark.slow

ADDRESS = "hf://timm/test_resnet.r160_in1k"
SETTINGS = (
    "model.name=timm/test_resnet",
    f"model.pretrained={ADDRESS}",
    "data.image_size=32",
    "training.max_steps=12",
    "gate.minimum=0.0",
    "gate.constant=off",  # so short a training may give one answer
)
WITHOUT_TIMM = """
import sys
sys.modules["timm"] = None
from pathlib import Path
from ratchet.errors import TrainingError
from ratchet.training import load_model
try:
    load_model(Path("data/model"))
except TrainingError as error:
    print(error)
"""


def test_image_size_that_a_model_cannot_have_is_refused() -> None:
    """The first is refused when it is built, the other fails with an IndexError in its forward pass."""
    with (
        torch.random.fork_rng(),
        pytest.raises(TrainingError, match=r"nest_tiny cannot be built for 50 x 50 pixels .*data.image_size=224`"),
    ):
        timm_model("nest_tiny", classes=2, channels=3, height=50, width=50)
    image = ImageInput(50, 50, 3, (0.5,) * 3, (0.2,) * 3)
    with torch.random.fork_rng(), pytest.raises(TrainingError, match="mvitv2_tiny cannot take 50 x 50 x 3 pixels"):
        build(ModelSpec("timm/mvitv2_tiny", image, Classes(("a", "b"))))


@pytest.fixture(scope="module")
def trained(new_project: Callable[[str], Any]) -> Iterator[tuple[Any, str]]:
    """A project with a trained version, and the commit of its initial weights."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        content = save(timm.create_model("test_resnet", num_classes=1000).state_dict())
    config = {"pretrained_cfg": {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4], "input_size": [3, 160, 160]}}
    project = new_project("timm")
    with hub_server.running() as hub:
        files = {"model.safetensors": content, "config.json": json.dumps(config).encode()}
        commit = hub.add(ADDRESS.removeprefix("hf://"), files)
        project.good("ratchet", "set", *SETTINGS)
        project.good("ratchet", "train", HF_ENDPOINT=hub.address)
    return project, commit


def test_version_records_weights_and_their_normalization(trained: tuple[Any, str]) -> None:
    project, commit = trained
    spec = json.loads((project.root / "data" / "model" / "model.json").read_text())["spec"]
    assert spec["name"] == "timm/test_resnet"
    assert spec["input"]["mean"] == [pytest.approx(0.4 * 255)]  # the digits are grey
    assert spec["input"]["std"] == [pytest.approx(0.3 * 255)]
    (journal,) = (project.root / "mlruns" / "journal").glob("*/provenance.json")
    record = json.loads(journal.read_text())
    assert record["pretrained"]["commit"] == commit
    assert record["packages"]["timm"] == timm.__version__
    (card,) = (project.root / "mlruns").rglob("card.md")
    text = card.read_text().replace("\\", "")  # of Markdown
    assert f"{ADDRESS}/model.safetensors at {commit}, SHA-256" in text
    assert "mean 0.5 0.4 0.3, std 0.2 0.3 0.4, of the weights" in text
    assert commit in project.good("ratchet", "trace", "digits/1")


def test_resumed_training_of_timm_is_exact(trained: tuple[Any, str]) -> None:
    """The hub is gone: the weights are in data/pretrained."""
    project, _ = trained
    assert "identical" in project.good("ratchet", "verify-resume")


def test_model_of_timm_is_refused_without_timm(trained: tuple[Any, str]) -> None:
    project, _ = trained
    message = project.good(sys.executable, "-c", WITHOUT_TIMM)
    assert "model.name: timm/test_resnet needs timm" in message
    assert "Fix: `pip install ratchet[timm]`" in message


def test_unknown_model_of_timm_is_refused(trained: tuple[Any, str]) -> None:
    project, _ = trained
    project.good("ratchet", "set", "model.name=timm/resnet18.a1_in1k")
    message = project.refused("ratchet", "train")
    assert "timm has no model timm/resnet18.a1_in1k. Nearest: timm/resnet18" in message
    assert "Weights are named in model.pretrained: hf://timm/resnet18.a1_in1k" in message
