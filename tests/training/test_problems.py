"""Trainings of tables, and of images with numbers or labels: they learn, and resume bit for bit."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from ratchet.kinds import Column, ModelSpec, TableInput, image_spec
from ratchet.problems import Classes, Labels, Numbers, Target
from ratchet.training import ImageSplit, TableSplit, build, load_model, predict_outputs, save_model
from ratchet.training.batches import ShardedArray
from ratchet.training.models.model import TableModel

TABLE = TableInput(
    (
        Column("size", "numeric", mean=50.0, std=20.0),
        Column("colour", "categorical", categories=("red", "green", "blue")),
        Column("seen", "datetime", mean=1.6e9, std=1e7),
    )
)
NUMBERS = Numbers(("price", "weight"), (100.0, 0.0), (40.0, 0.01))
LABELS = Labels(("big", "red", "late"))


def cells(rows: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return numbers, a tenth of them missing, and codes, some of them missing or unknown."""
    generator = np.random.default_rng(seed)
    numbers = (generator.normal(size=(rows, 2)) * (20.0, 1e7) + (50.0, 1.6e9)).astype(np.float32)
    numbers[generator.random((rows, 2)) < 0.1] = np.nan
    return numbers, generator.integers(0, 5, (rows, 1))


def as_numbers(numbers: NDArray[np.float32], codes: NDArray[np.int64]) -> NDArray[Any]:
    known = np.nan_to_num((numbers - (50.0, 1.6e9)) / (20.0, 1e7))
    return np.stack([100 + 40 * known[:, 0], 0.01 * (codes[:, 0] - 2)], 1).astype(np.float32)


def as_labels(numbers: NDArray[np.float32], codes: NDArray[np.int64]) -> NDArray[Any]:
    return np.stack([numbers[:, 0] > 50, codes[:, 0] == 2, numbers[:, 1] > 1.6e9], 1).astype(np.float32)


def as_classes(numbers: NDArray[np.float32], codes: NDArray[np.int64]) -> NDArray[Any]:
    return (numbers[:, 0] > 50).astype(np.int64)


PROBLEMS: dict[str, tuple[Target, Callable[..., NDArray[Any]], dict[str, Any]]] = {
    "regression": (NUMBERS, as_numbers, {}),
    "regression, l1, muon": (NUMBERS, as_numbers, {"loss": "l1", "optimizer": "muon", "best": "validation/r2"}),
    "multi-label": (LABELS, as_labels, {}),
    "multi-label, average": (LABELS, as_labels, {"ema_decay": 0.9, "accumulation": 2, "label_smoothing": 0.1}),
    "classification": (Classes(("small", "big")), as_classes, {"class_weights": "balanced"}),
}


def table(
    name: str, rows: int, seed: int, targets: Callable[..., NDArray[Any]], *, shards: int = 1, first: int = 0
) -> TableSplit:
    numbers, codes = cells(rows, seed)
    arrays = tuple(ShardedArray(np.array_split(array, shards)) for array in (numbers, codes))
    keys = np.arange(first, first + rows, dtype=np.uint64)
    return TableSplit(name, arrays, targets(numbers, codes), keys)


def set_up(lab, problem: str) -> Any:
    """Give the lab a table of this problem, and return its plan."""
    target, targets, changes = PROBLEMS[problem]
    lab.train, lab.validation = table("train", 30, 0, targets), table("validation", 12, 1, targets, first=1000)
    lab.spec = ModelSpec("mlp", TABLE, target)
    return lab.plan(target=target, **changes)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_table_resumed_at_any_step_equals_the_undisturbed_run(lab, problem: str) -> None:
    plan = set_up(lab, problem)
    undisturbed = lab.run(plan, name="undisturbed")
    _, end = lab.store(plan, "undisturbed").newest()
    for step in (0, 1, 4, 6, 11):
        name = f"stopped at {step}"
        lab.stop_at(step, plan, name=name)
        after = lab.run(plan, name=name)
        assert json.dumps(after.history) == json.dumps(undisturbed.history)
        assert (after.best_epoch, after.best_value) == (undisturbed.best_epoch, undisturbed.best_value)
        lab.assert_same(after.weights, undisturbed.weights)
        _, resumed_end = lab.store(plan, name).newest()
        lab.assert_same(resumed_end.tensors, end.tensors)
        assert resumed_end.state == end.state


@pytest.mark.parametrize("problem", ["regression", "multi-label"])
def test_a_table_is_learned(lab, problem: str) -> None:
    target, targets, _ = PROBLEMS[problem]
    plan = replace(set_up(lab, problem), epochs=30, batch_size=64, learning_rate=0.01, crop_padding=0)
    lab.train = table("train", 512, 2, targets)
    lab.validation = table("validation", 128, 3, targets, first=1000)
    history = lab.run(plan).history
    assert history[-1]["train/loss"] < history[0]["train/loss"] / 2
    last = history[-1]
    if isinstance(target, Numbers):
        assert last["validation/r2"] > 0.9
        assert not [name for name in last if "accuracy" in name]
    else:
        assert last["validation/f1"] > 0.9
        assert last["train/accuracy"] > 0.9


def test_shards_of_a_table_change_nothing(lab) -> None:
    plan = set_up(lab, "regression")
    whole = lab.run(plan, name="one")
    lab.train = table("train", 30, 0, as_numbers, shards=4)
    lab.assert_same(lab.run(plan, name="four").weights, whole.weights)


def test_a_saved_table_model_loads_with_the_same_answers(lab, tmp_path: Path) -> None:
    """State dicts hold the network alone: the scaling comes from the spec."""
    plan = set_up(lab, "regression")
    weights = lab.run(plan).weights
    save_model(tmp_path / "saved", weights, lab.spec, about={})
    loaded, spec = load_model(tmp_path / "saved")
    assert spec == lab.spec
    assert isinstance(loaded, TableModel)
    assert {name.split(".")[0] for name in weights} == {"network", "temperature"}
    outputs = predict_outputs(loaded, lab.validation)
    assert outputs.shape == (12, 2)
    numbers, codes = (torch.from_numpy(array) for array in lab.validation.gather(np.arange(12)))
    with torch.no_grad():
        expected = loaded.network(*loaded.prepared(numbers, codes))
    torch.testing.assert_close(torch.from_numpy(outputs), expected)


def test_numbers_of_a_table_are_scaled_and_missing_ones_marked() -> None:
    model = build(ModelSpec("mlp", TABLE, NUMBERS))
    numbers = torch.tensor([[70.0, float("nan")], [50.0, 1.61e9]])
    scaled, missing, codes = model.prepared(numbers, torch.tensor([[0], [4]]))
    torch.testing.assert_close(scaled, torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    assert missing.tolist() == [[0.0, 1.0], [0.0, 0.0]]
    assert codes.tolist() == [[0], [4]]


def image_split(name: str, rows: int, targets: Callable[..., NDArray[Any]], *, first: int = 0) -> ImageSplit:
    """Noisy images; the targets are made from the brightness of their halves, float64 (rows, 2) in 0..1."""
    generator = np.random.default_rng(first)
    halves = generator.random((rows, 2))
    images = generator.integers(0, 40, (rows, 8, 8, 1)) + 200 * np.repeat(halves, 4, 1)[:, None, :, None]
    keys = np.arange(first, first + rows, dtype=np.uint64)
    return ImageSplit.of(name, [images.astype(np.uint8)], targets(halves).astype(np.float32), keys)


IMAGE_PROBLEMS: dict[str, tuple[Target, Callable[..., NDArray[Any]]]] = {
    "regression": (
        Numbers(("left", "both"), (5.0, 10.0), (3.0, 4.0)),
        lambda h: np.stack([10 * h[:, 0], 10 * h.sum(1)], 1),
    ),
    "multi-label": (LABELS, lambda h: np.stack([h[:, 0] > 0.5, h[:, 1] > 0.5, h.sum(1) > 1], 1)),
}


@pytest.mark.parametrize("problem", IMAGE_PROBLEMS)
@pytest.mark.parametrize("name", ["tiny", "convnet"])
def test_images_with_other_targets_learn_and_resume_exactly(lab, problem: str, name: str) -> None:
    target, targets = IMAGE_PROBLEMS[problem]
    lab.train, lab.validation = image_split("train", 64, targets), image_split("validation", 24, targets, first=1000)
    lab.spec = ModelSpec(name, lab.spec.image, target)
    plan = lab.plan(target=target, epochs=6, batch_size=16, learning_rate=0.01, flip="none", crop_padding=1)
    finished = lab.run(plan)
    history = finished.history
    assert history[-1]["train/loss"] < history[0]["train/loss"]
    metrics = {"mae", "rmse", "r2"} if isinstance(target, Numbers) else {"accuracy", "f1"}
    assert {f"validation/{metric}" for metric in metrics} < set(history[-1])
    assert all(tensor.isfinite().all() for tensor in finished.weights.values())
    lab.stop_at(7, plan, name="stopped")
    resumed = lab.run(plan, name="stopped")
    assert json.dumps(resumed.history) == json.dumps(history)
    lab.assert_same(resumed.weights, finished.weights)


OLD_SPEC = {
    "name": "convnet", "classes": ["ant", "bee"], "channels": 1, "height": 8, "width": 8, "mean": [73.0],
    "std": [90.0], "dtype": "uint8", "factory": "none", "code": "none", "flip_average": False,
}  # fmt: skip


@pytest.mark.parametrize("changes", [{}, {"depth": 12, "flip_average": True}])
def test_a_saved_model_of_format_1_still_loads(lab, tmp_path: Path, changes: dict[str, Any]) -> None:
    """It was written by versions that knew images with classes only."""
    expected = image_spec("convnet", ("ant", "bee"), 1, 8, 8, (73.0,), (90.0,), **changes)
    model = build(expected).eval()
    save_file(dict(model.state_dict()), tmp_path / "model.safetensors")
    about = {"format": 1, "spec": {**OLD_SPEC, **changes}, "training": {"steps": 3}}
    (tmp_path / "model.json").write_text(json.dumps(about))
    loaded, spec = load_model(tmp_path)
    assert spec == expected
    assert ModelSpec.from_json(spec.to_json()) == spec
    images = torch.randint(0, 256, (5, 1, 8, 8), dtype=torch.uint8)
    with torch.no_grad():
        assert torch.equal(loaded(images), model(images))


def test_a_saved_model_says_that_its_format_is_2(lab, tmp_path: Path) -> None:
    save_model(tmp_path, build(lab.spec).state_dict(), lab.spec, about={})
    about = json.loads((tmp_path / "model.json").read_text())
    assert about["format"] == 2
    assert about["spec"]["input"]["kind"] == "image"
    assert about["spec"]["target"] == {"problem": "classification", "names": list(lab.spec.classes)}
