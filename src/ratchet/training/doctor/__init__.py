"""The doctor: looks before the first step for what raises no error and ruins a training all the same.

Every check works on copies and on a few rows, leaves random state, model, data and disk as they are, and is silent
where all is well.
"""

from collections.abc import Iterator
from pathlib import Path

import torch

from ratchet.training.batches import Split
from ratchet.training.device import reproducible
from ratchet.training.doctor.course import examine_course
from ratchet.training.doctor.findings import Finding
from ratchet.training.doctor.network import Patient
from ratchet.training.doctor.room import examine_disk, examine_memory
from ratchet.training.doctor.rows import balanced_rows, examine_rows
from ratchet.training.models import Classifier, ModelSpec
from ratchet.training.plan import Plan

__all__ = ["Finding", "examine"]

_TRIED = 16  # samples the model is tried on


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
) -> list[Finding]:
    """Everything that is wrong with a training as it is about to begin.

    Args:
        train, validation: its data; a few rows are read, and of packed data up to 256 MiB of pixels.
        model: on `device`, with the weights it begins with, and not compiled.
        device, precision: as chosen for the run.
        pretrained: the file that weights were brought from, if any.
        checkpoints: the folder they will be written to; need not exist.
    """
    with reproducible(plan.seed, deterministic=plan.deterministic):
        findings = [
            *examine_rows(train, validation, spec.classes, plan),
            *examine_course(model, plan, rows=len(train), pretrained=pretrained),
            *examine_disk(model, plan, checkpoints),
        ]
        return findings + list(
            _examine_model(
                train, plan, model=model, device=device, precision=precision, pretrained=pretrained,
                labelled=not any(finding.check == "labels" for finding in findings),
            )
        )  # fmt: skip


def _examine_model(
    train: Split,
    plan: Plan,
    *,
    model: Classifier,
    device: torch.device,
    precision: str,
    pretrained: Path | None,
    labelled: bool,
) -> Iterator[Finding]:
    """Memory, and a trial of the model where there is memory and there are labels for one."""
    room = list(examine_memory(model, plan, device=device, precision=precision, rows=len(train), activations=0))
    if room or not labelled:
        yield from room
        return
    pieces = [balanced_rows(train, _TRIED, plan)]
    images, labels = next(train.feed(pieces, device))
    patient = Patient(model, images, labels, plan, pretrained=pretrained is not None)
    yield from patient.examine()
    yield from examine_memory(
        model, plan, device=device, precision=precision, rows=len(train), activations=patient.activations
    )
