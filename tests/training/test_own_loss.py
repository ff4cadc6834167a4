"""A user's own loss: its sums against Ratchet's, micro-batches, a resume bit for bit, and errors with the fix."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from ratchet.errors import TrainingError
from ratchet.kinds import ModelSpec
from ratchet.problems import Classes, Labels, NextToken, Numbers, Target
from ratchet.training import build, load_model, own_loss, resolve_auto, save_model
from ratchet.training.losses import Objective
from ratchet.training.models import keep_code
from ratchet.training.own_loss import OwnLoss
from tests.training.conftest import make_plan

CPU = torch.device("cpu")
TARGET = Classes(("a", "b", "c"))
LOSS = """
from torch import exp
from torch.nn import functional

from ownloss.parts import focus


def focal(logits, labels):
    losses = functional.cross_entropy(logits, labels, reduction="none")
    return (1 - exp(-losses)) ** focus() * losses
"""
NAME = "ownloss.focal:focal"


@pytest.fixture
def own(lab: Any, tmp_path: Path) -> ModelSpec:
    """The spec of a built-in model with a loss of two files, `ownloss/focal.py` and `ownloss/parts.py`."""
    folder = tmp_path / "project" / "ownloss"
    folder.mkdir(parents=True)
    (folder / "focal.py").write_text(LOSS)
    (folder / "parts.py").write_text("def focus():\n    return 2\n")
    lab.spec = replace(lab.make_spec(), code="ownloss", root=str(folder.parent))
    return lab.spec


def plan_of(lab: Any, **changes: Any) -> Any:
    return lab.plan(loss=NAME, label_smoothing=0.0, **changes)


def focal(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    losses = functional.cross_entropy(logits, labels, reduction="none")
    return (1 - torch.exp(-losses)) ** 2 * losses


def test_training_and_validation_use_the_loss(lab, own) -> None:
    """The validation loss is the mean focal loss of the trained model."""
    finished = lab.run(plan_of(lab))
    model = build(own).eval()
    model.load_state_dict(finished.weights)
    (images,), labels = lab.validation.batch(np.arange(len(lab.validation)), CPU)
    with torch.no_grad():
        expected = focal(model(images), labels).mean().item()
    best = next(row for row in finished.history if row["epoch"] == finished.best_epoch)
    assert best["validation/loss"] == pytest.approx(expected, rel=1e-5)
    usual = lab.run(lab.plan(label_smoothing=0.0), name="usual").weights
    assert any(not torch.equal(tensor, usual[name]) for name, tensor in finished.weights.items())


def test_a_resumed_training_with_it_has_equal_bits(lab, own) -> None:
    plan = plan_of(lab)
    expected = lab.run(plan, name="whole")
    lab.stop_at(5, plan, name="stopped")
    lab.assert_same(lab.run(plan, name="stopped").weights, expected.weights)


WEIGHTS = np.array([0.5, 1.0, 2.0], np.float32)


@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize("ignored", [-100, 1])
def test_cross_entropy_as_own_loss_equals_the_built_in(weights: np.ndarray | None, ignored: int) -> None:
    """With class weights, ignored labels and micro-batches."""
    outputs, labels = torch.randn(7, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 2, 1, 0, 0])
    mine = OwnLoss("own:ce", lambda logits, labels: functional.cross_entropy(logits, labels, reduction="none"))
    plan = make_plan(label_smoothing=0.0, ignore_index=ignored)
    built_in = Objective(plan, TARGET, CPU, weights=weights)
    tested = Objective(replace(plan, loss=mine.name), TARGET, CPU, weights=weights, own=mine)
    whole = tested(outputs, labels)
    assert whole.item() == pytest.approx(built_in(outputs, labels).item(), rel=1e-6)
    assert tested.weight(labels.numpy()) == built_in.weight(labels.numpy())
    halves = tested(outputs[:4], labels[:4]) + tested(outputs[4:], labels[4:])
    assert halves.item() == pytest.approx(whole.item(), rel=1e-6)


@pytest.mark.parametrize("target", [Numbers(("x", "y"), (3.0, -1.0), (2.0, 0.5)), Labels(("a", "b"))])
def test_numbers_and_labels_are_compared_as_by_built_in_losses(target: Target) -> None:
    mine = OwnLoss("own:l1", lambda outputs, targets: (outputs - targets).abs().mean(1))
    mine.check(target)
    outputs, values = torch.randn(5, 2), torch.randint(2, (5, 2)).float()
    name = "l1" if isinstance(target, Numbers) else "binary-cross-entropy"
    plan = make_plan(target=target, loss=name, label_smoothing=0.0)
    built_in = Objective(plan, target, CPU)
    if name != "l1":
        mine = OwnLoss(
            "own:b",
            lambda outputs, targets: functional.binary_cross_entropy_with_logits(
                outputs, targets, reduction="none"
            ).mean(1),
        )
    tested = Objective(replace(plan, loss=mine.name), target, CPU, own=mine)
    assert torch.equal(tested(outputs, values), built_in(outputs, values))


def test_tokens_are_samples_of_the_loss() -> None:
    target = NextToken(9)
    mine = OwnLoss("own:ce", lambda logits, ids: functional.cross_entropy(logits, ids, reduction="none"))
    mine.check(target)
    plan = make_plan(target=target)
    outputs, ids = torch.randn(2, 4, 9), torch.tensor([[1, 2, 3, 4], [8, 7, plan.ignore_index, plan.ignore_index]])
    tested = Objective(replace(plan, loss=mine.name), target, CPU, own=mine)
    assert tested(outputs, ids).item() == pytest.approx(Objective(plan, target, CPU)(outputs, ids).item(), rel=1e-6)


def test_the_saved_model_keeps_the_code_of_the_loss(own, lab, tmp_path) -> None:
    """The copy loads and is the one that trains on, though the project goes on."""
    save_model(tmp_path / "model", build(own).state_dict(), own, about={})
    assert (tmp_path / "model" / "code" / "ownloss" / "focal.py").read_text() == LOSS
    kept = keep_code(own, tmp_path / "kept")
    Path(own.root, "ownloss", "focal.py").write_text("what")
    loss = own_loss(plan_of(lab), kept)
    assert loss is not None
    outputs, labels = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    assert torch.equal(loss(outputs, labels), focal(outputs, labels))
    assert load_model(tmp_path / "model")[1].code == "ownloss"
    assert own.root not in json.dumps(own.to_json())


RETURN = "    return (1 - exp(-losses)) ** focus() * losses"
WRONG = {
    "mean": ("    return losses.mean()", r"returns shape \(\) for 4 samples.*Fix: compute it with reduction=.none."),
    "column": ("    return losses[:, None]", r"returns shape \(4, 1\) for 4 samples"),
    "list": ("    return losses.tolist()", r"returns a list for 4 samples"),
    "no gradient": ("    return losses.detach()", r"returns a loss without a gradient. Fix: use"),
    "batch": ("    return losses - losses.mean()", r"gives a sample another loss in a batch than alone.*Fix: leave"),
    "error": ("    return losses[missing]", r"raised NameError: name 'missing'.*outputs of shape \(4, 3\) and targets"),
    "shape": ("    return logits @ labels", r"raised RuntimeError: .*outputs of shape \(4, 3\) and"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_loss_is_refused_before_the_first_step(lab, own, case: str) -> None:
    line, message = WRONG[case]
    source = Path(own.root) / "ownloss" / "focal.py"
    source.write_text(LOSS.replace(RETURN, line))
    with pytest.raises(TrainingError, match=f"^training.loss: {NAME} {message}") as caught:
        lab.run(plan_of(lab))
    assert "\n" not in str(caught.value)
    assert "Fix: " in str(caught.value)
    source.write_text(LOSS)
    assert own_loss(plan_of(lab), own) is not None


CLASS = """
from torch import nn


class Focal(nn.CrossEntropyLoss):
    def __init__(self, gamma=2.0, smoothing=0.0):
        super().__init__(reduction="none")


class Learned(Focal):
    def __init__(self):
        super().__init__()
        self.scale = nn.Linear(1, 1)


loss, learned = Focal(), Learned()
"""


def test_an_object_of_a_class_can_be_the_loss(lab, own) -> None:
    """A class itself cannot, nor one with parameters, which no optimizer would change."""
    (Path(own.root) / "ownloss" / "focal.py").write_text(CLASS)
    for name, message in (
        ("Focal", r"is a class.*Fix: write `loss = Focal\(\)` below it, .*training.loss=ownloss.focal:loss`"),
        ("learned", r"has parameters, and only those of the model are trained. Fix: "),
    ):
        with pytest.raises(TrainingError, match=message):
            own_loss(replace(plan_of(lab), loss=f"ownloss.focal:{name}"), own)
    assert own_loss(replace(plan_of(lab), loss="ownloss.focal:loss"), own) is not None


def test_an_error_in_a_step_names_its_line(lab, own) -> None:
    """30 rows in steps of 8: the last step has 6."""
    fault = "    if len(logits) == 6:\n        raise KeyError('odd batch')\n"
    (Path(own.root) / "ownloss" / "focal.py").write_text(LOSS.replace(RETURN, fault + RETURN))
    with pytest.raises(TrainingError, match=r"^ownloss/focal.py, line 11, raised KeyError: 'odd batch'. Fix"):
        lab.run(plan_of(lab))


def test_smoothed_and_mixed_labels_with_an_own_loss_are_refused(lab, own) -> None:
    plan = replace(make_plan(), loss=NAME, label_smoothing=0.1)
    with pytest.raises(TrainingError, match=r"training.label_smoothing: found 0.1.*label_smoothing=auto"):
        resolve_auto(plan, TARGET)
    mixed = replace(plan, label_smoothing="auto", augment=({"rotate": 5}, {"mixup": 0.2}))
    with pytest.raises(TrainingError, match=r"training.augment: has mixup.*'training.augment=\[{rotate: 5}\]'`"):
        resolve_auto(mixed, TARGET)
    assert resolve_auto(replace(plan, label_smoothing="auto"), TARGET).label_smoothing == 0.0
