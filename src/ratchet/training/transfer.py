"""Transfer learning: gradual unfreezing and learning rates by stage.

A network consists of stages from its input to its head. First only the head learns. Then the stages below are unfrozen,
from the head down, and lower stages learn more slowly (Howard and Ruder 2018, "Universal Language Model Fine-tuning").
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from ratchet.training.models import Model
from ratchet.training.plan import Plan

__all__ = ["Stage", "freeze", "layers_in", "rate_shares", "stages", "transfer_settings", "without_pretrained"]

_FEWEST = 4  # a network of fewer stages (for example features and classifier) is divided further


@dataclass(frozen=True)
class Stage:
    """A part of a network that is unfrozen as a whole."""

    name: str
    modules: tuple[nn.Module, ...]
    parameters: tuple[str, ...]  # names in the whole model; a shared one belongs to the first of its stages


@dataclass(frozen=True)
class _Unit:
    """A whole module; or, after it was divided, only its own parameters."""

    name: str
    module: nn.Module
    whole: bool = True

    @property
    def layers(self) -> int:
        return layers_in(self.module) if self.whole else 0

    def divided(self, order: dict[str, int]) -> "list[_Unit]":
        """Return its own parameters and its children, in the order they run."""
        prefix = f"{self.name}." if self.name else ""
        children = [_Unit(prefix + name, child) for name, child in self.module.named_children()]
        own = [_Unit(self.name, self.module, whole=False)] if any(True for _ in self.module.parameters(False)) else []
        return [*own, *sorted(children, key=lambda child: child.first(order))]

    def first(self, order: dict[str, int]) -> int:
        """Return when any of it ran first. A list or a dict of modules does not run itself."""
        names = [f"{self.name}.{name}" if name else self.name for name, _ in self.module.named_modules()]
        return min((order[name] for name in names if name in order), default=len(order))


def stages(model: Model) -> list[Stage]:
    """Return the stages of the model, from the input to the head.

    They are the children of the network, in the order they run. Norms and single tensors belong to the stage before
    them. While there are fewer than four, the stage with the most layers is divided into its children. A head that is a
    Sequential is divided too, and its last layer is the head. So a ResNet has its stem, four groups of blocks and `fc`;
    a VGG its single convolutions and three linear layers; a vision transformer its patches, its blocks and its head.
    """
    order = {name: position for position, name in enumerate(model.order)}
    parts = [_Unit("", model)]
    while len(groups := _grouped(parts)) < _FEWEST:
        largest = max(groups, key=lambda group: max(part.layers for part in group))
        part = max(largest, key=lambda part: part.layers)
        if part.layers < 2 or not any(True for _ in part.module.children()):
            break
        place = parts.index(part)
        parts[place : place + 1] = part.divided(order)
    while isinstance((head := _grouped(parts)[-1][0]).module, nn.Sequential) and head.whole:
        place = parts.index(head)
        parts[place : place + 1] = head.divided(order)
    return list(_staged(_grouped(parts), model))


def rate_shares(model: Model, plan: Plan) -> dict[str, float]:
    """Return each parameter's share of the learning rate: 1 in the head, `layer_decay` times that per stage below."""
    parts = stages(model)
    return {
        name: plan.layer_decay ** (len(parts) - 1 - position)
        for position, stage in enumerate(parts)
        for name in stage.parameters
    }


def freeze(model: Model, plan: Plan, epoch: int) -> None:
    """Freeze the stages that do not learn in `epoch` (from 0), and unfreeze the others. Call it after `model.train()`.

    In the first `frozen_epochs` only the head learns. Then the stage below it is unfrozen, and another one every
    `unfreeze_epochs` (0: all at once). A frozen stage is in eval mode too, so that the statistics of its batch norms do
    not drift. Parameters that the network itself froze stay frozen.
    """
    if not plan.frozen_epochs and not plan.unfreeze_epochs:
        return
    parts = stages(model)
    below = len(parts) - 1
    if epoch < plan.frozen_epochs:
        unfrozen = 0
    elif plan.unfreeze_epochs:
        unfrozen = min(below, 1 + (epoch - plan.frozen_epochs) // plan.unfreeze_epochs)
    else:
        unfrozen = below
    parameters = dict(model.named_parameters())
    for position, stage in enumerate(parts):
        learns = position >= below - unfrozen
        for name in stage.parameters:
            parameters[name].requires_grad_(learns and name not in model.fixed)
        for module in stage.modules:
            module.train(learns and model.training)


def transfer_settings(plan: Plan) -> list[str]:
    """Return the names of the settings that freeze or slow layers and are in use."""
    used = {
        "frozen_epochs": plan.frozen_epochs > 0,
        "unfreeze_epochs": plan.unfreeze_epochs > 0,
        "layer_decay": plan.layer_decay < 1,
    }
    return [f"training.{name}" for name, is_used in used.items() if is_used]


def without_pretrained(plan: Plan, pretrained: Path | None) -> str | None:
    """Return a warning if transfer learning is set without pretrained weights; else None."""
    names = transfer_settings(plan)
    if pretrained is not None or not names:
        return None
    return (
        f"model.pretrained is none, but {', '.join(names)} will slow or freeze "
        "layers with random weights. Fix: put a state dict in data/pretrained and name it in model.pretrained"
    )


def layers_in(module: nn.Module) -> int:
    """Return the number of modules in it with a weight of two dimensions or more. Norms have none."""
    return sum(any(weight.dim() >= 2 for weight in inner.parameters(recurse=False)) for inner in module.modules())


def _grouped(parts: list[_Unit]) -> list[list[_Unit]]:
    """Group the parts that hold parameters. A part without a layer joins the one before, or the first layer."""
    groups: list[list[_Unit]] = []
    for part in parts:
        if not any(True for _ in part.module.parameters(part.whole)):
            continue
        if groups and (not part.layers or not any(member.layers for member in groups[-1])):
            groups[-1].append(part)
        else:
            groups.append([part])
    return groups


def _staged(groups: list[list[_Unit]], model: nn.Module) -> Iterator[Stage]:
    unassigned = {id(parameter): name for name, parameter in model.named_parameters()}
    for group in groups:
        parameters = (parameter for part in group for parameter in part.module.parameters(part.whole))
        names = tuple(unassigned.pop(id(parameter)) for parameter in parameters if id(parameter) in unassigned)
        first = max(group, key=lambda part: part.layers > 0)
        yield Stage(first.name, tuple(part.module for part in group if part.whole), names)
