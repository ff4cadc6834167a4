"""The doctor: look for mistakes that raise no error and ruin a training, before its first step.

Every check works on copies and on a few samples, and leaves random state, model, data and disk unchanged. A sound
training gets no finding.
"""

import math
from functools import partial
from pathlib import Path

import torch

from ratchet.doctor.data_checks import balanced_rows, check_samples
from ratchet.doctor.findings import Finding, describe_finding
from ratchet.doctor.model_checks import ModelProbe
from ratchet.doctor.settings_checks import check_disk, check_memory, check_settings
from ratchet.errors import TrainingError
from ratchet.kinds import ModelSpec
from ratchet.kinds.registry import kind_of
from ratchet.training.batches import Batch, Split
from ratchet.training.device import reproducible
from ratchet.training.models import Model
from ratchet.training.plan import Plan

__all__ = ["Finding", "check_samples", "describe_finding", "examine"]

NO_RESULT = "it looks for faults before the first step, and leaves model, data and random state as they were"

_SAMPLES, _SAMPLES_LARGE = 16, 8  # that the model is tried on; the second where the first would have more values than
_LARGE = 1 << 20
_FEWEST_PIECES, _TOKENS = 4, 1024  # of a token stream: fewer pieces if they have more tokens than that
_WRONG_TARGETS = {"labels-out-of-range", "targets-not-finite"}


def examine(
    train: Split,
    validation: Split,
    spec: ModelSpec,
    plan: Plan,
    *,
    model: Model,
    device: torch.device,
    precision: str,
    pretrained: Path | None,
    checkpoints: Path,
    rows: int | None = None,
) -> list[Finding]:
    """Return everything that is wrong with a training that is about to begin.

    Args:
        train, validation: its data; a few samples are read, and of packed data up to 256 MiB to find equal samples.
        model: on `device`, with its initial weights, not compiled.
        device, precision: as chosen for the run.
        rows: number of training samples, where `train` holds only some of them.
    """
    rows = len(train) if rows is None else rows
    with reproducible(plan.seed, deterministic=plan.deterministic):
        findings = [
            *check_samples(train, validation, spec, plan),
            *check_settings(model, plan, rows=rows),
            *check_disk(model, plan, checkpoints),
        ]
        memory = partial(check_memory, model, plan, device=device, precision=precision, rows=rows)
        if any(finding.rule in _WRONG_TARGETS for finding in findings):
            return findings
        if without_batch := list(memory(activations=0)):
            return findings + without_batch
        batch = _batch(train, spec, plan, device)
        try:
            probe = ModelProbe(model, batch, plan, spec, pretrained=pretrained is not None)
        except TrainingError as error:  # training itself may need no copy
            reason, _, _ = str(error).partition(". Fix: ")
            return [*findings, Finding.of("model-not-examined", reason=reason)]
        return [*findings, *probe.examine(), *memory(activations=probe.activations)]


def _batch(train: Split, spec: ModelSpec, plan: Plan, device: torch.device) -> Batch:
    """Return the batch that the model is tried on, without augmentation."""
    count = _SAMPLES
    if kind_of(spec.input).generates:
        count = max(_FEWEST_PIECES, min(_SAMPLES, _TOKENS // spec.stream.context))
    elif _SAMPLES * math.prod(spec.input.shape) > _LARGE:
        count = _SAMPLES_LARGE
    return next(train.feed([balanced_rows(train, count, plan)], device))
