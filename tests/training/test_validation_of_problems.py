"""Validation metrics of numbers, labels and tokens against scikit-learn's, on the same answers."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score, mean_absolute_error, r2_score, root_mean_squared_error
from torch import distributed, nn
from torch.nn.functional import cross_entropy

from ratchet.problems import Labels, NextToken, Numbers, Target
from ratchet.training import Split, TableSplit
from ratchet.training.batches import ShardedArray
from ratchet.training.losses import Objective
from ratchet.training.precision import Precision
from ratchet.training.ranks import Meeting, Ranks
from ratchet.training.validation import larger_is_better, validate
from tests.training.conftest import make_plan

CPU = torch.device("cpu")
ROWS = 41


class Reads(nn.Module):
    """Answers with the numbers of each row."""

    def forward(self, numbers: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        return numbers


def metrics(
    answers: np.ndarray, targets: np.ndarray, target: Target, *, batch_size: int = 8, ranks: Ranks | None = None
) -> dict[str, float]:
    arrays = ShardedArray([answers.astype(np.float32)]), ShardedArray([np.zeros((len(answers), 0), np.int64)])
    split = TableSplit("validation", arrays, targets, np.arange(len(answers), dtype=np.uint64))
    objective = Objective.measuring(make_plan(target=target), target, CPU)
    result = validate(
        Reads(), split, objective=objective, precision=Precision("fp32", False, ""), device=CPU,
        batch_size=batch_size, ranks=ranks,
    )  # fmt: skip
    return {name.removeprefix("validation/"): value for name, value in result.items()}


@pytest.mark.parametrize(("mean", "std"), [((0.0, 0.0), (1.0, 1.0)), ((1e6, -3.0), (1e3, 1e-3))])
@pytest.mark.parametrize("batch_size", [8, 1000])
def test_metrics_of_numbers_are_scikit_learns(mean: tuple[float, ...], std: tuple[float, ...], batch_size: int) -> None:
    """Also for targets far from 0."""
    target = Numbers(("a", "b"), mean, std)
    generator = np.random.default_rng(0)
    scaled = generator.normal(size=(ROWS, 2))
    targets = (scaled * std + mean).astype(np.float32)
    answers = (scaled + generator.normal(0, 0.5, (ROWS, 2))).astype(np.float32)
    result = metrics(answers, targets, target, batch_size=batch_size)
    assert set(result) == {"loss", "mae", "rmse", "r2"}
    predicted = target.predictions(answers)
    assert result["mae"] == pytest.approx(mean_absolute_error(targets, predicted), rel=1e-3)
    assert result["rmse"] == pytest.approx(root_mean_squared_error(targets, predicted), rel=1e-3)
    assert result["r2"] == pytest.approx(r2_score(targets, predicted), rel=1e-3)
    exact = (targets.astype(np.float64) - np.array(mean)) / np.array(std)
    assert result["loss"] == pytest.approx(np.mean((answers - exact) ** 2), rel=1e-3)


def test_a_constant_target_has_no_explained_variance() -> None:
    target = Numbers(("a",), (2.0,), (1.0,))
    result = metrics(np.ones((5, 1)), np.full((5, 1), 2.0, np.float32), target)
    assert (result["r2"], result["mae"], result["rmse"]) == (0.0, 1.0, 1.0)
    assert all(math.isfinite(value) for value in result.values())


def metrics_of_numbers(ranks: Ranks) -> list[dict[str, float]]:
    """Return metrics of batches of which each rank has three, of which one rank has one more, and of one batch."""
    generator = np.random.default_rng(4)
    targets, answers = (generator.normal(size=(ROWS, 2)).astype(np.float32) for _ in range(2))
    target = Numbers(("a", "b"), (0.1, 0.2), (3.0, 0.7))
    return [metrics(answers, targets, target, batch_size=size, ranks=ranks) for size in (7, 5, 1000)]


def test_two_ranks_compute_the_bits_of_one(tmp_path: Path) -> None:
    meeting, first = str(tmp_path / "meeting"), Ranks(0, 2)
    joined = f"r = Ranks(1, 2); r.join(Meeting({meeting!r}), CPU)"
    code = f"from {__name__} import *; {joined}; print(json.dumps(metrics_of_numbers(r)))"
    paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", code], env=os.environ | paths, stdout=subprocess.PIPE) as other:
        try:
            first.join(Meeting(meeting), CPU)
            shared = metrics_of_numbers(first)
        finally:
            distributed.destroy_process_group()
        assert json.loads(other.communicate()[0]) == shared
    assert metrics_of_numbers(Ranks()) == shared


@pytest.mark.parametrize("batch_size", [7, 1000])
def test_metrics_of_labels_are_scikit_learns(batch_size: int) -> None:
    """Accuracy and f1 are over all labels of all samples."""
    generator = np.random.default_rng(1)
    targets = (generator.random((ROWS, 4)) < 0.3).astype(np.float32)
    answers = generator.normal(size=(ROWS, 4)) + targets
    result = metrics(answers, targets, Labels(tuple("abcd")), batch_size=batch_size)
    assert set(result) == {"loss", "accuracy", "f1"}
    marked = answers.astype(np.float32) > 0
    assert result["accuracy"] == pytest.approx(accuracy_score(targets.ravel(), marked.ravel()))
    assert result["f1"] == pytest.approx(f1_score(targets, marked, average="micro"))
    expected = nn.BCEWithLogitsLoss()(torch.from_numpy(answers), torch.from_numpy(targets).double())
    assert result["loss"] == pytest.approx(expected.item(), rel=1e-5)


def test_labels_that_nobody_has_and_nobody_expects_are_right() -> None:
    result = metrics(np.full((3, 2), -1.0), np.zeros((3, 2), np.float32), Labels(("a", "b")))
    assert (result["accuracy"], result["f1"]) == (1.0, 1.0)


class Stream(nn.Module):
    """Answers with fixed logits for each token that it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(6, 6, generator=torch.Generator().manual_seed(0)))

    def forward(self, numbers: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        return self.table[codes]


def test_perplexity_is_e_to_the_loss_of_a_token() -> None:
    codes = np.random.default_rng(2).integers(0, 6, (ROWS, 4))
    following = np.random.default_rng(3).integers(0, 6, (ROWS, 4))
    arrays = ShardedArray([np.zeros((ROWS, 0), np.float32)]), ShardedArray([codes])
    split: Split = TableSplit("validation", arrays, following, np.arange(ROWS, dtype=np.uint64))
    objective = Objective.measuring(make_plan(target=NextToken(6)), NextToken(6), CPU)
    model = Stream()
    result = validate(
        model, split, objective=objective, precision=Precision("fp32", False, ""), device=CPU, batch_size=8
    )
    logits, targets = model.table.detach()[torch.from_numpy(codes)], torch.from_numpy(following)
    loss = cross_entropy(logits.flatten(0, 1), targets.flatten()).item()
    assert result["validation/loss"] == pytest.approx(loss, rel=1e-5)
    assert result["validation/perplexity"] == pytest.approx(math.exp(loss), rel=1e-5)
    assert set(result) == {"validation/loss", "validation/perplexity"}


@pytest.mark.parametrize("name", ["loss", "mae", "rmse", "perplexity"])
def test_of_errors_the_smaller_is_better(name: str) -> None:
    assert larger_is_better(make_plan(best=f"validation/{name}"), 2.0) == -2.0


@pytest.mark.parametrize("name", ["accuracy", "balanced_accuracy", "f1", "r2"])
def test_of_shares_the_larger_is_better(name: str) -> None:
    assert larger_is_better(make_plan(best=f"validation/{name}"), 2.0) == 2.0
