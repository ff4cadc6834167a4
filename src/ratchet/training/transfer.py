"""Transfer learning: which parts of a network learn when, and how fast.

A network is seen as stages from its input to its head. First only the head learns, on features that it can trust; then
the stages below thaw, from the head down, and the lower ones learn more slowly (Howard and Ruder 2018, "Universal
Language Model Fine-tuning": gradual unfreezing and discriminative rates).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from ratchet.training.models import Classifier
from ratchet.training.plan import Plan

__all__ = ["Stage", "layers_in", "learn", "rate_shares", "stages", "without_pretrained"]

_FEWEST = 4  # a network seen as fewer stages (say features and classifier) is taken apart further


@dataclass(frozen=True)
class Stage:
    """A part of a network that thaws as one."""

    name: str
    modules: tuple[nn.Module, ...]
    parameters: tuple[str, ...]  # names in the whole model; one that several stages share belongs to the first


@dataclass(frozen=True)
class _Part:
    """A module with all in it; or, once it has been taken apart, its own parameters alone."""

    name: str
    module: nn.Module
    whole: bool = True

    @property
    def layers(self) -> int:
        """How many layers are in it."""
        return layers_in(self.module) if self.whole else 0

    def apart(self, order: dict[str, int]) -> "list[_Part]":
        """Its own parameters and its children, in the order they run."""
        prefix = f"{self.name}." if self.name else ""
        children = [_Part(prefix + name, child) for name, child in self.module.named_children()]
        own = [_Part(self.name, self.module, whole=False)] if any(True for _ in self.module.parameters(False)) else []
        return [*own, *sorted(children, key=lambda child: child.first(order))]

    def first(self, order: dict[str, int]) -> int:
        """When any of it ran first. A list or a dict of modules does not run itself."""
        names = [f"{self.name}.{name}" if name else self.name for name, _ in self.module.named_modules()]
        return min((order[name] for name in names if name in order), default=len(order))


def stages(model: Classifier) -> list[Stage]:
    """The model's stages, from the input to the head.

    They are the children of the network, in the order they run; norms and single tensors belong to the stage before
    them. As long as there are fewer than four, the one with the most layers is taken apart into its children; a head
    that is a Sequential is its last layer. So a ResNet is its stem, four groups of blocks and `fc`; a VGG is its
    convolutions one by one and three linear layers; a vision transformer is its patches, its blocks and its head.
    """
    order = {name: position for position, name in enumerate(model.order)}
    parts = [_Part("", model)]
    while len(groups := _grouped(parts)) < _FEWEST:
        largest = max(groups, key=lambda group: max(part.layers for part in group))
        part = max(largest, key=lambda part: part.layers)
        if part.layers < 2 or not any(True for _ in part.module.children()):
            break
        place = parts.index(part)
        parts[place : place + 1] = part.apart(order)
    while isinstance((head := _grouped(parts)[-1][0]).module, nn.Sequential) and head.whole:
        place = parts.index(head)
        parts[place : place + 1] = head.apart(order)
    return list(_staged(_grouped(parts), model))


def rate_shares(model: Classifier, plan: Plan) -> dict[str, float]:
    """What share of the learning rate each parameter has: 1 in the head, `layer_decay` times as much a stage below."""
    found = stages(model)
    return {
        name: plan.layer_decay ** (len(found) - 1 - position)
        for position, stage in enumerate(found)
        for name in stage.parameters
    }


def learn(model: Classifier, plan: Plan, epoch: int) -> None:
    """Let learn what may learn in `epoch` (from 0), and freeze the rest; called after `model.train()`.

    In the first `frozen_epochs` only the head learns. Then the stage below it thaws, and another every
    `unfreeze_epochs` (0: all at once). A frozen stage is in eval mode too: the statistics of its batch norms must not
    drift. What the network itself keeps from learning stays so.
    """
    if not plan.frozen_epochs and not plan.unfreeze_epochs:
        return
    found = stages(model)
    below = len(found) - 1
    if epoch < plan.frozen_epochs:
        thawed = 0
    elif plan.unfreeze_epochs:
        thawed = min(below, 1 + (epoch - plan.frozen_epochs) // plan.unfreeze_epochs)
    else:
        thawed = below
    parameters = dict(model.named_parameters())
    for position, stage in enumerate(found):
        learns = position >= below - thawed
        for name in stage.parameters:
            parameters[name].requires_grad_(learns and name not in model.fixed)
        for module in stage.modules:
            module.train(learns and model.training)


def without_pretrained(plan: Plan, pretrained: Path | None) -> str | None:
    """What to say where transfer learning is asked for and there is nothing to transfer; else None."""
    said = [name for name in ("frozen_epochs", "unfreeze_epochs") if getattr(plan, name)]
    said += ["layer_decay"] if plan.layer_decay < 1.0 else []
    if pretrained is not None or not said:
        return None
    return (
        f"no pretrained weights were found: {', '.join(f'training.{name}' for name in said)} will hold back "
        "layers that begin from random weights; put a state dict in data/pretrained and name it in model.pretrained"
    )


def layers_in(module: nn.Module) -> int:
    """How many modules in it hold a weight of two dimensions or more; norms and biases hold none."""
    return sum(any(one.dim() >= 2 for one in each.parameters(recurse=False)) for each in module.modules())


def _grouped(parts: list[_Part]) -> list[list[_Part]]:
    """Parts that hold parameters; those without a layer join the one before, or the first the one behind it."""
    groups: list[list[_Part]] = []
    for part in parts:
        if not any(True for _ in part.module.parameters(part.whole)):
            continue
        if groups and (not part.layers or not any(one.layers for one in groups[-1])):
            groups[-1].append(part)
        else:
            groups.append([part])
    return groups


def _staged(groups: list[list[_Part]], model: nn.Module) -> Iterator[Stage]:
    left = {id(parameter): name for name, parameter in model.named_parameters()}
    for group in groups:
        parameters = (one for part in group for one in part.module.parameters(part.whole))
        names = tuple(left.pop(id(parameter)) for parameter in parameters if id(parameter) in left)
        first = max(group, key=lambda part: part.layers > 0)
        yield Stage(first.name, tuple(part.module for part in group if part.whole), names)
