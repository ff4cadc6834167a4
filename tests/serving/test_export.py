"""The exported program answers as its model does, for any number of rows; what cannot be exported says why."""

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

from ratchet.registry.pickles import files_under, find_pickles
from ratchet.serving.export import export
from ratchet.serving.program import NotExported, Parity, Program, compare
from ratchet.training import ModelSpec, build
from ratchet.training.models import Classifier

CLASSES = tuple("abcde")


def spec(name: str, side: int, channels: int = 3, **changes: Any) -> ModelSpec:
    return ModelSpec(name, CLASSES, channels, side, side, (120.0,) * channels, (60.0,) * channels, **changes)


@pytest.fixture(autouse=True)
def allowed() -> Iterator[None]:
    """PyTorch's own deprecations while it exports."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"torch|onnxscript|copyreg")
        yield


def drawn(spec: ModelSpec) -> Classifier:
    """A model whose buffers, too, are those of no fresh one."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build(spec)
        for name, one in model.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                one.uniform_(0.5, 1.5)
        model.temperature.fill_(1.7)
    return model.eval()


def asked(model: nn.Module, spec: ModelSpec, rows: int = 9) -> tuple[np.ndarray, np.ndarray]:
    """Pixels as a program takes them, and the model's answers."""
    pixels = np.random.default_rng(0).integers(0, 256, (rows, spec.height, spec.width, spec.channels))
    pixels = pixels.astype(spec.dtype)
    with torch.inference_mode():
        answers = torch.softmax(model(torch.from_numpy(pixels).permute(0, 3, 1, 2)), 1)
    return pixels, answers.numpy()


@pytest.mark.parametrize(
    "spec",
    [
        spec("convnet", 8, 1),
        spec("resnet", 32, flip_average=True),
        spec("fastnet", 32, dtype="float32"),
        spec("resnet18", 64),
        spec("mobilenet_v3_small", 64),
    ],
    ids=lambda one: one.name,
)
def test_a_program_answers_as_the_model_it_was_made_of(spec: ModelSpec, tmp_path: Path) -> None:
    model = drawn(spec)
    pixels, answers = asked(model, spec)
    export(model, spec, tmp_path)
    program = Program.of(tmp_path)
    assert isinstance(program, Program)
    for rows in (1, 2, 9):
        np.testing.assert_allclose(program.predict(pixels[:rows]), answers[:rows], atol=1e-5)
    parity = compare(tmp_path, pixels, answers)
    assert isinstance(parity, Parity)
    assert (parity.rows, parity.elsewhere) == (9, 0)
    assert parity.largest_difference < 1e-5


def test_the_files_are_plain_onnx_with_any_number_of_rows_and_no_pickle(tmp_path: Path) -> None:
    one = spec("convnet", 8, 1)
    export(drawn(one), one, tmp_path)
    program = onnx.load(tmp_path / "model.onnx")
    onnx.checker.check_model(program)
    (takes,), (gives,) = program.graph.input, program.graph.output
    sides = [[side.dim_value or side.dim_param for side in put.type.tensor_type.shape.dim] for put in (takes, gives)]
    assert (takes.name, gives.name, sides) == ("pixels", "probabilities", [["rows", 8, 8, 1], ["rows", 5]])
    about = json.loads((tmp_path / "program.json").read_text())
    opset = next(one.version for one in program.opset_import if not one.domain)
    assert about == {"format": 1, "program": "model.onnx", "input": "pixels", "output": "probabilities", "opset": opset}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx", "program.json"]
    assert list(find_pickles(files_under(tmp_path))) == []


def test_the_export_changes_neither_the_model_nor_the_random_state(tmp_path: Path) -> None:
    one = spec("resnet", 32)
    model = drawn(one)
    _, before = asked(model, one)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    export(model, one, tmp_path)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    np.testing.assert_array_equal(asked(model, one)[1], before)
    assert all(parameter.requires_grad for parameter in model.parameters())


class Head(nn.Module):
    """A network that PyTorch cannot follow, or ONNX cannot say."""

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
    ("network", "why"),
    [
        (Asks, r"^Could not guard on data-dependent expression .*\(test_export\.py, line \d+: if images\.sum\(\) > 0:"),
        (Leaves, r"numpy\(\) is not supported .*\(test_export\.py, line \d+: return self\.head\(torch\.from_numpy"),
        (Counts, r"your code specialized it to be a constant \(2\)"),
        (Rare, r"^No ONNX function found for .*bessel_j0"),
    ],
)
def test_what_cannot_be_exported_says_why_and_where_and_leaves_no_program(
    network: type[nn.Module], why: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    one = spec("convnet", 8, 1)
    with torch.random.fork_rng():
        export(Classifier(network(), one).eval(), one, tmp_path)
    found = Program.of(tmp_path)
    assert isinstance(found, NotExported)
    assert re.search(why, found.why), found.why
    assert "\n" not in found.why
    assert [path.name for path in tmp_path.iterdir()] == ["program.json"]
    assert compare(tmp_path, *asked(drawn(one), one)) == found
    assert capfd.readouterr() == ("", "")


def test_a_program_of_other_answers_is_found_out(tmp_path: Path) -> None:
    one = spec("convnet", 8, 1)
    model = drawn(one)
    export(model, one, tmp_path)
    pixels, answers = asked(model, one)
    moved = np.roll(answers, 1, axis=1)
    parity = compare(tmp_path, pixels, moved)
    assert isinstance(parity, Parity)
    assert parity.largest_difference == pytest.approx(np.abs(answers - moved).max(), abs=1e-5)
    assert parity.elsewhere == 9


def test_a_program_that_does_not_run_says_so(tmp_path: Path) -> None:
    one = spec("convnet", 8, 1)
    model = drawn(one)
    export(model, one, tmp_path)
    (tmp_path / "model.onnx").write_bytes(b"no program")
    found = compare(tmp_path, *asked(model, one))
    assert isinstance(found, NotExported)
    assert found.why.startswith("onnxruntime cannot run the program: ")


def test_a_model_stored_without_a_program_has_none(tmp_path: Path) -> None:
    one = spec("convnet", 8, 1)
    assert Program.of(tmp_path) is None
    assert compare(tmp_path, *asked(drawn(one), one)) is None


def test_a_program_of_a_model_of_16_bit_images_takes_raw_values(tmp_path: Path) -> None:
    from ratchet.registry.pyfunc import ServedClassifier

    deep = spec("convnet", 8, 1, depth=12)
    model = drawn(deep)
    export(model, deep, tmp_path)
    raw = np.random.default_rng(0).integers(0, 5_000, (9, 8, 8, 1), dtype=np.uint16)  # some beyond 12 bits
    found = compare(tmp_path, raw, ServedClassifier(model, deep).predict(raw))
    assert isinstance(found, Parity), found
    assert found.largest_difference < 1e-5
