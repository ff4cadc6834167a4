"""Differences between the files of two trainings, changed one at a time."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from commands.tensor_difference import tensor_difference
from commands.verify_resume import differences
from tasks.scratch_project import ScratchProject

WEIGHTS = {"a": torch.tensor([0.0, 1.0]), "b": torch.tensor([[2.0]], dtype=torch.bfloat16), "n": torch.tensor(3)}
POINTS = [(1, "step/loss", 0.9), (2, "step/loss", 0.8), (2, "step/samples_per_second", 10.0), (1, "train/loss", 0.7)]
Make = Callable[..., ScratchProject]


@pytest.fixture
def training(tmp_path: Path) -> Make:
    """Write the files that a training leaves; only the given ones vary."""
    count = iter(range(10))

    def make(
        weights: dict[str, torch.Tensor] = WEIGHTS, epoch: int = 1, points: list[tuple[int, str, float]] = POINTS
    ) -> ScratchProject:
        workspace = ScratchProject(tmp_path, tmp_path / str(next(count)))
        journal = workspace.mlruns / "journal" / "key"
        for folder in (journal, workspace.model, workspace.checkpoints):
            folder.mkdir(parents=True)
        save_file(weights, workspace.checkpoints / "step-4.safetensors", {"epoch": str(epoch)})
        (workspace.model / "history.json").write_text("[]")
        lines = [
            json.dumps({"kind": "metrics", "time": 0, "content": {"step": step, "values": {name: value}}})
            for step, name, value in points
        ]
        (journal / "events.jsonl").write_text("".join(f"{line}\n" for line in lines))
        return workspace

    return make


def test_equal_trainings_of_different_speed_do_not_differ(training: Make) -> None:
    faster = [(*point[:2], 99.0) if "per_second" in point[1] else point for point in POINTS]
    assert differences(training(), training(points=faster)) == []


@pytest.mark.parametrize("points", [POINTS[1:], [*POINTS, POINTS[0]], [(1, "step/loss", 0.91), *POINTS[1:]]])
def test_a_missing_repeated_or_other_point_is_named(training: Make, points: list[tuple[int, str, float]]) -> None:
    assert differences(training(), training(points=points)) == ["logged points: step/loss at step 1"]


def test_only_the_file_that_differs_is_named(training: Make) -> None:
    checkpoint = "checkpoints/step-4.safetensors"
    assert differences(training(), training(epoch=2)) == [f"{checkpoint} differs"]
    other = training(WEIGHTS | {"n": torch.tensor(4)})
    assert differences(training(), other) == [f"{checkpoint} differs: 1 of 4 numbers differ, by up to 1, in n"]
    (other.model / "history.json").unlink()
    assert "model/history.json exists in one only" in differences(training(), other)


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        ({name: tensor.clone() for name, tensor in WEIGHTS.items()}, None),
        (WEIGHTS | {"a": torch.tensor([-0.0, 1.0])}, "1 of 4 numbers differ, by up to 0, in a"),
        (WEIGHTS | {"a": torch.tensor([torch.nan, 1.0])}, "1 of 4 numbers differ, by up to inf, in a"),
        (
            WEIGHTS | {"a": torch.tensor([0.25, 1.0]), "b": torch.tensor([[1.5]], dtype=torch.bfloat16)},
            "2 of 4 numbers differ, by up to 0.5, in b",
        ),
        (
            {"a": WEIGHTS["a"].reshape(1, 2), "b": WEIGHTS["b"].float(), "x": torch.tensor(1)},
            "a, b, n, x: in one only, or of another shape or type",
        ),
    ],
)
def test_bits_of_tensors_are_compared(other: dict[str, torch.Tensor], difference: str | None) -> None:
    assert tensor_difference(WEIGHTS, other) == difference


def test_nan_equals_itself() -> None:
    assert tensor_difference({"a": torch.tensor(torch.nan)}, {"a": torch.tensor(torch.nan)}) is None
