"""Optimizers (Muon included), gradient clipping, weight averaging, and optimizer state by parameter name."""

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import nn

from ratchet.errors import CheckpointError
from ratchet.training.models import Model
from ratchet.training.plan import Plan
from ratchet.training.transfer import rate_shares

__all__ = [
    "Muon",
    "build_optimizer",
    "clip_gradients",
    "copy_tensors",
    "load_optimizer_state",
    "move_average",
    "optimizer_state",
    "orthogonal",
    "own_rows",
    "set_rate",
    "total_norm",
    "without_compile_wrappers",
]

_FUSED = {"cpu", "cuda", "mps"}
_EMBEDDINGS = ("embed", "token", "position")  # in the names of parameters
_AVERAGING_WARMUP = 10  # steps in which the decay rises, so that the average forgets the random initial weights
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of Jordan's quintic polynomial, steepest at 0
_ITERATIONS = 5
_ADAM_RMS = 0.2  # usual root mean square of an Adam step, as a share of its rate (Liu et al. 2025)
Kind = TypeVar("Kind", bound=torch.optim.Optimizer)


def build_optimizer(
    model: Model,
    plan: Plan,
    device: torch.device,
    parameters: Mapping[str, nn.Parameter] | None = None,
    *,
    may_fuse: bool = True,
) -> torch.optim.Optimizer:
    """Build the optimizer `plan.optimizer` over all parameters, with a fused kernel where torch has one.

    `parameters` are those of the model, or this rank's shares of them, by name.

    A frozen parameter has no gradient, and every optimizer skips it. So one optimizer with one state serves a training
    whose layers are unfrozen one after another.
    """
    groups = list(_groups(model, plan, dict(model.named_parameters()) if parameters is None else parameters))
    fused = may_fuse and device.type in _FUSED
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
    """Set the learning rate of the next step. Each group gets its share of it."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["share"]


def _groups(model: Model, plan: Plan, parameters: Mapping[str, nn.Parameter]) -> Iterator[dict[str, Any]]:
    """Yield the parameters grouped by rate and weight decay, in the order of the model."""
    shares = rate_shares(model, plan) if plan.layer_decay < 1.0 else {}
    outer = inputs_and_outputs(model) if plan.optimizer == "muon" else frozenset()
    groups: dict[tuple[float, float, bool], list[nn.Parameter]] = {}
    for name, parameter in parameters.items():
        decay = plan.weight_decay if plan.decay_all or parameter.dim() > 1 else 0.0
        groups.setdefault((shares.get(name, 1.0), decay, name in outer), []).append(parameter)
    for (share, decay, is_outer), members in groups.items():
        rate = {"lr": plan.learning_rate * share, "share": share, "weight_decay": decay}
        yield {"params": members, **rate, **({"adamw": True} if is_outer else {})}


def inputs_and_outputs(model: Model) -> frozenset[str]:
    """Return the parameter names of embeddings and of the head, for which Muon is not suited (Jordan et al. 2024).

    Muon is for layers between hidden vectors. The head is the last layer with as many outputs as the target has, or the
    last layer of all. Embeddings are those of `nn.Embedding`, single rows (class tokens, positions), and parameters
    with such names.
    """
    modules = dict(model.named_modules())
    order = [name for name in model.order if name in modules] or list(modules)
    layers = [name for name in order if _outputs(modules[name])]
    heads = [name for name in layers if _outputs(modules[name]) == model.outputs] or layers
    outer = {f"{heads[-1]}.{own}" for own, _ in modules[heads[-1]].named_parameters(recurse=False)} if heads else set()
    for name, parameter in model.named_parameters():
        owner, _, own = name.rpartition(".")
        is_table = isinstance(modules[owner], nn.Embedding | nn.EmbeddingBag)
        if is_table or (parameter.dim() > 1 and (len(parameter) == 1 or any(word in own for word in _EMBEDDINGS))):
            outer.add(name)
    return frozenset(outer)


def _outputs(module: nn.Module) -> int:
    """Return the number of outputs of a layer; 0 for a module that is not a layer."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, torch.Tensor) or weight.dim() < 2 or isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return 0
    return len(weight)


def total_norm(tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the norm of all tensors together, a scalar that stays on the device."""
    return nn.utils.get_total_norm(list(tensors.values()))


def clip_gradients(
    parameters: Mapping[str, nn.Parameter],
    plan: Plan,
    norm_of: Callable[[Mapping[str, torch.Tensor]], torch.Tensor] = total_norm,
) -> torch.Tensor:
    """Clip the elements, then the remaining norm, as `plan` says.

    Returns:
        The norm before clipping, a scalar that stays on the device.
    """
    clipped = [parameter for parameter in parameters.values() if parameter.grad is not None]
    gradients = {name: parameter.grad for name, parameter in parameters.items() if parameter.grad is not None}
    norm = remaining = norm_of(gradients)
    if plan.clip_value:
        nn.utils.clip_grad_value_(clipped, plan.clip_value)
        remaining = norm_of(gradients) if plan.clip_norm else norm
    if plan.clip_norm:
        nn.utils.clip_grads_with_norm_(clipped, plan.clip_norm, remaining)
    return norm


def move_average(averaged: nn.Module, model: nn.Module, *, decay: float, step: int) -> None:
    """Update the moving average of parameters and float buffers after optimizer step `step` (counted from 1).

    average = d * average + (1 - d) * weight with d = min(decay, step / (step + 10)). Integer buffers are copied.
    """
    weight = 1.0 - min(decay, step / (step + _AVERAGING_WARMUP))
    with torch.no_grad():
        ours, theirs = _floats(averaged), _floats(model)
        torch._foreach_lerp_(ours, theirs, weight)
        pairs = zip(averaged.buffers(), model.buffers(), strict=True)
        copy_tensors((mine, other) for mine, other in pairs if not mine.is_floating_point())


def copy_tensors(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Copy the second tensor of each pair into the first.

    A GPU copies all of one type at once. Of several types in one call PyTorch copies each tensor by itself.
    """
    groups: dict[Any, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
    for mine, other in pairs:
        ours, theirs = groups.setdefault((mine.dtype, mine.device, other.dtype, other.device), ([], []))
        ours.append(mine)
        theirs.append(other)
    for ours, theirs in groups.values():
        torch._foreach_copy_(ours, theirs)


def _floats(model: nn.Module) -> list[torch.Tensor]:
    return [*map(own_rows, model.parameters()), *(buffer for buffer in model.buffers() if buffer.is_floating_point())]


def own_rows(tensor: torch.Tensor) -> torch.Tensor:
    """Return the rows of a parameter or gradient that this rank has, in the same memory; all of them unless sharded."""
    to_local = getattr(tensor.detach(), "to_local", None)
    own: torch.Tensor = tensor if to_local is None else to_local()
    return own


def optimizer_state(
    parameters: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer
) -> dict[str, torch.Tensor]:
    """Return every tensor of the optimizer's state, by `PARAMETER/SLOT`."""
    return {
        f"{name}/{slot}": value
        for name, parameter in parameters.items()
        for slot, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, torch.Tensor)
    }


def load_optimizer_state(
    parameters: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer, tensors: Mapping[str, torch.Tensor]
) -> None:
    """Replace the optimizer's state by the tensors of `optimizer_state`, each in the memory layout of its parameter.

    The layout matters: a sum over the same numbers in another order rounds differently, and the resumed run would no
    longer equal an uninterrupted one.
    """
    optimizer.state.clear()
    for key, tensor in tensors.items():
        name, _, slot = key.rpartition("/")
        if name not in parameters:
            raise CheckpointError(
                f"the optimizer state of the checkpoint has parameter {name}, which the model has not"
            )
        parameter = parameters[name]
        if tensor.shape == parameter.shape:
            value = torch.empty_like(parameter, dtype=tensor.dtype, requires_grad=False)
            value.copy_(tensor)
        else:
            value = tensor.clone()
            if optimizer.defaults.get("fused") and slot == "step":
                value = value.to(parameter.device)
        optimizer.state[parameter][slot] = value


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


def without_compile_wrappers(kind: type[Kind]) -> type[Kind]:
    """Return the optimizer class without the wrappers that import PyTorch's compiler, over a second at every start.

    Only models are compiled here, never optimizers. The other effect of the wrappers stays: no gradients in a step.
    """
    content = {
        "add_param_group": inspect.unwrap(kind.add_param_group),
        "zero_grad": inspect.unwrap(kind.zero_grad),
        "step": torch.no_grad()(inspect.unwrap(kind.step)),
    }
    return type(kind.__name__, (kind,), content)
