"""The doctor: looks before the first step for what raises no error and ruins a training all the same.

Every check works on copies and on a few rows, leaves random state, model, data and disk as they are, and is silent
where all is well.
"""

from functools import partial
from pathlib import Path

import torch

from ratchet.errors import TrainingError
from ratchet.training.batches import Batch, Split
from ratchet.training.device import reproducible
from ratchet.training.doctor.findings import Finding
from ratchet.training.doctor.model_checks import ModelProbe
from ratchet.training.doctor.resources import examine_disk, examine_memory
from ratchet.training.doctor.sample_checks import balanced_rows, examine_rows
from ratchet.training.doctor.schedule_checks import examine_course
from ratchet.training.models import Classifier, ModelSpec
from ratchet.training.plan import Plan

__all__ = ["Finding", "examine"]

_TRIED, _TRIED_LARGE = 16, 8  # samples the model is tried on; fewer where all together have more values than
_LARGE = 1 << 20


def examine(
    train: Split,
    validation: Split,
    spec: ModelSpec,
    plan: Plan,
    *,
    model: Classifier,
    device: torch.device,
    precision: str,
    pretrained: Path | None,
    checkpoints: Path,
    rows: int | None = None,
) -> list[Finding]:
    """Everything that is wrong with a training as it is about to begin.

    Args:
        train, validation: its data; a few rows are read, and of packed data up to 256 MiB of pixels.
        model: on `device`, with the weights it begins with, and not compiled.
        device, precision: as chosen for the run.
        pretrained: the file that weights were brought from, if any.
        checkpoints: the folder they will be written to; need not exist.
        rows: of the training data, where `train` is only a sample of them.
    """
    rows = len(train) if rows is None else rows
    with reproducible(plan.seed, deterministic=plan.deterministic):
        findings = [
            *examine_rows(train, validation, spec.classes, plan),
            *examine_course(model, plan, rows=rows, pretrained=pretrained),
            *examine_disk(model, plan, checkpoints),
        ]
        memory = partial(examine_memory, model, plan, device=device, precision=precision, rows=rows)
        if any(finding.check == "labels" for finding in findings):
            return findings
        if without_batch := list(memory(activations=0)):
            return findings + without_batch
        batch = _sample(train, spec, plan, device)
        try:
            patient = ModelProbe(model, *batch, plan, pretrained=pretrained is not None)
        except TrainingError as error:  # training itself may need no copy
            return [*findings, Finding("model not examined", "the doctor skips the model", str(error), "warning")]
        return [*findings, *patient.examine(), *memory(activations=patient.activations)]


def _sample(train: Split, spec: ModelSpec, plan: Plan, device: torch.device) -> Batch:
    """The batch a model is tried on, not augmented."""
    values = _TRIED * spec.channels * spec.height * spec.width
    rows = balanced_rows(train, _TRIED if values <= _LARGE else _TRIED_LARGE, plan)
    return next(train.feed([rows], device))
