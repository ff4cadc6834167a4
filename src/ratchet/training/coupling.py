"""Which channels of a network belong together: the same channel in every layer that makes or reads it.

Each tensor of the network's graph has a tensor of labels, one integer for each of its values: the channel that it
belongs to. Each operator passes labels on by a rule. Where an operator combines values of two channels, as an addition
does, the two become one (Fang et al. 2023, "DepGraph: Towards Any Structural Pruning"). Label 0 means fixed: the
inputs, the outputs, and all channels that an operator without a rule reads.
"""

import operator
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.fx import Node

from ratchet.training.models.narrow import NARROWED

__all__ = ["ChannelGroups", "channel_groups"]

ChannelGroups = dict[tuple[str, int], torch.Tensor]
"""Label of each position, by tensor name and axis. Channels of one label are removed together; 0: not removable."""

_FIXED = 0
_SAME = ("dropout", "dropout_", "feature_dropout", "clone", "contiguous", "detach", "alias", "to", "_to_copy")
_MOVED = ("permute", "transpose", "squeeze", "unsqueeze", "expand", "cat", "flatten", "view", "reshape")
_POOLED = (
    "max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d",
    "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool2d", "upsample_nearest2d", "upsample_bilinear2d",
)  # fmt: skip
_POINTWISE = ("hardswish", "hardtanh", "relu6", "elu", "leaky_relu")  # PyTorch does not mark these as such
_REDUCED = ("mean", "sum", "amax", "amin")


def channel_groups(network: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[ChannelGroups, list[torch.Tensor]]:
    """Return the labels of the network's tensors, and of the outputs of each layer that makes channels.

    Args:
        network: in eval mode.
        inputs: of one sample.

    Raises:
        Exception: those of torch.export, which cannot read every network.
    """
    program = torch.export.export(network, inputs, strict=False)
    graph = _Graph(network, program)
    return graph.run(program.graph.nodes)


class _Graph:
    """Labels of the tensors of one graph."""

    def __init__(self, network: nn.Module, program: torch.export.ExportedProgram) -> None:
        self.parents = [_FIXED]  # of a forest: channels with the same root are one
        self.slots: ChannelGroups = {}
        self.layers: list[torch.Tensor] = []
        self.labels: dict[Node, Any] = {}
        signature = program.graph_signature
        self.names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        uses: defaultdict[int, int] = defaultdict(int)
        for _, parameter in network.named_parameters(remove_duplicate=False):
            uses[id(parameter)] += 1
        self.narrowed = {
            f"{name}.{own}"
            for name, layer in network.named_modules()
            if isinstance(layer, NARROWED)
            for own, tensor in (*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False))
            if uses[id(tensor)] < 2
        }

    def run(self, nodes: Any) -> tuple[ChannelGroups, list[torch.Tensor]]:
        for node in nodes:
            self.labels[node] = self._apply(node)
        return {slot: self._roots(labels) for slot, labels in self.slots.items()}, list(map(self._roots, self.layers))

    def _apply(self, node: Node) -> Any:
        """Return the labels of a node's result."""
        if node.op == "output":
            self._fix(node)
        if node.op != "call_function":
            return _fixed(node.meta.get("val"))
        if node.target is operator.getitem:
            return self.labels[_first(node)][node.args[1]]
        name = getattr(node.target, "__name__", "").partition(".")[0]
        labels = self._rule(name, node)(node)
        if labels is None:  # no rule fits
            self._fix(node)
            return _fixed(node.meta["val"])
        return labels

    def _rule(self, name: str, node: Node) -> Callable[[Node], torch.Tensor | None]:
        rules = (
            (("conv1d", "conv2d", "conv3d"), self._convolution),
            (("linear",), self._linear),
            (("batch_norm",), self._batch_norm),
            (_SAME, lambda node: self.labels[_first(node)]),
            (_MOVED, self._moved),
            (_POOLED, self._pooled),
            (_REDUCED, self._reduced),
        )
        for names, rule in rules:
            if name in names:
                return rule
        return self._pointwise if _is_pointwise(node.target) else lambda _: None

    # Layers with weights

    def _convolution(self, node: Node) -> torch.Tensor | None:
        x, weight, bias, groups = _arguments(node, "input", "weight", "bias", "groups")
        inside, shape = self._along(x, 1), node.meta["val"].shape
        filters, each = weight.meta["val"].shape[:2]
        if not self._own(weight, bias) or (groups not in (None, 1) and each != 1):
            return None
        if groups in (None, 1):
            self._mark(weight, 1, inside)
            outside = self._new(filters)
        else:
            outside = inside.repeat_interleave(filters // len(inside))
        self._mark(weight, 0, outside)
        self._mark(bias, 0, outside)
        return _spread(outside, 1, shape)

    def _linear(self, node: Node) -> torch.Tensor | None:
        x, weight, bias = _arguments(node, "input", "weight", "bias")
        if not self._own(weight, bias):
            return None
        outside = self._new(len(weight.meta["val"]))
        self._mark(weight, 1, self._along(x, -1))
        self._mark(weight, 0, outside)
        self._mark(bias, 0, outside)
        return _spread(outside, -1, node.meta["val"].shape)

    def _batch_norm(self, node: Node) -> torch.Tensor | None:
        x, *tensors = _arguments(node, "input", "weight", "bias", "running_mean", "running_var")
        if not self._own(*tensors):
            return None
        channels = self._along(x, 1)
        for tensor in tensors:
            self._mark(tensor, 0, channels)
        return _spread(channels, 1, node.meta["val"].shape)

    # Operators without weights

    def _pointwise(self, node: Node) -> torch.Tensor | None:
        """Join the channels of all operands, except where one value is used for many channels."""
        shape = node.meta["val"].shape
        operands = sorted(self._operands(node), key=lambda labels: labels.shape != shape)
        if not operands or operands[0].shape != shape:
            return None
        first = operands[0]
        for labels in operands[1:]:
            labels = labels.view(*[1] * (len(shape) - labels.dim()), *labels.shape)
            widened = [axis for axis in range(len(shape)) if labels.shape[axis] != shape[axis]]
            if all(_constant(first, axis) for axis in widened):
                self._join(first, labels.expand(shape))
        return first

    def _moved(self, node: Node) -> torch.Tensor | None:
        """Move the labels as the operator moves values. Channels that it divides stay: their number may be in code."""
        operation: Any = node.target
        if operation.__name__.partition(".")[0] in ("view", "reshape"):
            before, after = self.labels[_first(node)], node.meta["val"].shape
            if len(after) >= before.dim() and after != before.shape and before.any():
                return None
        moved: torch.Tensor = operation(*_replaced(node.args, self.labels), **node.kwargs)
        return moved

    def _pooled(self, node: Node) -> torch.Tensor | None:
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor):
            return None
        return _spread(self._along(_first(node), 1), 1, value.shape)

    def _reduced(self, node: Node) -> torch.Tensor | None:
        labels: torch.Tensor = self.labels[_first(node)]
        axes: Any = node.args[1] if len(node.args) > 1 else None
        if not axes or not all(_constant(labels, axis) for axis in axes):
            return None
        return labels.amax(tuple(axes), keepdim=labels.dim() == node.meta["val"].dim())

    # Labels

    def _along(self, node: Node, axis: int) -> torch.Tensor:
        """Return the label of each position on an axis. If other axes differ in it, the channels become fixed."""
        rows: torch.Tensor = self.labels[node].movedim(axis, 0).flatten(1)
        if not bool((rows == rows[:, :1]).all()):
            self._join(rows, torch.zeros_like(rows))
            return torch.zeros_like(rows[:, 0])
        return rows[:, 0]

    def _new(self, channels: int) -> torch.Tensor:
        start = len(self.parents)
        self.parents += range(start, start + channels)
        self.layers.append(torch.arange(start, start + channels))
        return self.layers[-1]

    def _own(self, *tensors: Node | None) -> bool:
        """Return whether all are tensors of layers that can be narrowed."""
        return all(tensor is None or self.names.get(tensor.name) in self.narrowed for tensor in tensors)

    def _mark(self, tensor: Node | None, axis: int, labels: torch.Tensor) -> None:
        """Record the labels of a weight. A layer that is used twice has the same channels each time."""
        if tensor is not None:
            slot = self.names[tensor.name], axis
            self._join(labels, self.slots.setdefault(slot, labels))

    def _operands(self, node: Node) -> Iterator[torch.Tensor]:
        for source in node.all_input_nodes:
            labels = self.labels[source]
            yield from labels if isinstance(labels, list | tuple) else (labels,)

    def _fix(self, node: Node) -> None:
        for labels in self._operands(node):
            if labels is not None:
                self._join(labels, torch.zeros_like(labels))

    def _join(self, first: torch.Tensor, second: torch.Tensor) -> None:
        if torch.equal(first, second):
            return
        pairs = torch.unique(first.flatten() * len(self.parents) + second.flatten())
        for pair in pairs.tolist():
            low, high = sorted(map(self._root, divmod(pair, len(self.parents))))
            self.parents[high] = low

    def _root(self, label: int) -> int:
        while self.parents[label] != label:
            label = self.parents[label] = self.parents[self.parents[label]]
        return label

    def _roots(self, labels: torch.Tensor) -> torch.Tensor:
        return torch.tensor([self._root(label) for label in labels.tolist()])


def _is_pointwise(operation: Any) -> bool:
    """Return whether each value of the result depends on the values at the same place. Operations may be in place."""
    name, _, overload = operation.__name__.partition(".")
    name = name.removesuffix("_")
    overloaded = getattr(getattr(torch.ops.aten, name, None), overload, operation)
    return name in _POINTWISE or torch.Tag.pointwise in overloaded.tags


def _first(node: Node) -> Node:
    source = node.args[0]
    assert isinstance(source, Node)
    return source


def _fixed(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_fixed(each) for each in value]
    return torch.zeros(value.shape, dtype=torch.int64) if isinstance(value, torch.Tensor) else None


def _spread(labels: torch.Tensor, axis: int, shape: torch.Size) -> torch.Tensor:
    """Return the labels of one axis for a whole tensor."""
    sizes = [1] * len(shape)
    sizes[axis] = -1
    return labels.view(sizes).expand(shape)


def _constant(labels: torch.Tensor, axis: int) -> bool:
    return bool((labels == labels.narrow(axis, 0, 1)).all())


def _arguments(node: Node, *names: str) -> list[Any]:
    """Return arguments of an operator by name; None if they are not given."""
    operation: Any = node.target
    named = dict(zip((each.name for each in operation._schema.arguments), node.args, strict=False))
    return [{**named, **node.kwargs}.get(name) for name in names]


def _replaced(arguments: Any, labels: dict[Node, Any]) -> Any:
    if isinstance(arguments, list | tuple):
        return [_replaced(each, labels) for each in arguments]
    return labels[arguments].contiguous() if isinstance(arguments, Node) else arguments
