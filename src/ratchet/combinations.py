"""Settings that exclude each other, by one check for all: `ratchet set` warns, preflight and every start refuse.

Standard library only: training imports it, and `ratchet set` waits for no library. `training` is the section of
params.yaml, or a plan, whose fields have the same names.
"""

import json
from collections.abc import Iterator
from typing import Any

from ratchet.augmentations import MIXING, class_faults, entries, without_mixing

__all__ = [
    "blend_fault", "column_faults", "gap_fault", "objective_faults", "own_loss_fault", "pieces_fault", "pruning_fault",
    "reduction_fault", "sampling_fault", "shard_fault", "shard_obstacles", "training_faults",
]  # fmt: skip

NO_RESULT = "it refuses combinations of settings"


def training_faults(training: Any) -> Iterator[str]:
    """Yield a message for each combination that training refuses whatever the data are."""
    faults = (
        shard_fault(training, shard_obstacles(training)),
        reduction_fault(training),
        pieces_fault(training.processes, training.pieces),
        own_loss_fault(training),
        sampling_fault(training),
    )
    yield from filter(None, faults)


def shard_obstacles(training: Any) -> list[str]:
    """Return why a model may not be sharded with these settings."""
    obstacles = {
        "training.optimizer muon needs whole matrices": training.optimizer == "muon",
        "training.prune_channels is set": training.prune_channels > 0,
        "training.frozen_epochs is set": training.frozen_epochs > 0,
        "training.unfreeze_epochs is set": training.unfreeze_epochs > 0,
        "training.compile is set": training.compile != "none",
        "training.gradient_checkpointing is set": training.gradient_checkpointing,
        "training.precision fp16 has a loss scale": training.precision == "fp16",
        "training.channels_last changes the order of the rows": training.channels_last is True,
    }
    return [reason for reason, is_true in obstacles.items() if is_true]


def shard_fault(training: Any, obstacles: list[str]) -> str:
    """Return why `training.shard: fsdp` is refused; empty: it is not."""
    if training.shard != "fsdp" or not obstacles:
        return ""
    return f"training.shard: found fsdp, and {obstacles[0]}. Fix: `ratchet set training.shard=none`, or change that"


def reduction_fault(training: Any) -> str:
    """Return why PyTorch may not add the gradients: the number of processes is not known by the settings."""
    least, _, most = str(training.nodes).partition(":")
    if training.reduction == "fast" and (most or least) != least:
        return (
            f"training.nodes: found {training.nodes}, and with training.reduction fast the number decides the weights. "
            f"Fix: `ratchet set training.nodes={most}`, or `ratchet set training.reduction=exact`"
        )
    if training.reduction != "fast" or training.processes != "auto":
        return ""
    return (
        "training.processes: found auto, and with training.reduction fast the number decides the weights. Fix: "
        "`ratchet set training.processes=1`, or `ratchet set training.reduction=exact`"
    )


def pieces_fault(processes: int | str, pieces: int) -> str:
    """Return why processes cannot share the pieces of a step equally; empty: they can."""
    if processes == "auto" or pieces % int(processes) == 0:
        return ""
    return (
        f"training.processes: found {processes}, which cannot share the {pieces} of training.pieces equally. Fix: "
        f"`ratchet set training.pieces={processes}`, which decides the weights, or "
        "`ratchet set training.processes=auto`"
    )


def pruning_fault(training: Any, variant: str) -> str:
    """Return why a `variant` of the model, such as its baseline, is not pruned; empty: nothing is pruned."""
    if not training.prune_channels:
        return ""
    return (
        f"training.prune_channels: found {training.prune_channels:g}, and model.name is {variant}. Allowed: 0, or a "
        "network as model.name. Fix: `ratchet set training.prune_channels=0`"
    )


def blend_fault(name: str, kind: str, baseline: str) -> str:
    """Return why a network cannot be blended with the `baseline` of a kind; empty: it can, or is not."""
    if name != "blend" or baseline:
        return ""
    return (
        f"model.name: found blend, and the baseline of {kind} data is the most frequent class. Allowed: a network, or "
        "baseline. Fix: `ratchet set model.name=auto`"
    )


def objective_faults(training: Any, target: Any) -> Iterator[str]:
    """Yield a message for each loss, metric or mixing of samples that the problem of a target does not have."""
    yield from class_faults(training, target)
    if training.sampling != "as-is" and not target.balances:
        yield (
            f"training.sampling: found {training.sampling}, and the problem of the data is {target.problem}. Allowed: "
            "as-is; balanced is for classification. Fix: `ratchet set training.sampling=as-is`"
        )
    for key, value, allowed in (
        ("training.loss", training.loss, target.losses),
        ("training.best", training.best, tuple(f"validation/{name}" for name in target.best)),
    ):
        if value not in ("auto", *allowed) and not (key == "training.loss" and ":" in value):
            yield (
                f"{key}: found {value}, and the problem of the data is {target.problem}. Allowed: auto, "
                f"{', '.join(allowed)}. Fix: `ratchet set {key}=auto`"
            )


def own_loss_fault(training: Any) -> str:
    """Return why a loss of the user cannot have the targets of these settings; empty: it can."""
    if ":" not in training.loss:
        return ""
    mixing = [name for name, _ in entries(training) if name in MIXING]
    if mixing:
        return (
            f"training.augment: has {mixing[0]}, and training.loss is {training.loss}, which gets the targets as they "
            f"are. Allowed: augmentations that keep the classes. Fix: {without_mixing(training)}"
        )
    if training.label_smoothing in ("auto", 0.0):
        return ""
    return (
        f"training.label_smoothing: found {training.label_smoothing:g}, and training.loss is {training.loss}, which "
        "gets the targets as they are. Allowed: auto or 0. Fix: `ratchet set training.label_smoothing=auto`"
    )


def sampling_fault(training: Any) -> str:
    """Return why balanced sampling is refused: other settings would weigh the classes, too, or undo it."""
    if training.sampling != "balanced":
        return ""
    fix = "Fix: `ratchet set training.sampling=as-is`, or "
    if training.class_weights != "none":
        return (
            f"training.class_weights: found {training.class_weights}, and training.sampling is balanced, so rare "
            f"classes would count twice. Allowed: one of the two. {fix}`ratchet set training.class_weights=none`"
        )
    mixing = [name for name, _ in entries(training) if name in MIXING]
    if not mixing:
        return ""
    return (
        f"training.augment: has {mixing[0]}, which mixes with samples of any class, and training.sampling is balanced. "
        f"Allowed: one of the two. {fix}{without_mixing(training)}"
    )


def column_faults(data: Any, source: str, *, but: str = "") -> Iterator[str]:
    """Yield a message for each setting of columns and classes that has no effect in a source without a table."""
    for name in ("classes", "split_column", "group_column", "drop", "hash"):
        value, usual = getattr(data, name), type(data).model_fields[name].default
        if value != usual and name != but:
            shown, default = (json.dumps(each, ensure_ascii=False).replace('"', "") for each in (value, usual))
            fix = f"'data.{name}=[]'" if default == "[]" else f"data.{name}={default}"
            yield (
                f"data.{name}: found {shown}. Allowed: only for samples in a table, and {source} has none. Fix: "
                f"`ratchet set {fix}`, or list the samples in a table"
            )


def gap_fault(data: Any) -> str:
    """Return why data.gap has no effect; empty: it is 0, or the rows have an order."""
    if not data.gap or data.order_by != "none":
        return ""
    return (
        f"data.gap: found {data.gap}, and data.order_by is none. Allowed: 0, or a column of times in data.order_by. "
        "Fix: `ratchet set data.order_by=COLUMN`, or `ratchet set data.gap=0`"
    )
