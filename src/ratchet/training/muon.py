"""Muon: SGD with momentum whose update matrices are made orthogonal (Jordan et al. 2024)."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ratchet.training.optim_fast_import import without_compile_wrappers

__all__ = ["Muon", "orthogonal"]

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of Jordan's quintic polynomial, steepest at 0
_ITERATIONS = 5
_ADAM_RMS = 0.2  # usual root mean square of an Adam step, as a share of its rate (Liu et al. 2025)


class Muon(torch.optim.Optimizer):
    """Muon for matrices and filter banks, AdamW for all other parameters, at one learning rate.

    A weight of shape (out, ...) is a matrix of `out` rows here. Its step is scaled by .2 sqrt(max(rows, columns)). So
    its elements are as large as those of AdamW, and one rate suits both ("match RMS", Liu et al. 2025, as in
    torch.optim.Muon). Weight decay is decoupled.

    Args:
        groups: parameter groups as for torch.optim; a group may hold both kinds of parameters. A group with
            "adamw": True is updated by AdamW, whatever the shapes.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        *,
        momentum: float,
        nesterov: bool,
        betas: tuple[float, float],
        eps: float,
        fused: bool,
    ) -> None:
        split = [
            {
                **group,
                "params": [parameter for parameter in group["params"] if _is_matrix(parameter, group) is matrices],
                "matrices": matrices,
            }
            for group in groups
            for matrices in (True, False)
        ]
        defaults = {"lr": 1e-3, "weight_decay": 0.0, "momentum": momentum, "nesterov": nesterov, "fused": fused}
        super().__init__([group for group in split if group["params"]], defaults)
        others = [group for group in self.param_groups if not group["matrices"]]
        self._adamw: torch.optim.Optimizer | None = None
        if others:
            self._adamw = without_compile_wrappers(torch.optim.AdamW)(others, betas=betas, eps=eps, fused=fused)
            # One list of groups and one state for both, so that rates, clipping and checkpoints include all parameters.
            self._adamw.state = self.state
            self.param_groups = [
                *(group for group in self.param_groups if group["matrices"]),
                *self._adamw.param_groups,
            ]

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update the parameters from their gradients."""
        assert closure is None, "line search is not supported"
        matrices = [
            (parameter, group)
            for group in self.param_groups
            if group["matrices"]
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        # All state is created before any weight changes, so that the weights stay as they were if memory runs out here.
        for parameter, _ in matrices:
            if not self.state[parameter]:
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        if self._adamw is not None:
            self._adamw.step()
        for parameter, group in matrices:
            self._step(parameter, group)

    def _step(self, parameter: nn.Parameter, group: dict[str, Any]) -> None:
        gradient = parameter.grad
        assert gradient is not None
        moving = self.state[parameter]["momentum_buffer"].lerp_(gradient, 1.0 - group["momentum"])
        update = gradient.lerp(moving, group["momentum"]) if group["nesterov"] else moving
        parameter.mul_(1.0 - group["lr"] * group["weight_decay"])
        step = orthogonal(update.flatten(1))
        scale = _ADAM_RMS * math.sqrt(max(step.shape))
        parameter.add_(step.view(parameter.shape), alpha=-group["lr"] * scale)


def _is_matrix(parameter: nn.Parameter, group: dict[str, Any]) -> bool:
    return parameter.dim() > 1 and not group.get("adamw", False)


def orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """Return the matrix (rows, columns) with singular values near 1, in its dtype. Computed in bf16 (Newton-Schulz)."""
    a, b, c = _COEFFICIENTS
    tall = matrix.shape[0] > matrix.shape[1]
    x = (matrix.T if tall else matrix).to(torch.bfloat16, copy=True)
    x /= x.norm().clamp(min=1e-7)
    for _ in range(_ITERATIONS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.T if tall else x).to(matrix.dtype)
