"""Losses of numbers, labels, tokens and ensembles against torch.nn's own with reduction="mean"."""

import numpy as np
import pytest
import torch
from torch import nn

from ratchet.errors import TrainingError
from ratchet.problems import Classes, Labels, NextToken, Numbers, Target
from ratchet.training import resolve_auto
from ratchet.training.losses import Objective, class_weights
from tests.training.conftest import make_plan

CPU = torch.device("cpu")
ROWS = 7
NUMBERS = Numbers(("cnt", "price"), (10.0, -2000.0), (4.0, 500.0))
LABELS = Labels(("sunny", "calm", "warm"))
TOKENS = NextToken(11)
CLASSES = Classes(("a", "b", "c", "d"))
ELEMENTWISE = {
    "mse": nn.MSELoss(),
    "l1": nn.L1Loss(),
    "smooth-l1": nn.SmoothL1Loss(),
    "binary-cross-entropy": nn.BCEWithLogitsLoss(),
}


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)), dtype=torch.float64)


def objective(kind: str, target: Target, **changes: object) -> Objective:
    return Objective(make_plan(target=target, loss=kind, **changes), target, CPU)


def mean(objective: Objective, outputs: torch.Tensor, targets: np.ndarray) -> float:
    return (objective(outputs, torch.from_numpy(targets)) / objective.weight(targets)).item()


def numbers() -> np.ndarray:
    """Targets in their own units: float32 (rows, 2)."""
    scaled = np.random.default_rng(1).normal(size=(ROWS, 2))
    return (scaled * NUMBERS.std + NUMBERS.mean).astype(np.float32)


def labels() -> np.ndarray:
    return np.random.default_rng(2).integers(0, 2, (ROWS, 3)).astype(np.float32)


def tokens() -> np.ndarray:
    return np.random.default_rng(3).integers(0, 11, (ROWS, 5))


@pytest.mark.parametrize("kind", ["mse", "l1", "smooth-l1"])
def test_numbers_are_compared_in_standard_deviations(kind: str) -> None:
    outputs, targets = drawn(ROWS, 2), numbers()
    scaled = (torch.from_numpy(targets) - torch.tensor(NUMBERS.mean)) / torch.tensor(NUMBERS.std)
    expected = ELEMENTWISE[kind](outputs, scaled.double()).item()
    assert mean(objective(kind, NUMBERS), outputs, targets) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("kind", ["binary-cross-entropy", "mse", "l1", "smooth-l1"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_losses_of_labels_are_torchs(kind: str, smoothing: float) -> None:
    outputs, targets = drawn(ROWS, 3), labels()
    smoothed = torch.from_numpy(targets).double() * (1 - smoothing) + smoothing / 2
    expected = ELEMENTWISE[kind](outputs, smoothed).item()
    assert mean(objective(kind, LABELS, label_smoothing=smoothing), outputs, targets) == pytest.approx(
        expected, rel=1e-6
    )


@pytest.mark.parametrize("ignored", [-100, 4])
def test_next_tokens_are_counted_one_by_one(ignored: int) -> None:
    outputs, targets = drawn(ROWS, 5, 11), tokens()
    own = nn.CrossEntropyLoss(ignore_index=ignored)
    expected = own(outputs.flatten(0, 1), torch.from_numpy(targets).flatten()).item()
    loss = objective("cross-entropy", TOKENS, ignore_index=ignored, label_smoothing=0.0)
    assert mean(loss, outputs, targets) == pytest.approx(expected, rel=1e-12)
    assert loss.count(targets) == (targets != ignored).sum()


@pytest.mark.parametrize(
    ("kind", "target", "targets"),
    [
        ("mse", NUMBERS, numbers()),
        ("smooth-l1", NUMBERS, numbers()),
        ("binary-cross-entropy", LABELS, labels()),
        ("cross-entropy", CLASSES, np.array([0, 2, 1, 3, 3, 0, 2])),
        ("mse", CLASSES, np.array([0, 2, 1, 3, 3, 0, 2])),
    ],
)
def test_loss_of_an_ensemble_is_the_mean_of_its_members(kind: str, target: Target, targets: np.ndarray) -> None:
    outputs = drawn(ROWS, 4, target.outputs)
    loss = objective(kind, target)
    alone = [mean(loss, outputs[:, member], targets) for member in range(4)]
    assert mean(loss, outputs, targets) == pytest.approx(np.mean(alone), rel=1e-9)


def test_gradient_of_a_member_is_divided_by_their_number() -> None:
    outputs = drawn(ROWS, 3, 2).requires_grad_()
    loss, targets = objective("mse", NUMBERS), torch.from_numpy(numbers())
    loss(outputs, targets).backward()
    alone = outputs.detach()[:, 1].clone().requires_grad_()
    loss(alone, targets).backward()
    torch.testing.assert_close(outputs.grad[:, 1], alone.grad / 3)


@pytest.mark.parametrize(
    ("kind", "target", "outputs", "targets"),
    [
        ("l1", NUMBERS, drawn(ROWS, 2), numbers()),
        ("binary-cross-entropy", LABELS, drawn(ROWS, 3), labels()),
        ("cross-entropy", TOKENS, drawn(ROWS, 5, 11), tokens()),
        ("mse", NUMBERS, drawn(ROWS, 4, 2), numbers()),
    ],
)
def test_losses_of_micro_batches_add_up(kind: str, target: Target, outputs: torch.Tensor, targets: np.ndarray) -> None:
    loss = objective(kind, target)
    parts = [slice(0, 1), slice(1, 4), slice(4, 7)]
    total = sum(loss(outputs[part], torch.from_numpy(targets[part])).item() for part in parts)
    assert total / loss.weight(targets) == pytest.approx(mean(loss, outputs, targets), rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_outputs_are_summed_in_fp32(dtype: torch.dtype) -> None:
    for target, targets in ((NUMBERS, numbers()), (LABELS, labels())):
        loss = Objective(make_plan(target=target), target, CPU)
        assert loss(drawn(ROWS, target.outputs).to(dtype), torch.from_numpy(targets)).dtype == torch.float32


def test_right_answers_are_counted_by_problem() -> None:
    outputs = torch.tensor([[1.0, -1.0, 2.0], [-1.0, 1.0, -2.0]])
    marks = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]])
    of_labels = objective("binary-cross-entropy", LABELS)
    assert of_labels.num_correct(outputs, marks).item() == 4
    assert of_labels.num_scored(marks.numpy()) == 6
    assert objective("mse", NUMBERS).num_correct(outputs[:, :2], marks[:, :2]).item() == 0
    members = torch.tensor([[[3.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]]])
    assert objective("cross-entropy", CLASSES).num_correct(members, torch.tensor([0])).item() == 1
    stream = objective("cross-entropy", TOKENS)
    assert (
        stream.num_correct(nn.functional.one_hot(torch.from_numpy(tokens()), 11).float(), torch.from_numpy(tokens()))
        == 35
    )


@pytest.mark.parametrize(
    ("target", "loss", "best"),
    [
        (CLASSES, "cross-entropy", "validation/accuracy"),
        (LABELS, "binary-cross-entropy", "validation/f1"),
        (NUMBERS, "mse", "validation/loss"),
        (TOKENS, "cross-entropy", "validation/loss"),
    ],
)
def test_auto_is_settled_by_the_problem(target: Target, loss: str, best: str) -> None:
    plan = resolve_auto(make_plan(loss="auto", best="auto"), target)
    assert (plan.loss, plan.best) == (loss, best)
    assert resolve_auto(plan, target) == plan


@pytest.mark.parametrize(
    ("target", "changes", "message"),
    [
        (NUMBERS, {"loss": "cross-entropy"}, r"training\.loss: found cross-entropy, and the problem of the data is "
         r"regression\. Allowed: auto, mse, l1, smooth-l1\. Fix: `ratchet set training\.loss=auto`"),
        (LABELS, {"loss": "cross-entropy"}, r"training\.loss: found cross-entropy.*multi-label.*binary-cross-entropy"),
        (TOKENS, {"loss": "mse"}, r"training\.loss: found mse.*next-token\. Allowed: auto, cross-entropy"),
        (NUMBERS, {"best": "validation/accuracy"}, r"training\.best: found validation/accuracy.*regression.*"
         r"validation/mae.*Fix: `ratchet set training\.best=auto`"),
        (CLASSES, {"best": "validation/rmse"}, r"training\.best: found validation/rmse.*validation/balanced_accuracy"),
        (TOKENS, {"best": "validation/f1"}, r"training\.best: found validation/f1.*validation/perplexity"),
    ],
)  # fmt: skip
def test_a_loss_or_metric_of_another_problem_is_refused(target: Target, changes: dict[str, str], message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        resolve_auto(make_plan(**{"loss": "auto", "best": "auto", **changes}), target)


@pytest.mark.parametrize("target", [LABELS, NUMBERS, TOKENS])
def test_class_weights_are_for_classes_only(target: Target) -> None:
    assert class_weights(make_plan(), labels(), target) is None
    with pytest.raises(TrainingError, match=rf"training\.class_weights: found balanced.*{target.problem}.*none"):
        class_weights(make_plan(class_weights="balanced"), labels(), target)
