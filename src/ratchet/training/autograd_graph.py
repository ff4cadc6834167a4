"""The autograd graph behind a tensor: its nodes, its leaves and the operations that they belong to."""

from collections import deque
from collections.abc import Iterable, Iterator

import torch
from torch.autograd.graph import Node

__all__ = ["graph_leaves", "graph_nodes", "operation"]


def operation(node: Node) -> str:
    """Return the name of a node's operation, such as Relu for ReluBackward0."""
    return node.name().rstrip("0123456789").removesuffix("Backward").removeprefix("_")


def graph_nodes(nodes: Iterable[Node | None]) -> Iterator[Node]:
    """Yield the nodes of the autograd graph behind `nodes` and these themselves, nearest first."""
    waiting = deque(node for node in nodes if node is not None)
    seen = set(waiting)
    while waiting:
        node = waiting.popleft()
        yield node
        for before, _ in node.next_functions:
            if before is not None and before not in seen:
                seen.add(before)
                waiting.append(before)


def graph_leaves(node: Node | None) -> Iterator[torch.Tensor]:
    """Yield the tensors that a backward pass from `node` gives gradients to, nearest first."""
    for each in graph_nodes([node]):
        variable = getattr(each, "variable", None)
        if isinstance(variable, torch.Tensor):
            yield variable
