"""Layers that CUDA cannot differentiate deterministically are named, on any machine; safe ones are not."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from ratchet.errors import TrainingError
from ratchet.kinds import image_spec
from ratchet.training import ImageSplit, Split, models
from ratchet.training.determinism import (
    explained,
    nondeterministic_layers,
    refuse_nondeterministic,
    require_deterministic,
)
from ratchet.training.models import ImageModel
from tests.training.conftest import Lab, make_plan

SIDE = 8
SPEC = image_spec("net", ("a", "b"), 3, SIDE, SIDE, (127.0,) * 3, (60.0,) * 3)
IMAGES = torch.zeros(2, 3, SIDE, SIDE)
PYTORCH_SAYS = (
    "adaptive_avg_pool2d_backward_cuda does not have a deterministic implementation, but you set "
    "'torch.use_deterministic_algorithms(True)'."
)


class Net(nn.Module):
    """A layer between a convolution and a head."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), layer)
        self.head = nn.LazyLinear(2)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(images).flatten(1))


class Lambda(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.function(images)


@pytest.mark.parametrize(
    ("layer", "operation", "instead"),
    [
        (nn.AdaptiveAvgPool2d(2), "AdaptiveAvgPool2D", "x.mean((2, 3))"),
        (nn.AdaptiveAvgPool2d((1, None)), "AdaptiveAvgPool2D", "nn.AvgPool2d"),
        (nn.AdaptiveMaxPool2d(1), "AdaptiveMaxPool2D", "x.amax((2, 3))"),
        (nn.ReflectionPad2d(1), "ReflectionPad2D", "zero or replicate padding"),
        (nn.FractionalMaxPool2d(2, output_size=3), "FractionalMaxPool2D", "nn.MaxPool2d"),
        (Lambda(lambda x: functional.adaptive_avg_pool2d(x, 3)), "AdaptiveAvgPool2D", "x.mean"),
        (Lambda(lambda x: functional.avg_pool3d(x[:, None], 2)), "AvgPool3D", "nn.MaxPool3d"),
        (Lambda(lambda x: functional.interpolate(x, size=4, mode="bicubic")), "UpsampleBicubic2D", "mode bilinear"),
        (
            Lambda(lambda x: functional.interpolate(x, size=4, mode="bilinear", antialias=True)),
            "UpsampleBilinear2DAa",
            "without antialias",
        ),
        (
            Lambda(lambda x: functional.grid_sample(x, torch.zeros(len(x), 4, 4, 2), align_corners=False)),
            "GridSampler2D",
            "resampling",
        ),
    ],
)
def test_layer_without_deterministic_backward_is_named(layer: nn.Module, operation: str, instead: str) -> None:
    model = ImageModel(Net(layer), SPEC)
    (result,) = nondeterministic_layers(model, IMAGES)
    assert (result.layer, result.operation) == ("body.2", operation)
    assert instead in result.instead


@pytest.mark.parametrize(
    "layer",
    [
        nn.AdaptiveAvgPool2d(1),
        Lambda(lambda x: x.mean((2, 3))),
        Lambda(lambda x: x.amax((2, 3))),
        nn.AvgPool2d(2),
        nn.MaxPool2d(2),
        nn.ZeroPad2d(1),
        nn.ReplicationPad2d(1),
        nn.Upsample(scale_factor=2),
        nn.Upsample(scale_factor=2, mode="bilinear"),
        Lambda(lambda x: functional.max_pool3d(x[:, None], 2)),
    ],
)
def test_safe_layer_is_not_refused(layer: nn.Module) -> None:
    assert nondeterministic_layers(ImageModel(Net(layer), SPEC), IMAGES) == []


def test_error_of_pytorch_names_layer_and_fix() -> None:
    model = ImageModel(Net(nn.AdaptiveAvgPool2d(2)), SPEC)
    reported, fix = explained(RuntimeError(PYTORCH_SAYS), model, IMAGES)
    assert "layer body.2 (AdaptiveAvgPool2D) has no deterministic implementation here" in reported
    assert fix.startswith("use x.mean((2, 3)) or nn.AdaptiveAvgPool2d(1)")
    assert "training.deterministic to false" in fix
    for error in (RuntimeError("shapes differ"), ValueError(PYTORCH_SAYS)):
        refuse_nondeterministic(error, model, split(), torch.device("cpu"))


def test_unknown_operation_is_named_as_pytorch_names_it() -> None:
    """The list of operations may be shorter than the one of a later PyTorch."""
    reported, _ = explained(RuntimeError(PYTORCH_SAYS), ImageModel(Net(nn.Identity()), SPEC), IMAGES)
    assert "an operation (adaptive_avg_pool2d_backward_cuda)" in reported


def split() -> Split:
    images = np.zeros((4, SIDE, SIDE, 3), np.uint8)
    return ImageSplit.of("train", [images], np.arange(4) % 2, np.arange(4, dtype=np.uint64))


def test_nothing_is_tried_on_a_cpu() -> None:
    model = ImageModel(Net(nn.AdaptiveAvgPool2d(2)), SPEC)
    require_deterministic(model, split(), make_plan(deterministic=True), torch.device("cpu"))


class Unpooling(nn.Module):
    """A net with an operation whose forward pass raises on a CPU too, if it must be deterministic."""

    def __init__(self, *, classes: int, channels: int, height: int, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 1)
        self.pool, self.unpool = nn.MaxPool2d(2, return_indices=True), nn.MaxUnpool2d(2)
        with torch.no_grad():
            size = self.features(torch.zeros(1, channels, height, width)).shape[1]
        self.head = nn.Linear(size, classes)

    def features(self, images: torch.Tensor) -> torch.Tensor:
        return self.unpool(*self.pool(self.first(images))).flatten(1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(images))


def test_an_operation_that_a_cpu_cannot_repeat_is_named(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(models._networks("image"), "unpooling", Unpooling)
    lab.spec = Lab.make_spec("unpooling")
    with pytest.raises(TrainingError, match=r"layer unpool \(MaxUnpool2D\) .* Fix: use nn.ConvTranspose2d.*to false"):
        lab.run(lab.plan(max_steps=2))
    lab.run(lab.plan(max_steps=2, deterministic=False), name="the fix")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_training_is_refused_before_its_first_step() -> None:
    device = torch.device("cuda", 0)
    model = ImageModel(Net(nn.AdaptiveAvgPool2d(2)), SPEC)
    model(IMAGES)  # gives the lazy layer its shape
    model = model.to(device)
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(TrainingError, match=r"layer body\.2"):
            require_deterministic(model, split(), make_plan(deterministic=True), device)
    finally:
        torch.use_deterministic_algorithms(False)


def test_documented_model_has_only_deterministic_layers() -> None:
    """The example of docs/bring-your-model.md runs on CUDA under the default settings."""
    page = (Path(__file__).parents[2] / "docs" / "bring-your-model.md").read_text()
    blocks = dict(re.findall(r"```python\n# mynets/(\w+)\.py\n(.*?)```", page, re.DOTALL))
    space: dict[str, Any] = {}
    exec(blocks["parts"], space)
    exec(blocks["net"].replace("from mynets.parts import block", ""), space)
    network = space["net"](classes=2, channels=3, height=SIDE, width=SIDE)
    assert network(IMAGES).shape == (2, 2)
    assert nondeterministic_layers(network, IMAGES) == []
