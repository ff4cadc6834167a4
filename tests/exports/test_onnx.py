"""The ONNX program agrees with its model for any number of images; a failed export has a reason."""

import json
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from ratchet.exports.onnx_export import export
from ratchet.exports.program import NotExported, Parity, Program, compare
from ratchet.kinds import ModelSpec, image_spec
from ratchet.problems import Classes
from ratchet.training import build
from ratchet.training.models import ImageModel, Model

TARGET = Classes(("ant", "bee", "cat"))

CLASSES = tuple("abcde")


def spec(name: str, side: int, channels: int = 3, **changes: Any) -> ModelSpec:
    return image_spec(name, CLASSES, channels, side, side, (120.0,) * channels, (60.0,) * channels, **changes)


@pytest.fixture(autouse=True)
def allowed() -> Iterator[None]:
    """Ignore PyTorch's own deprecation warnings during the export."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"torch|onnxscript|copyreg")
        yield


def drawn(spec: ModelSpec) -> Model:
    """Return a model with random weights and buffers."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build(spec)
        for name, buffer in model.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                buffer.uniform_(0.5, 1.5)
        model.temperature.fill_(1.7)
    return model.eval()


def answered(model: nn.Module, spec: ModelSpec, rows: int = 9) -> tuple[np.ndarray, np.ndarray]:
    """Return pixels in the program's layout, and the model's probabilities."""
    pixels = np.random.default_rng(0).integers(0, 256, (rows, *spec.image.shape))
    pixels = pixels.astype(spec.image.dtype)
    with torch.inference_mode():
        answers = torch.softmax(model(torch.from_numpy(pixels).permute(0, 3, 1, 2)), 1)
    return pixels, answers.numpy()


def as_arrays(model: nn.Module, spec: ModelSpec) -> tuple[tuple[np.ndarray], np.ndarray]:
    """Return what `answered` returns, as `compare` takes it."""
    pixels, answers = answered(model, spec)
    return (pixels,), answers


@pytest.mark.system
@pytest.mark.parametrize(
    "spec",
    [
        spec("convnet", 8, 1),
        spec("resnet", 32, flip_average=True),
        spec("fastnet", 32, dtype="float32"),
        spec("resnet18", 64),
        spec("mobilenet_v3_small", 64),
    ],
    ids=lambda spec: spec.name,
)
def test_program_agrees_with_its_model(spec: ModelSpec, tmp_path: Path) -> None:
    model = drawn(spec)
    pixels, answers = answered(model, spec)
    export(model, spec, tmp_path)
    program = Program.of(tmp_path)
    assert isinstance(program, Program)
    for rows in (1, 2, 9):
        np.testing.assert_allclose(program.predict((pixels[:rows],)), answers[:rows], atol=1e-5)
    parity = compare(tmp_path, (pixels,), answers, TARGET)
    assert isinstance(parity, Parity)
    assert (parity.images, parity.other_class) == (9, 0)
    assert parity.largest_difference < 1e-5


def test_files_are_plain_onnx_and_json(tmp_path: Path) -> None:
    small = spec("convnet", 8, 1)
    export(drawn(small), small, tmp_path)
    program = onnx.load(tmp_path / "model.onnx")
    onnx.checker.check_model(program)
    (takes,), (gives,) = program.graph.input, program.graph.output
    sides = [[side.dim_value or side.dim_param for side in put.type.tensor_type.shape.dim] for put in (takes, gives)]
    assert (takes.name, gives.name, sides) == ("pixels", "probabilities", [["rows", 8, 8, 1], ["rows", 5]])
    about = json.loads((tmp_path / "program.json").read_text())
    opset = next(operators.version for operators in program.opset_import if not operators.domain)
    assert about == {
        "format": 1,
        "program": "model.onnx",
        "inputs": ["pixels"],
        "output": "probabilities",
        "opset": opset,
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx", "program.json"]


def test_export_leaves_model_and_random_state_unchanged(tmp_path: Path) -> None:
    small = spec("resnet", 32)
    model = drawn(small)
    _, before = answered(model, small)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    export(model, small, tmp_path)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    np.testing.assert_array_equal(answered(model, small)[1], before)
    assert all(parameter.requires_grad for parameter in model.parameters())


class Head(nn.Module):
    """A network that PyTorch cannot trace, or ONNX cannot express."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 5)


class Asks(Head):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if images.sum() > 0:
            images = images * 2
        return self.head(images.flatten(1))


class Leaves(Head):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(torch.from_numpy(images.detach().flatten(1).numpy()))


class Counts(Head):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(images.reshape(2, 64))


class Rare(Head):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(torch.special.bessel_j0(images).flatten(1))


@pytest.mark.parametrize(
    ("network", "reason"),
    [
        (
            Asks,
            r"^Could not guard on data-dependent expression .*\(test_onnx\.py, line \d+: if images\.sum\(\) > 0:",
        ),
        (
            Leaves,
            r"numpy\(\) is not supported .*\(test_onnx\.py, line \d+: return self\.head\(torch\.from_numpy",
        ),
        (Counts, r"your code specialized it to be a constant \(2\)"),
        (Rare, r"^No ONNX function found for .*bessel_j0"),
    ],
)
def test_failed_export_has_a_reason_and_no_program(
    network: type[nn.Module], reason: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    small = spec("convnet", 8, 1)
    with torch.random.fork_rng():
        export(ImageModel(network(), small).eval(), small, tmp_path)
    missing = Program.of(tmp_path)
    assert isinstance(missing, NotExported)
    assert re.search(reason, missing.reason), missing.reason
    assert "\n" not in missing.reason
    assert [path.name for path in tmp_path.iterdir()] == ["program.json"]
    assert compare(tmp_path, *as_arrays(drawn(small), small), TARGET) == missing
    assert capfd.readouterr() == ("", "")


def test_program_with_other_answers_is_detected(tmp_path: Path) -> None:
    small = spec("convnet", 8, 1)
    model = drawn(small)
    export(model, small, tmp_path)
    pixels, answers = answered(model, small)
    moved = np.roll(answers, 1, axis=1)
    parity = compare(tmp_path, (pixels,), moved, TARGET)
    assert isinstance(parity, Parity)
    assert parity.largest_difference == pytest.approx(np.abs(answers - moved).max(), abs=1e-5)
    assert parity.other_class == 9


def test_program_that_does_not_run_has_a_reason(tmp_path: Path) -> None:
    small = spec("convnet", 8, 1)
    model = drawn(small)
    export(model, small, tmp_path)
    (tmp_path / "model.onnx").write_bytes(b"no program")
    missing = compare(tmp_path, *as_arrays(model, small), TARGET)
    assert isinstance(missing, NotExported)
    assert missing.reason.startswith("onnxruntime cannot run the program: ")


def test_model_stored_without_a_program_has_none(tmp_path: Path) -> None:
    small = spec("convnet", 8, 1)
    assert Program.of(tmp_path) is None
    assert compare(tmp_path, *as_arrays(drawn(small), small), TARGET) is None


def test_program_of_16_bit_model_takes_raw_values(tmp_path: Path) -> None:
    from ratchet.registry.pyfunc import ServedModel

    deep = spec("convnet", 8, 1, depth=12)
    model = drawn(deep)
    export(model, deep, tmp_path)
    raw = np.random.default_rng(0).integers(0, 5_000, (9, 8, 8, 1), dtype=np.uint16)  # some beyond 12 bits
    parity = compare(tmp_path, (raw,), ServedModel(model, deep).predict(raw), TARGET)
    assert isinstance(parity, Parity), parity
    assert parity.largest_difference < 1e-5
