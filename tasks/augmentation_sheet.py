"""The sheet of augmented training images in the data card, made by the code and the seed of the training."""

import json
from typing import TYPE_CHECKING

from ratchet.augmentations import entries
from ratchet.kinds.registry import kind_of
from ratchet.workspace import Workspace

if TYPE_CHECKING:
    from ratchet import training
    from tasks.training_job import TrainingJob

__all__ = ["show_augmentation"]

NO_RESULT = "of the data card"

_IMAGES = 8


def show_augmentation(workspace: Workspace, job: "TrainingJob", train: "training.Split") -> None:
    """Show the first images of the first epoch in the data card, before and after augmentation, if there is any."""
    from ratchet.reports.augmentation_sheet import put_into

    if kind_of(job.spec.input).has_pixels and workspace.card.exists():  # DVC restores the data without it
        put_into(workspace.card, _sheet(job, train))


def _sheet(job: "TrainingJob", train: "training.Split") -> str:
    """Return the section of the card; empty: no image is changed, or they cannot be drawn."""
    import torch

    from ratchet.reports.augmentation_sheet import sheet
    from ratchet.training.augment import epoch_rows

    plan, spec, augmentations = job.plan, job.spec, entries(job.plan)
    is_drawn = spec.image.dtype == "uint8" and spec.image.channels in (1, 3)
    if not augmentations or not is_drawn or job.variant == "baseline" or not len(train):
        return ""
    rows = epoch_rows(plan, len(train), train.targets, epoch=0)[:_IMAGES]
    (before, *_), _ = train.batch(rows, torch.device("cpu"))
    (after, *_), _ = train.batch(rows, torch.device("cpu"), plan=plan, epoch=0)
    pixels = [each.permute(0, 2, 3, 1).round().clamp(0, 255).to(torch.uint8).numpy() for each in (before, after)]
    targets = train.host_targets(rows).tolist() if spec.target.is_indexed else []
    labels = [spec.classes[target] if target != plan.ignore_index else "ignored" for target in targets]
    listed = ", ".join(f"{name} {json.dumps(value)}" for name, value in augmentations)
    return sheet(*pixels, labels=labels, augmentations=listed)
