"""A teacher: a trained model whose answers are learned besides the targets (Hinton, Vinyals and Dean 2015).

The teacher computes its answers on the same augmented samples, in eval mode and without gradients. So they depend on
the samples alone, and a resumed training computes the same ones.
"""

from pathlib import Path

import torch

from ratchet.errors import TrainingError
from ratchet.kinds import ModelSpec
from ratchet.kinds.registry import takes_equal
from ratchet.training.losses import Objective
from ratchet.training.models import load_model
from ratchet.training.plan import Plan
from ratchet.training.precision import Precision

__all__ = ["Teacher", "find_teacher"]


def find_teacher(folder: Path, name: str) -> Path | None:
    """Return the folder of the teacher `name` in `folder`, or None if the name is "none".

    Raises:
        TrainingError: it has no stored model; the message lists the folders that have.
    """
    if name == "none":
        return None
    path = folder / name
    if (path / "model.json").is_file() and folder.resolve() in path.resolve().parents:
        return path
    stored = ", ".join(sorted(each.parent.name for each in folder.glob("*/model.json"))) or "none"
    raise TrainingError(
        f"training.teacher: there is no model in {path}. Existing in {folder}: {stored}. Fix: `ratchet export "
        f"NAME@champion --variant model --to {path}`, or `ratchet set training.teacher=none`"
    )


class Teacher:
    """The loss of a student's outputs against those of its teacher."""

    def __init__(self, folder: Path, spec: ModelSpec, plan: Plan, objective: Objective, precision: Precision) -> None:
        """Load the teacher of a student with this `spec` and `objective`, whose class weights count here, too.

        Raises:
            TrainingError: it cannot be loaded, or has another input or target than the student.
        """
        device = objective.device
        model, teacher_spec = load_model(folder)
        _check(folder.name, teacher_spec, spec)
        self.model = model.to(device).eval().requires_grad_(False)
        if precision.channels_last:
            self.model = self.model.to(memory_format=torch.channels_last)
        self.weight, self.temperature = plan.teacher_weight, plan.teacher_temperature
        self.objective, self.precision, self.device = objective, precision, device
        self.target = spec.target
        self._divergence = spec.target.divergence(teacher_spec.target, self.temperature, device)

    def mixed(
        self, loss: torch.Tensor, inputs: tuple[torch.Tensor, ...], outputs: torch.Tensor, targets: torch.Tensor
    ) -> torch.Tensor:
        """Return (1 - weight) * `loss` + weight * the loss against the teacher; both are sums over samples.

        Samples that do not count in `loss` do not count here.
        """
        with torch.no_grad(), self.precision.autocast(self.device):
            answers = self.model(*inputs)
        return (1.0 - self.weight) * loss + self.weight * self._loss(outputs.float(), answers.float(), targets)

    def _loss(self, outputs: torch.Tensor, answers: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the sum over samples of the divergence from the teacher's answers."""
        if outputs.dim() > self.target.dimensions:  # of an ensemble: the mean over its members
            members = outputs.shape[1]
            repeated = (values.repeat_interleave(members, 0) for values in (answers, targets))
            return self._loss(outputs.flatten(0, 1), *repeated) / members
        (outputs, labels), (answers, _) = (self.target.flat(values, targets) for values in (outputs, answers))
        weights = self.objective.sample_weights(labels) if self.target.is_indexed else None
        return self._divergence(outputs, answers, weights)


def _check(name: str, teacher: ModelSpec, student: ModelSpec) -> None:
    """Refuse a teacher that does not take the student's samples, or predicts something else."""
    for what, is_same in (
        ("input", takes_equal(teacher.input, student.input)),
        ("target", teacher.target.predicts_equal(student.target)),
    ):
        if not is_same:
            taught, learned = (getattr(spec, what).description for spec in (teacher, student))
            raise TrainingError(
                f"training.teacher: {name} has another {what} ({taught}) than this training ({learned}). Allowed: a "
                "model of the same kind of samples, with the same columns, tokens and classes. Fix: name another one, "
                "or `ratchet set training.teacher=none`"
            )
