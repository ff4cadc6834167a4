"""Optimizers over parameter groups, and their state by parameter name."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from ratchet.errors import CheckpointError
from ratchet.training.models import Classifier
from ratchet.training.muon import Muon
from ratchet.training.optim_fast_import import without_compile_wrappers
from ratchet.training.plan import Plan
from ratchet.training.transfer import rate_shares

__all__ = [
    "build_optimizer",
    "clip_gradients",
    "load_optimizer_state",
    "move_average",
    "optimizer_state",
    "set_rate",
]

_FUSED = {"cpu", "cuda", "mps"}
_EMBEDDINGS = ("embed", "token", "position")  # in the names of parameters
_AVERAGING_WARMUP = 10  # steps: the average forgets the random beginning as it would with a smaller decay


def build_optimizer(model: Classifier, plan: Plan, device: torch.device) -> torch.optim.Optimizer:
    """The optimizer `plan` names, over every parameter; one fused kernel where torch has it.

    A parameter that does not learn yet has no gradient, which every optimizer passes over: so one optimizer, and one
    state, serve a training whose layers thaw one after another.
    """
    groups = list(_groups(model, plan))
    fused = device.type in _FUSED
    match plan.optimizer:
        case "adam":
            return without_compile_wrappers(torch.optim.Adam)(groups, betas=plan.betas, eps=plan.epsilon, fused=fused)
        case "adamw":
            return without_compile_wrappers(torch.optim.AdamW)(groups, betas=plan.betas, eps=plan.epsilon, fused=fused)
        case "muon":
            return without_compile_wrappers(Muon)(
                groups, momentum=plan.momentum, nesterov=plan.nesterov, betas=plan.betas, eps=plan.epsilon, fused=fused
            )
    nesterov = plan.nesterov and plan.momentum > 0
    return without_compile_wrappers(torch.optim.SGD)(groups, momentum=plan.momentum, nesterov=nesterov, fused=fused)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Let the next step be made with `rate`, each group with its share of it."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["share"]


def _groups(model: Classifier, plan: Plan) -> Iterator[dict[str, Any]]:
    """Parameters that share a rate and a decay, in the order of the model; as few groups as that allows."""
    shares = rate_shares(model, plan) if plan.layer_decay < 1.0 else {}
    outer = inputs_and_outputs(model) if plan.optimizer == "muon" else frozenset()
    groups: dict[tuple[float, float, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        decay = plan.weight_decay if plan.decay_all or parameter.dim() > 1 else 0.0
        groups.setdefault((shares.get(name, 1.0), decay, name in outer), []).append(parameter)
    for (share, decay, is_outer), parameters in groups.items():
        rate = {"lr": plan.learning_rate * share, "share": share, "weight_decay": decay}
        yield {"params": parameters, **rate, **({"adamw": True} if is_outer else {})}


def inputs_and_outputs(model: Classifier) -> frozenset[str]:
    """The names of embeddings and of the head's parameters, which Muon is not for (Jordan et al. 2024).

    Muon is made for layers between hidden vectors. The head is the last layer to run of those that have one output for
    each class; if there is none, the last of all. Embeddings are those of `nn.Embedding`, single rows (class tokens,
    positions), and parameters whose own name says so.
    """
    modules = dict(model.named_modules())
    order = [name for name in model.order if name in modules] or list(modules)
    layers = [name for name in order if _outputs(modules[name])]
    heads = [name for name in layers if _outputs(modules[name]) == model.classes] or layers
    found = {f"{heads[-1]}.{own}" for own, _ in modules[heads[-1]].named_parameters(recurse=False)} if heads else set()
    for name, parameter in model.named_parameters():
        owner, _, own = name.rpartition(".")
        is_table = isinstance(modules[owner], nn.Embedding | nn.EmbeddingBag)
        if is_table or (parameter.dim() > 1 and (len(parameter) == 1 or any(word in own for word in _EMBEDDINGS))):
            found.add(name)
    return frozenset(found)


def _outputs(module: nn.Module) -> int:
    """How many outputs a layer has; 0 for what is no layer."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, torch.Tensor) or weight.dim() < 2 or isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return 0
    return len(weight)


def clip_gradients(model: nn.Module, plan: Plan) -> torch.Tensor:
    """Clip elements, then the norm that is left, as `plan` says.

    Returns:
        the norm before any clipping, a scalar that stays on the device.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.grad is not None]
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = left = nn.utils.get_total_norm(gradients)
    if plan.clip_value:
        nn.utils.clip_grad_value_(parameters, plan.clip_value)
        left = nn.utils.get_total_norm(gradients) if plan.clip_norm else norm
    if plan.clip_norm:
        nn.utils.clip_grads_with_norm_(parameters, plan.clip_norm, left)
    return norm


def move_average(averaged: nn.Module, model: nn.Module, *, decay: float, step: int) -> None:
    """Move `averaged` towards `model` after optimizer step `step` (counted from 1): parameters and float buffers.

    average = d * average + (1 - d) * weight with d = min(decay, step / (step + 10)); buffers of whole numbers are
    copied.
    """
    weight = 1.0 - min(decay, step / (step + _AVERAGING_WARMUP))
    with torch.no_grad():
        ours, theirs = _floats(averaged), _floats(model)
        torch._foreach_lerp_(ours, theirs, weight)
        for mine, other in zip(averaged.buffers(), model.buffers(), strict=True):
            if not mine.is_floating_point():
                mine.copy_(other)


def _floats(model: nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *(buffer for buffer in model.buffers() if buffer.is_floating_point())]


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
    """Put `optimizer_state`'s tensors back, each in its parameter's own memory layout, in place of what is there.

    The layout matters: a reduction over the same numbers in another order rounds differently, and the resumed run would
    no longer equal the undisturbed one.
    """
    optimizer.state.clear()
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
