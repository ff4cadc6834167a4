"""Knowledge distillation: the loss by its definition, exact resumption, and what a student learns."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ratchet.errors import TrainingError
from ratchet.kinds import ModelSpec, TextInput, TokensInput
from ratchet.problems import Classes, Labels, NextToken, Numbers, Target
from ratchet.training import build, find_teacher, save_model
from ratchet.training.losses import Objective
from ratchet.training.precision import choose_precision
from ratchet.training.predict import predict_outputs
from ratchet.training.teacher import Teacher

CPU = torch.device("cpu")
ROWS = 6


def stored(folder: Path, spec: ModelSpec, *, seed: int = 3) -> Path:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        save_model(folder, build(spec).state_dict(), spec, about={"training": {}})
    return folder


def teacher(folder: Path, lab: Any, spec: ModelSpec, *, weights: Any = None, **changes: Any) -> Teacher:
    plan = lab.plan(**changes)
    precision = choose_precision("fp32", CPU, channels_last=False)
    objective = Objective(plan, spec.target, CPU, weights=weights)
    return Teacher(folder, spec, plan, objective, precision)


def kl(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """The divergence of distributions (n, k) from `first`, summed over k, in float64."""
    return (first * (first.log() - second.log())).sum(1)


@pytest.mark.parametrize("soft", [1.0, 4.0])
def test_loss_of_classes_is_the_scaled_divergence(lab: Any, tmp_path: Path, soft: float) -> None:
    folder, weights = stored(tmp_path / "t", lab.spec), np.array([0.5, 1.0, 2.0], np.float32)
    taught = teacher(folder, lab, lab.spec, weights=weights, teacher_weight=0.25, teacher_temperature=soft)
    inputs = (torch.randint(0, 256, (ROWS, 1, 8, 8), dtype=torch.uint8),)
    outputs, targets = torch.randn(ROWS, 3), torch.tensor([0, 1, 2, -100, 1, 0])
    with torch.no_grad():
        theirs = taught.model(*inputs).double()
    each = kl((theirs / soft).softmax(1), (outputs.double() / soft).softmax(1))
    sample_weights = torch.tensor([0.5, 1.0, 2.0, 0.0, 1.0, 0.5])
    expected = 0.75 * 7.0 + 0.25 * soft**2 * (each * sample_weights).sum()
    assert float(taught.mixed(torch.tensor(7.0), inputs, outputs, targets)) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("members", [0, 4])
@pytest.mark.parametrize("target", [Labels(("a", "b")), Numbers(("x", "y"), (5.0, -1.0), (2.0, 4.0))])
def test_loss_of_labels_and_numbers(lab: Any, tmp_path: Path, target: Target, members: int) -> None:
    spec = replace(lab.spec, target=target)
    theirs = replace(target, mean=(4.0, 0.0), std=(1.0, 8.0)) if isinstance(target, Numbers) else target
    folder = stored(tmp_path / "t", replace(spec, target=theirs))
    taught = teacher(folder, lab, spec, teacher_weight=1.0, teacher_temperature=3.0)
    inputs = (torch.randint(0, 256, (ROWS, 1, 8, 8), dtype=torch.uint8),)
    outputs = torch.randn(ROWS, *([members] if members else []), 2)
    with torch.no_grad():
        answers = taught.model(*inputs).double()
    single = outputs.double().unsqueeze(1) if not members else outputs.double()
    if isinstance(target, Labels):
        p, q = (answers / 3).sigmoid().unsqueeze(1), (single / 3).sigmoid()
        each = 9 * (p * (p.log() - q.log()) + (1 - p) * ((1 - p).log() - (1 - q).log()))
    else:
        in_units = answers * torch.tensor([1.0, 8.0]) + torch.tensor([4.0, 0.0])
        each = (single - ((in_units - torch.tensor([5.0, -1.0])) / torch.tensor([2.0, 4.0])).unsqueeze(1)) ** 2
    loss = taught.mixed(torch.tensor(0.0), inputs, outputs, torch.zeros(ROWS, 2))
    assert float(loss) == pytest.approx(float(each.mean((1, 2)).sum()), rel=1e-4)


def test_loss_of_tokens_leaves_out_padded_places(lab: Any, tmp_path: Path) -> None:
    spec = ModelSpec("decoder", TokensInput("bytes", context=8), NextToken(256))
    taught = teacher(stored(tmp_path / "t", spec), lab, spec, teacher_weight=1.0, teacher_temperature=2.0)
    ids, outputs = torch.randint(0, 256, (2, 8)), torch.randn(2, 8, 256)
    targets = torch.randint(0, 256, (2, 8))
    targets[1, 5:] = taught.objective.ignored
    with torch.no_grad():
        theirs = taught.model(ids).double()
    each = kl((theirs / 2).softmax(-1).flatten(0, 1), (outputs.double() / 2).softmax(-1).flatten(0, 1))
    expected = 4 * each[targets.flatten() != taught.objective.ignored].sum()
    assert float(taught.mixed(torch.tensor(0.0), (ids,), outputs, targets)) == pytest.approx(float(expected), rel=1e-5)


def test_a_student_needs_no_labels(lab: Any, tmp_path: Path) -> None:
    """With all of the loss from the teacher, wrong labels change nothing but the measured loss."""
    plan = lab.plan(epochs=20, learning_rate=0.01, best="validation/loss")
    taught = lab.run(plan, name="teacher")
    save_model(tmp_path / "t", taught.weights, lab.spec, about={"training": {}})
    lab.train = replace(lab.train, targets=np.zeros_like(lab.train.targets))
    lab.teacher = tmp_path / "t"
    learned = lab.run(replace(plan, teacher="t", teacher_weight=1.0), name="student")
    outputs = []
    for weights in (taught.weights, learned.weights):
        model = build(lab.spec).eval()
        model.load_state_dict(weights)
        outputs.append(np.asarray(predict_outputs(model, lab.validation)).argmax(1))
    assert (outputs[0] == outputs[1]).mean() > 0.9
    assert (outputs[1] == np.asarray(lab.validation.targets)).mean() > 0.6  # always one class: a third


@pytest.mark.parametrize("changes", [{}, {"precision": "bf16", "accumulation": 2, "ema_decay": 0.9}])
def test_a_run_with_a_teacher_resumes_exactly(lab: Any, tmp_path: Path, changes: dict[str, Any]) -> None:
    lab.teacher = stored(tmp_path / "t", replace(lab.spec, name="convnet"))
    plan = lab.plan(epochs=2, teacher="t", **changes)
    finished = lab.run(plan, name="undisturbed")
    _, end = lab.store(plan, "undisturbed").newest()
    for step in (1, 4, 6):
        lab.stop_at(step, plan, name=f"stopped at {step}")
        resumed = lab.run(plan, name=f"stopped at {step}")
        assert resumed.history == finished.history
        lab.assert_same(lab.store(plan, f"stopped at {step}").newest()[1].tensors, end.tensors)
    lab.teacher = stored(tmp_path / "other", replace(lab.spec, name="convnet"), seed=4)
    assert lab.run(plan, name="other").history != finished.history


def test_another_input_or_target_is_refused(lab: Any, tmp_path: Path) -> None:
    for name, spec, message in (
        ("large", lab.make_spec(size=16), "large has another input (16 x 16 x 1 pixels) than this training (8 x 8 x 1"),
        ("four", lab.make_spec(classes=4), "four has another target (4 classes) than this training (3 classes)"),
        (
            "text",
            ModelSpec("bag", TextInput("hashed", buckets=16, longest=8), Classes(("a", "b", "c"))),
            "another input",
        ),
    ):
        with pytest.raises(TrainingError, match=r"^training\.teacher: ") as refusal:
            teacher(stored(tmp_path / name, spec), lab, lab.spec)
        assert message in str(refusal.value)
    assert find_teacher(tmp_path, "large") == tmp_path / "large"
    assert find_teacher(tmp_path, "none") is None
    for outside in ("gone", "../four"):
        with pytest.raises(TrainingError, match=r"there is no model in .* Existing in .*: (four, large, text|none)"):
            find_teacher(tmp_path if outside == "gone" else tmp_path / "x", outside)
