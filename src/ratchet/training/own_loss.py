"""A loss of the user: the function that training.loss names."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ratchet.errors import TrainingError, first_line
from ratchet.kinds import ModelSpec
from ratchet.problems import Target
from ratchet.training.custom_code import CustomCode
from ratchet.training.plan import Plan

__all__ = ["OwnLoss", "own_loss"]

_ROWS = 4  # samples of the trial


@dataclass(frozen=True)
class OwnLoss:
    """A function of outputs and targets that returns the loss of each sample.

    It gets outputs, floating point (n, outputs), and targets: int64 (n,) of classes and tokens, otherwise of the shape
    and type of the outputs. Weights, ignored samples, micro-batches and pieces are applied to what it returns, (n,).
    """

    name: str  # package.module:function
    function: Callable[[torch.Tensor, torch.Tensor], Any]

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the loss of each sample, (n,).

        Raises:
            TrainingError: the function returns something else, or a loss without a gradient.
        """
        losses = self.function(outputs, targets)
        if not isinstance(losses, torch.Tensor) or losses.shape != outputs.shape[:1]:
            shape = f"shape {tuple(losses.shape)}" if isinstance(losses, torch.Tensor) else f"a {type(losses).__name__}"
            raise self._error(
                f"returns {shape} for {len(outputs)} samples. Allowed: the loss of each sample, shape "
                f'({len(outputs)},). Fix: compute it with reduction="none", and the mean over outputs if there are any'
            )
        if outputs.requires_grad and not losses.requires_grad:
            raise self._error("returns a loss without a gradient. Fix: use operations of PyTorch, without detach()")
        return losses

    def check(self, target: Target) -> None:
        """Call it once with a few random outputs.

        Raises:
            TrainingError: it fails, has something to learn, or the loss of a sample depends on others of the batch.
        """
        self._require_function()
        random = torch.Generator().manual_seed(0)
        outputs = torch.randn(_ROWS, target.outputs, generator=random)
        targets = torch.arange(_ROWS) % target.outputs
        if not target.is_indexed:
            values = torch.arange(outputs.numel(), dtype=torch.float32).view_as(outputs) % 2
            targets = target.learned(outputs.device, 0.0)(values).to(outputs.dtype)
        try:
            losses = self(outputs.requires_grad_(), targets)
            alone = torch.cat([self(outputs[row : row + 1], targets[row : row + 1]) for row in range(_ROWS)])
        except TrainingError:
            raise
        except Exception as error:  # the user's code may raise anything
            raise self._error(
                f"raised {type(error).__name__}: {first_line(error)}; it was called with outputs of shape "
                f"{tuple(outputs.shape)} and targets of shape {tuple(targets.shape)}, {targets.dtype}. Fix: correct it"
            ) from error
        if not torch.allclose(losses, alone, rtol=1e-3, atol=1e-5, equal_nan=True):
            raise self._error(
                "gives a sample another loss in a batch than alone, so the size of micro-batches would change the "
                "weights. Allowed: a loss that depends on the outputs and target of its sample. Fix: leave out means "
                "over the batch and random numbers"
            )

    def _require_function(self) -> None:
        """Refuse a class, which would be made in place of a loss, and parameters, which would stay as they are."""
        module, _, name = self.name.partition(":")
        if isinstance(self.function, type):
            raise self._error(
                f"is a class. Allowed: a function, or an object that is called as one. Fix: write `loss = {name}()` "
                f"below it, then `ratchet set training.loss={module}:loss`"
            )
        if isinstance(self.function, nn.Module) and any(each.requires_grad for each in self.function.parameters()):
            raise self._error(
                "has parameters, and only those of the model are trained. Fix: make them layers of your own model "
                "(model.factory), or call requires_grad_(False) on the loss"
            )

    def _error(self, fault: str) -> TrainingError:
        return TrainingError(f"training.loss: {self.name} {fault}")


def own_loss(plan: Plan, spec: ModelSpec) -> OwnLoss | None:
    """Import and try the user's loss from the code of `spec`; None: training.loss is one of Ratchet's.

    Raises:
        TrainingError: it does not import, or fails.
    """
    if ":" not in plan.loss:
        return None
    loss = OwnLoss(plan.loss, CustomCode(Path(spec.root), spec.code, "training.loss").load(plan.loss))
    loss.check(spec.target)
    return loss
