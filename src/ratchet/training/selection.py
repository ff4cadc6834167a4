"""Which epoch's weights are the best, how long nothing better came, and whether the model learns by heart."""

import math

from ratchet.training.plan import Plan
from ratchet.training.state import TrainingState

__all__ = ["judge", "ordered", "overfitting", "score"]


def ordered(plan: Plan, value: float) -> float:
    """A value of the metric `best` such that larger is better."""
    return -value if plan.best.endswith("loss") else value


def score(plan: Plan, values: dict[str, float], epoch: int) -> tuple[float, ...]:
    """What epochs are compared by; larger is better. Small validation sets tie often: then the loss decides."""
    return ordered(plan, values[plan.best]), -values["validation/loss"], -float(epoch)


def judge(state: TrainingState, plan: Plan, values: dict[str, float]) -> None:
    """Keep the weights if this epoch is the best so far, and count how long patience has waited."""
    value = values[plan.best]
    gain = math.inf if state.patience_value is None else ordered(plan, value) - ordered(plan, state.patience_value)
    # Measured from the last value that counted: many small gains count once they add up to more than min_delta.
    if gain > plan.min_delta:
        state.patience_value, state.stale_epochs = value, 0
    else:
        state.stale_epochs += 1
    best = state.history[state.best_epoch - 1] if state.best_epoch else None
    if best is None or score(plan, values, state.epoch + 1) > score(plan, best, state.best_epoch):
        state.keep_best(value)


def overfitting(state: TrainingState, plan: Plan, values: dict[str, float]) -> str | None:
    """A sentence, once, when training accuracy has left validation accuracy behind."""
    trained, held_out = values["train/accuracy"], values["validation/accuracy"]
    if state.overfit_said or trained - held_out <= plan.overfit_gap:
        return None
    state.overfit_said = True
    return (
        f"over-fitting at epoch {state.epoch + 1}: training accuracy {trained:.3f}, validation {held_out:.3f}, a gap "
        f"above training.overfit_gap {plan.overfit_gap}: more data, augmentation (training.flip, "
        "training.crop_padding) or weight decay help"
    )
