"""Settings of one training, as plain data that the training package can read without pydantic."""

from dataclasses import dataclass
from typing import Any

__all__ = ["Plan"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The seed and the `training` section of params.yaml.

    Defaults, bounds and descriptions are in `ratchet.settings.model.TrainingSettings`, and only there. What has a value
    here is no setting.
    """

    seed: int

    epochs: int
    max_steps: int
    batch_size: int
    sampling: str
    accumulation: int
    pieces: int

    loss: str
    label_smoothing: float | str
    class_weights: str | tuple[float, ...]
    ignore_index: int
    teacher: str
    teacher_weight: float
    teacher_temperature: float = 4.0  # by which the logits of both models are divided

    optimizer: str
    learning_rate: float
    momentum: float
    nesterov: bool
    betas: tuple[float, float]
    epsilon: float = 1.0e-8  # added to the denominator of adam and adamw
    weight_decay: float
    decay_all: bool
    clip_norm: float
    clip_value: float
    ema_decay: float

    schedule: str
    warmup_epochs: float
    final_rate: float = 0.0  # at the end of a schedule, as a share of learning_rate
    cycle_rise: float = 0.3  # share of one-cycle in which the rate rises
    step_epochs: int
    plateau_patience: int
    rate_factor: float

    frozen_epochs: int
    unfreeze_epochs: int
    layer_decay: float
    prune_channels: float

    augment: str | tuple[Any, ...]  # see `ratchet.augmentations`
    flip: str
    crop_padding: int
    crop_fill: str
    own_code: tuple[str, str] = (".", "none")  # project folder and model.code, for own classes in `augment`
    mixed_classes: int = 0  # of the targets, if `augment` mixes samples of classes
    progressive_sizes: str | tuple[int, ...]
    cutout: int

    device: str
    precision: str
    channels_last: str | bool
    compile: str
    gradient_checkpointing: bool
    deterministic: bool

    best: str
    patience: int
    min_delta: float = 0.0  # smallest change of `best` that counts as an improvement
    rollback_factor: float = 0.5  # of the learning rate, at each return to a checkpoint

    shard: str
    reduction: str
    processes: int | str
    nodes: int | str
    rendezvous: str
    threads: int | str
    workers: int
    sample_timeout: float
    overfit_gap: float
    max_rollbacks: int
    doctor: str
    checkpoint_steps: int
    keep_last: int
    keep_best: int
    log_every: int
    profile: int
    hooks: tuple[str, ...]
