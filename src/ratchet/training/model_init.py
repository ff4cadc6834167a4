"""The model as it is before the first step."""

from pathlib import Path

import torch

from ratchet.training.augment import epoch_order
from ratchet.training.batches import Split
from ratchet.training.models import Classifier, ModelSpec, build, load_pretrained
from ratchet.training.plan import Plan

__all__ = ["fresh_model"]

_INITIAL_IMAGES = 4096  # that a network may look at to choose its first weights


def fresh_model(spec: ModelSpec, plan: Plan, train: Split, pretrained: Path | None) -> tuple[Classifier, list[str]]:
    """A model on the CPU with the weights that a run begins with, and what there is to say of them.

    They are drawn by the seed; a network with a method `initialise` chooses its own by training images, normalised;
    weights from the file `pretrained` come last.
    """
    torch.manual_seed(plan.seed)
    model = build(spec)
    initialise = getattr(model.network, "initialise", None)
    if callable(initialise):
        rows = epoch_order(len(train), seed=plan.seed, epoch=0)[:_INITIAL_IMAGES]
        images, _ = train.batch(rows, torch.device("cpu"))
        with torch.no_grad():
            initialise(model.normalised(images))
    return model, [load_pretrained(model, pretrained).words] if pretrained is not None else []
