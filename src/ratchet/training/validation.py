"""Validation: the metrics of a split, the best epoch by them, patience and over-fitting."""

import math

import torch
from torch import nn

from ratchet.problems.protocol import Sums
from ratchet.training.batches import Split
from ratchet.training.device import ran_out_of_memory
from ratchet.training.losses import Objective
from ratchet.training.plan import Plan
from ratchet.training.precision import Precision
from ratchet.training.ranks import Ranks
from ratchet.training.sample_timeout import Interrupted
from ratchet.training.state import TrainingState

__all__ = ["epoch_score", "larger_is_better", "overfitting_notice", "update_best", "validate"]

_SMALLER_IS_BETTER = ("loss", "mae", "rmse", "perplexity")


def validate(
    model: nn.Module,
    split: Split,
    *,
    objective: Objective,
    precision: Precision,
    device: torch.device,
    batch_size: int,
    ranks: Ranks | None = None,
    together: bool = False,
) -> dict[str, float]:
    """Compute the loss and the problem's metrics over the whole split. The model is left in eval mode.

    `Target.sums` of each problem says which they are. Each of N ranks computes every N-th batch. What is rounded is
    added in the order of the batches, so the number of ranks changes no bit. `together`: each of them needs the others.

    Raises:
        MemoryError, Interrupted: on every rank, for the error of one.
    """
    ranks = ranks or Ranks()
    model.eval()
    batches = list(split.in_order(batch_size))
    share = -(-len(batches) // ranks.count)
    sums = _SplitSums(objective, device, share)
    lacks_memory = is_interrupted = False
    own = batches[ranks.rank :: ranks.count]
    passes = [*own, *batches[:1] * (share - len(own))] if together else own
    with torch.inference_mode():
        try:
            for place, (inputs, targets) in enumerate(split.feed(passes, device)):
                with precision.autocast(device):
                    outputs = model(*inputs)
                if place < len(own):  # the rest is for the others
                    sums.add(place, outputs, targets)
        except (Exception, Interrupted) as error:  # any other error is raised again
            lacks_memory, is_interrupted = ran_out_of_memory(error), isinstance(error, Interrupted)
            if ranks.count == 1 or together or not (lacks_memory or is_interrupted):
                raise
        ranks.agree(device, lacks_memory=lacks_memory, is_interrupted=is_interrupted)
        return {f"validation/{name}": value for name, value in sums.metrics(ranks).items()}


class _SplitSums:
    """The sums of loss and metrics over the batches of one rank. What is rounded is kept for each batch."""

    def __init__(self, objective: Objective, device: torch.device, batches: int) -> None:
        self.objective, self.device = objective, device
        self.total = self._zero()
        self.is_rounded = self.total.values.is_floating_point()
        self.losses = torch.zeros(batches, device=device)
        self.parts = self.total.values.new_zeros((batches * self.is_rounded, *self.total.values.shape))

    def _zero(self) -> Sums:
        return self.objective.target.sums(self.objective.ignored, self.device)

    def add(self, place: int, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        self.losses[place] = self.objective(outputs, targets)
        part = self._zero() if self.is_rounded else self.total
        part.add(outputs, targets)
        if self.is_rounded:
            self.parts[place] = part.values

    def metrics(self, ranks: Ranks) -> dict[str, float]:
        """Return the metrics of all ranks' batches, added in the order of the batches."""
        loss = sum(ranks.in_turn(self.losses), torch.zeros((), device=self.device))
        if self.is_rounded:
            self.total.values = sum(ranks.in_turn(self.parts), self.total.values)
        else:
            self.total.values = ranks.add(self.total.values)
        return self.total.metrics(loss.item())


def larger_is_better(plan: Plan, value: float) -> float:
    """Return a value of the metric `training.best` with its sign such that larger is better."""
    return -value if plan.best.removeprefix("validation/") in _SMALLER_IS_BETTER else value


def epoch_score(plan: Plan, metrics: dict[str, float], epoch: int) -> tuple[float, ...]:
    """Return the key by which epochs are compared; larger is better. Small sets tie often: then the loss decides."""
    return larger_is_better(plan, metrics[plan.best]), -metrics["validation/loss"], -float(epoch)


def update_best(state: TrainingState, plan: Plan, metrics: dict[str, float]) -> None:
    """Keep the weights if this epoch is the best so far, and count the epochs without improvement."""
    value = metrics[plan.best]
    gain = (
        math.inf
        if state.patience_value is None
        else larger_is_better(plan, value) - larger_is_better(plan, state.patience_value)
    )
    # Measured from the last value that counted: many small gains count once they add up to more than min_delta.
    if gain > plan.min_delta:
        state.patience_value, state.stale_epochs = value, 0
    else:
        state.stale_epochs += 1
    best = state.history[state.best_epoch - 1] if state.best_epoch else None
    if best is None or epoch_score(plan, metrics, state.epoch + 1) > epoch_score(plan, best, state.best_epoch):
        state.keep_best(value)


def overfitting_notice(state: TrainingState, plan: Plan, metrics: dict[str, float]) -> str | None:
    """Return a message, once in a run, when training accuracy is `overfit_gap` above validation accuracy.

    The accuracy on samples that are drawn equally often from all classes is compared with the balanced accuracy.
    """
    held_out_name = "validation/balanced_accuracy" if plan.sampling == "balanced" else "validation/accuracy"
    if "train/accuracy" not in metrics or held_out_name not in metrics:
        return None
    trained, held_out = metrics["train/accuracy"], metrics[held_out_name]
    if state.overfit_noticed or trained - held_out <= plan.overfit_gap:
        return None
    state.overfit_noticed = True
    return (
        f"over-fitting at epoch {state.epoch + 1}: training accuracy {trained:.3f}, "
        f"{held_out_name.replace('/', ' ').replace('_', ' ')} {held_out:.3f}, a gap above training.overfit_gap "
        f"{plan.overfit_gap}. Fix: more data, fewer training.epochs, more training.weight_decay; of images, "
        "augmentation (training.augment)"
    )
