"""What training is told: every number that decides its result."""

from dataclasses import dataclass

__all__ = ["Plan"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The `training` section of params.yaml, which explains each field, and the seed."""

    seed: int = 0

    # How long, and how much at once
    epochs: int = 30
    max_steps: int = 0
    batch_size: int = 64
    accumulation: int = 1

    # The step
    optimizer: str = "adamw"
    learning_rate: float = 2.0e-3
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 1.0e-4
    schedule: str = "warmup-cosine"
    warmup_epochs: float = 1.0
    label_smoothing: float = 0.1
    clip_norm: float = 1.0
    clip_value: float = 0.0

    # Augmentation
    flip: bool = False
    crop_padding: int = 1

    # The machine
    device: str = "auto"
    precision: str = "fp32"
    channels_last: bool = False
    deterministic: bool = True

    # What is kept, and when to stop
    best: str = "validation/accuracy"
    patience: int = 0
    min_delta: float = 0.0
    overfit_gap: float = 0.1

    # What is written down
    checkpoint_steps: int = 200
    keep_last: int = 2
    keep_best: int = 1
    log_every: int = 10
