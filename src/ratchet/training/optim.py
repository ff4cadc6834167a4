"""Optimizers, and their state by parameter name."""

from collections.abc import Mapping

import torch
from torch import nn

from ratchet.errors import CheckpointError
from ratchet.training.plan import Plan

__all__ = ["build_optimizer", "clip_gradients", "load_optimizer_state", "optimizer_state"]

_FUSED = {"cpu", "cuda", "mps"}


def build_optimizer(model: nn.Module, plan: Plan, device: torch.device) -> torch.optim.Optimizer:
    """The optimizer `plan` names, over every parameter that wants a gradient; one fused kernel where torch has it."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    fused = device.type in _FUSED
    if plan.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=plan.learning_rate, weight_decay=plan.weight_decay, fused=fused)
    return torch.optim.SGD(
        parameters,
        lr=plan.learning_rate,
        momentum=plan.momentum,
        nesterov=plan.nesterov and plan.momentum > 0,
        weight_decay=plan.weight_decay,
        fused=fused,
    )


def clip_gradients(model: nn.Module, plan: Plan) -> torch.Tensor:
    """Clip as `plan` says; the gradient norm before clipping, a scalar that stays on the device."""
    parameters = [parameter for parameter in model.parameters() if parameter.grad is not None]
    norm = nn.utils.get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
    if plan.clip_value:
        nn.utils.clip_grad_value_(parameters, plan.clip_value)
    if plan.clip_norm:
        nn.utils.clip_grads_with_norm_(parameters, plan.clip_norm, norm)
    return norm


def optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Every tensor of the optimizer's state, by `PARAMETER/SLOT`."""
    return {
        f"{name}/{slot}": value
        for name, parameter in model.named_parameters()
        for slot, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, torch.Tensor)
    }


def load_optimizer_state(
    model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, torch.Tensor]
) -> None:
    """Put `optimizer_state`'s tensors back, each in its parameter's own memory layout.

    The layout matters: a reduction over the same numbers in another order rounds differently, and the resumed run would
    no longer equal the undisturbed one.
    """
    parameters = dict(model.named_parameters())
    for key, tensor in tensors.items():
        name, _, slot = key.rpartition("/")
        if name not in parameters:
            raise CheckpointError(f"the checkpoint's optimizer knows {name}, the model does not")
        parameter = parameters[name]
        if tensor.shape == parameter.shape:
            value = torch.empty_like(parameter, dtype=tensor.dtype, requires_grad=False)
            value.copy_(tensor)
        else:
            value = tensor.clone()
            if optimizer.defaults.get("fused") and slot == "step":
                value = value.to(parameter.device)
        optimizer.state[parameter][slot] = value
