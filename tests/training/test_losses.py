"""Losses against torch.nn's own, taken over the whole batch at once; micro-batches against the whole."""

import numpy as np
import pytest
import torch
from torch import nn

from ratchet.errors import TrainingError
from ratchet.problems import Classes, NextToken
from ratchet.training.losses import Objective, SampleCounts, class_weights
from ratchet.training.streams import StreamSplit
from tests.training.conftest import Lab, make_plan

CLASSES = 4
TARGET = Classes(("a", "b", "c", "d"))
LABELS = np.array([0, 2, 1, 3, 3, 0, 2], np.int64)
WEIGHTS = np.array([0.5, 1.0, 2.0, 3.0], np.float32)
CPU = torch.device("cpu")


def logits(dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(len(LABELS), CLASSES, generator=generator, dtype=torch.float64).to(dtype)


def mean(objective: Objective, answers: torch.Tensor, labels: np.ndarray) -> float:
    return (objective(answers, torch.from_numpy(labels)) / objective.weight(labels)).item()


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize("ignored", [-100, 3])
def test_cross_entropy_is_torchs(smoothing: float, weights: np.ndarray | None, ignored: int) -> None:
    objective = Objective(make_plan(label_smoothing=smoothing, ignore_index=ignored), TARGET, CPU, weights=weights)
    own = nn.CrossEntropyLoss(
        weight=None if weights is None else torch.from_numpy(weights).double(),
        ignore_index=ignored,
        label_smoothing=smoothing,
    )
    assert mean(objective, logits(), LABELS) == pytest.approx(own(logits(), torch.from_numpy(LABELS)).item(), rel=1e-7)


@pytest.mark.parametrize(
    ("kind", "own"),
    [
        ("binary-cross-entropy", nn.BCEWithLogitsLoss()),
        ("mse", nn.MSELoss()),
        ("l1", nn.L1Loss()),
        ("smooth-l1", nn.SmoothL1Loss()),
    ],
)
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_losses_on_one_hot_targets_are_torchs(kind: str, own: nn.Module, smoothing: float) -> None:
    targets = torch.zeros(len(LABELS), CLASSES, dtype=torch.float64)
    targets[torch.arange(len(LABELS)), torch.from_numpy(LABELS)] = 1.0
    targets = targets * (1 - smoothing) + smoothing / CLASSES
    objective = Objective(make_plan(loss=kind, label_smoothing=smoothing), TARGET, CPU)
    assert mean(objective, logits(), LABELS) == pytest.approx(own(logits(), targets).item(), rel=1e-12)


@pytest.mark.parametrize("kind", ["cross-entropy", "binary-cross-entropy", "mse", "l1", "smooth-l1"])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_losses_of_micro_batches_add_up(kind: str, weights) -> None:
    """Ignored samples have no effect."""
    objective = Objective(make_plan(loss=kind, ignore_index=2), TARGET, CPU, weights=weights)
    whole = mean(objective, logits(), LABELS)
    parts = [slice(0, 1), slice(1, 4), slice(4, 7)]
    total = sum(objective(logits()[part], torch.from_numpy(LABELS[part])).item() for part in parts)
    assert total / objective.weight(LABELS) == pytest.approx(whole, rel=1e-12)
    there = LABELS != 2
    assert mean(objective, logits()[torch.from_numpy(there)], LABELS[there]) == pytest.approx(whole, rel=1e-12)
    assert objective.count(LABELS) == there.sum()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_summed_in_fp32(dtype: torch.dtype) -> None:
    objective = Objective(make_plan(), TARGET, CPU)
    assert objective(logits(dtype), torch.from_numpy(LABELS)).dtype == torch.float32
    assert objective(logits(), torch.from_numpy(LABELS)).dtype == torch.float64


def test_balanced_weights_are_scikit_learns() -> None:
    from sklearn.utils.class_weight import compute_class_weight

    result = class_weights(make_plan(class_weights="balanced"), LABELS, TARGET)
    expected = compute_class_weight("balanced", classes=np.arange(CLASSES), y=LABELS)
    assert result == pytest.approx(expected, rel=1e-6)
    assert result[LABELS].mean() == pytest.approx(1.0)
    assert class_weights(make_plan(), LABELS, TARGET) is None


def test_a_list_of_weights_has_one_for_each_class() -> None:
    assert class_weights(make_plan(class_weights=(0.5, 1.0, 2.0, 3.0)), LABELS, TARGET).tolist() == WEIGHTS.tolist()
    with pytest.raises(TrainingError, match=r"training\.class_weights: found 2 weights, but the data have 4 classes"):
        class_weights(make_plan(class_weights=(1.0, 2.0)), LABELS, TARGET)


def test_validation_is_measured_without_what_only_teaches(lab) -> None:
    """Two trainings of one course whose losses differ only in a constant factor of the weights: the same figure."""
    plain = lab.plan(epochs=1, optimizer="sgd", learning_rate=1e-30, label_smoothing=0.0)
    taught = lab.plan(
        epochs=1, optimizer="sgd", learning_rate=1e-30, label_smoothing=0.3, class_weights=(9.0, 1.0, 1.0)
    )
    metrics = [lab.run(plan, name=name).history[0] for name, plan in (("plain", plain), ("taught", taught))]
    assert metrics[0]["validation/loss"] == metrics[1]["validation/loss"]
    assert metrics[0]["train/loss"] != metrics[1]["train/loss"]


@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize("ignored", [-100, 1])
@pytest.mark.parametrize("loss", ["cross-entropy", "mse"])
def test_rows_count_as_their_targets_do(weights: np.ndarray | None, ignored: int, loss: str) -> None:
    split = Lab.split("train", 30)
    objective = Objective(make_plan(loss=loss, ignore_index=ignored), TARGET, CPU, weights=weights)
    counts = SampleCounts(objective, split)
    for rows in (np.arange(30), np.array([3, 3, 28])):
        targets = split.host_targets(rows)
        assert counts.weight(rows) == objective.weight(targets)
        assert counts.num_scored(rows) == objective.num_scored(targets)


@pytest.mark.parametrize("name", ["train", "validation"])
def test_windows_count_as_their_tokens_do(name: str) -> None:
    split = StreamSplit.of(name, np.arange(100).astype(np.uint8), 16)
    objective = Objective(make_plan(), NextToken(256), CPU)
    counts = SampleCounts(objective, split)
    rows = np.arange(len(split))[-2:]
    assert counts.weight(rows) == objective.weight(split.host_targets(rows)) == (32 if name == "train" else 19)
    assert counts.num_scored(rows) == objective.num_scored(split.host_targets(rows))


def test_targets_that_all_count_are_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    split = Lab.split("train", 30)
    counts = SampleCounts(Objective(make_plan(), TARGET, CPU), split)
    read = []
    monkeypatch.setattr(type(split), "host_targets", lambda self, rows: read.append(rows))
    assert counts.weight(np.arange(7)) == 7.0
    assert counts.num_scored(np.arange(7)) == 7
    assert read == []
