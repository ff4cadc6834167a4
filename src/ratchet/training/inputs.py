"""Inputs of a training: the data splits, and the model with its initial weights."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from ratchet.errors import TrainingError
from ratchet.training.augment import epoch_order
from ratchet.training.batches import Split
from ratchet.training.custom_dataset import DatasetSplit
from ratchet.training.models import Classifier, ModelSpec, build, load_pretrained
from ratchet.training.plan import Plan

__all__ = ["TrainingInputs", "initial_model", "open_split"]

_INITIAL_IMAGES = 4096  # that a network may use to compute its first weights


@dataclass(frozen=True)
class TrainingInputs:
    """Everything that decides the result of a training."""

    train: Split
    validation: Split
    spec: ModelSpec
    plan: Plan
    pretrained: Path | None = None  # initial weights: every tensor that fits is loaded
    identity: dict[str, str] = field(default_factory=dict)  # digests; a checkpoint with other digests is refused

    def check(self) -> None:
        """Check that both splits have samples that count in the loss.

        Raises:
            TrainingError: a split is empty, or all its labels are `training.ignore_index`.
        """
        for split in (self.train, self.validation):
            if not len(split):
                raise TrainingError(
                    f"split {split.name} has no samples. Training needs samples in train and in validation. "
                    "Fix: change data.validation_fraction or data.test_fraction"
                )
            ignored = self.plan.ignore_index
            if bool((np.asarray(split.labels) == ignored).all()):
                use = "learn from" if split.name == "train" else "choose the best epoch by"
                raise TrainingError(
                    f"all {len(split):,} samples of split {split.name} have label {ignored}, which "
                    f"training.ignore_index excludes from loss and accuracy, so there is nothing to {use}. Fix: give "
                    "some of them a class, or set training.ignore_index to another label"
                )


def open_split(packed: Path, name: str, *, workers: int = 0, sample_timeout: float = 0.0) -> Split:
    """Open split `name` (train, validation or test) of the data set in folder `packed`.

    Args:
        workers: processes that read the samples of a user's own Dataset; 0: this process.
        sample_timeout: seconds that one sample of such a Dataset may take; 0: no limit.

    Raises:
        TrainingError: it cannot be read, or it changed since it was ingested.
    """
    try:
        manifest = json.loads((packed / "manifest.json").read_text(encoding="utf-8"))
        if manifest.get("factory"):
            return DatasetSplit.open_rows(packed, name, manifest, workers=workers, sample_timeout=sample_timeout)
        return Split.open(packed, name, manifest)
    except (OSError, ValueError, KeyError) as error:
        raise TrainingError(
            f"{packed}: split {name} cannot be read ({error}). Fix: `dvc repro --force ingest` packs it again"
        ) from error


def initial_model(inputs: TrainingInputs) -> tuple[Classifier, list[str]]:
    """Return the model on the CPU with its initial weights, and messages about pretrained weights.

    The seed decides the weights. Then a network with a method `initialise` computes its own from normalised training
    images. Pretrained weights are loaded last.
    """
    plan, train = inputs.plan, inputs.train
    torch.manual_seed(plan.seed)
    model = build(inputs.spec)
    initialise = getattr(model.network, "initialise", None)
    if callable(initialise):
        rows = epoch_order(len(train), seed=plan.seed, epoch=0)[:_INITIAL_IMAGES]
        images, _ = train.batch(rows, torch.device("cpu"))
        with torch.no_grad():
            initialise(model.normalised(images))
    return model, [load_pretrained(model, inputs.pretrained).summary] if inputs.pretrained is not None else []
