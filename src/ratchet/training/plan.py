"""What training is told."""

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["DECIDE_NOTHING", "Plan"]

DECIDE_NOTHING = frozenset(
    {
        "workers",
        "sample_timeout",
        "overfit_gap",
        "max_rollbacks",
        "doctor",
        "checkpoint_steps",
        "keep_last",
        "keep_best",
        "log_every",
        "profile",
    }
)
"""Settings that change no bit of the weights that a run ends with, so a run that was cut off continues with others.

`accumulation` is not among them: batch norm sees a micro-batch at a time, and sums in another order round differently.
"""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The `training` section of params.yaml, which explains each field, and the seed."""

    seed: int = 0

    # How long, and how much at once
    epochs: int = 30
    max_steps: int = 0
    batch_size: int = 64
    accumulation: int = 1

    # The loss
    loss: str = "cross-entropy"
    label_smoothing: float = 0.1
    class_weights: str | tuple[float, ...] = "none"
    ignore_index: int = -100

    # The optimizer
    optimizer: str = "adamw"
    learning_rate: float = 2.0e-3
    momentum: float = 0.9
    nesterov: bool = True
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1.0e-8
    weight_decay: float = 1.0e-4
    decay_all: bool = True
    clip_norm: float = 1.0
    clip_value: float = 0.0
    ema_decay: float = 0.0

    # The learning rate's course
    schedule: str = "warmup-cosine"
    warmup_epochs: float = 1.0
    final_rate: float = 0.0
    cycle_rise: float = 0.3
    step_epochs: int = 10
    plateau_patience: int = 3
    rate_factor: float = 0.1

    # Transfer learning
    frozen_epochs: int = 0
    unfreeze_epochs: int = 0
    layer_decay: float = 1.0

    # Augmentation
    flip: str = "none"
    crop_padding: int = 1
    crop_fill: str = "zeros"
    progressive_sizes: str | tuple[int, ...] = "none"
    cutout: int = 0

    # The machine
    device: str = "auto"
    precision: str = "auto"
    channels_last: str | bool = "auto"
    compile: str = "none"
    gradient_checkpointing: bool = False
    deterministic: bool = True
    workers: int = 0
    sample_timeout: float = 300.0

    # What is kept, and when to stop
    best: str = "validation/accuracy"
    patience: int = 0
    min_delta: float = 0.0
    overfit_gap: float = 0.1

    # What is done about trouble
    max_rollbacks: int = 3
    rollback_factor: float = 0.5
    doctor: str = "auto"

    # What is written down
    checkpoint_steps: int = 200
    keep_last: int = 2
    keep_best: int = 1
    log_every: int = 10
    profile: int = 0

    def deciding(self) -> dict[str, Any]:
        """The settings that decide the weights, by name."""
        return {name: value for name, value in asdict(self).items() if name not in DECIDE_NOTHING}
