"""Differences between the files of two trainings, changed one at a time."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from commands.checkpoint_difference import differences
from commands.resume_trial import Trial
from ratchet.training import CheckpointStore
from ratchet.training.checkpoint import Snapshot
from tasks.scratch_project import Scratch

SNAPSHOT = Snapshot(
    step=4,
    tensors={"model/weight": torch.tensor([1.0, 2.0]), "optimizer/weight/step": torch.tensor(4)},
    state={"epoch": 1, "history": [{"epoch": 1, "train/loss": 0.5}]},
)
POINTS = [(1, "step/loss", 0.9), (2, "step/loss", 0.8), (2, "step/samples_per_second", 10.0), (1, "train/loss", 0.7)]
Make = Callable[..., Trial]


@pytest.fixture
def trial(tmp_path: Path) -> Make:
    """Write the files that a training leaves; only the given ones vary."""
    count = iter(range(10))

    def make(
        *,
        snapshot: Snapshot = SNAPSHOT,
        weights: torch.Tensor = SNAPSHOT.tensors["model/weight"],
        history: tuple[dict[str, Any], ...] = ({"epoch": 1, "train/loss": 0.5},),
        points: list[tuple[int, str, float]] = POINTS,
    ) -> Trial:
        result = Trial(Scratch(tmp_path, tmp_path / str(next(count))), progress=lambda done: None)
        journal = result.workspace.mlruns / "journal" / "key"
        for folder in (journal, result.workspace.model):
            folder.mkdir(parents=True)
        with CheckpointStore(result.workspace.checkpoints) as store:
            store.put(snapshot)
        save_file({"weight": weights}, result.workspace.model / "model.safetensors")
        (result.workspace.model / "history.json").write_text(json.dumps(history))
        lines = [
            json.dumps({"kind": "metrics", "time": 0, "content": {"step": step, "values": {name: value}}})
            for step, name, value in points
        ]
        (journal / "events.jsonl").write_text("".join(f"{line}\n" for line in lines))
        return result

    return make


def tensors(**changes: torch.Tensor) -> Snapshot:
    """Return the snapshot with other tensors; `__` stands for the slash in a name."""
    return replace(
        SNAPSHOT, tensors=SNAPSHOT.tensors | {name.replace("__", "/"): tensor for name, tensor in changes.items()}
    )


def test_equal_trainings_of_different_speed_do_not_differ(trial: Make) -> None:
    faster = [(*point[:2], 99.0) if "per_second" in point[1] else point for point in POINTS]
    assert differences(trial(), trial(points=faster)) == []


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (
            {"snapshot": tensors(model__weight=torch.tensor([1.0, 2.5]))},
            "last checkpoint: tensor model/weight: 1 of 2 elements, by up to 0.5",
        ),
        (
            {"snapshot": tensors(model__weight=torch.tensor([1.0, 2.0], dtype=torch.float64))},
            "last checkpoint: tensor model/weight is torch.float32 (2,), then torch.float64 (2,)",
        ),
        ({"snapshot": tensors(ema__weight=torch.tensor(1.0))}, "last checkpoint: tensor ema/weight is in one only"),
        ({"snapshot": replace(SNAPSHOT, step=3)}, "last checkpoint: of step 4, then of step 3"),
        (
            {"snapshot": replace(SNAPSHOT, state=SNAPSHOT.state | {"epoch": 2})},
            "last checkpoint: epoch is 1, then 2",
        ),
        ({"weights": torch.tensor([1.0, -2.0])}, "best weights: tensor weight: 1 of 2 elements, by up to 4"),
        ({"history": ({"epoch": 1, "train/loss": 0.6},)}, "history: first in epoch 1"),
        ({"history": ({"epoch": 1, "train/loss": 0.5}, {"epoch": 2})}, "history: first in epoch 2"),
        (
            {"points": [(1, "step/loss", 0.9), (2, "step/loss", 0.81), *POINTS[2:]]},
            "logged points: step/loss at 2 is 0.8, then 0.81",
        ),
        ({"points": [*POINTS, POINTS[1]]}, "logged points: step/loss at 2 is 0.8, then 0.8, 0.8"),
        ({"points": POINTS[1:]}, "logged points: step/loss at 1 is 0.9, then nothing"),
    ],
)
def test_only_the_actual_difference_is_named(trial: Make, other: dict[str, Any], sentence: str) -> None:
    assert differences(trial(), trial(**other)) == [sentence]


def test_bits_are_compared_not_values(trial: Make) -> None:
    """Zero differs from minus zero, and NaN equals itself."""
    zero, minus_zero = (trial(weights=torch.tensor([0.0, value])) for value in (0.0, -0.0))
    assert differences(zero, minus_zero) == ["best weights: tensor weight: 1 of 2 elements, by up to 0"]
    assert differences(trial(weights=torch.tensor([torch.nan])), trial(weights=torch.tensor([torch.nan]))) == []
