"""Conversion of scikit-learn's trees to the tensors of `Trees`."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ratchet.training.models.trees import NEVER

__all__ = ["TreeSum", "tree_tensors"]

_LARGEST = np.finfo(np.float32).max


@dataclass(frozen=True)
class TreeSum:
    """Trees whose values are added, and what is added to them."""

    base: float
    trees: list[Any]  # scikit-learn's TreePredictor
    scale: float = 1.0  # of the trees' values


@dataclass(frozen=True)
class _Columns:
    """The columns that scikit-learn saw, and their places in the table: numeric columns first, then categorical."""

    places: NDArray[np.int64]
    numeric: int
    categories: int  # of the column with the most


def tree_tensors(
    sums: list[TreeSum], places: NDArray[np.int64], *, numeric: int, categories: int
) -> dict[str, torch.Tensor]:
    """Return the trees of all sums as tensors with room for the largest tree and for the most trees.

    Args:
        sums: in the order of the network's outputs.
        places: place of each of scikit-learn's columns in the table, numeric columns first.
        numeric: the number of numeric columns of the table.
        categories: the number of categories of the column with the most.
    """
    known = _Columns(places, numeric, categories)
    trees = max(1, *(len(part.trees) for part in sums))
    decisions = max([1, *(len(tree.nodes) // 2 for part in sums for tree in part.trees)])
    shape = (len(sums), trees)
    arrays: dict[str, NDArray[Any]] = {
        "column": np.zeros((*shape, decisions), np.int32),
        "threshold": np.zeros((*shape, decisions), np.float32),
        "category_column": np.zeros((*shape, decisions), np.int32),
        "category_set": np.zeros((*shape, decisions), np.int32),
        "path": np.zeros((*shape, decisions + 1, decisions), np.int8),
        "lefts": np.full((*shape, decisions + 1), NEVER, np.int8),
        "value": np.zeros((*shape, decisions + 1), np.float32),
    }
    sets, set_count = [np.zeros((1, 1 + categories), bool)], 1
    for number, part in enumerate(sums):
        for place, tree in enumerate(part.trees):
            one_tree = {name: array[number, place] for name, array in arrays.items()}
            sets.append(_write_decisions(one_tree, tree, known, first_set=set_count))
            set_count += len(sets[-1])
            _write_leaves(one_tree, tree.nodes, part.scale)
    base = torch.tensor([part.base for part in sums], dtype=torch.float32)
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return {**tensors, "base": base, "sets": torch.from_numpy(np.concatenate(sets))}


def _write_decisions(
    arrays: dict[str, NDArray[Any]], tree: Any, columns: _Columns, *, first_set: int
) -> NDArray[np.bool_]:
    """Write the decisions of a tree, in the order of its nodes, and return their sets of categories."""
    nodes = tree.nodes[tree.nodes["is_leaf"] == 0]
    place = columns.places[nodes["feature_idx"]]
    native, missing_left = nodes["is_categorical"].astype(bool), nodes["missing_go_to_left"].astype(bool)
    decisions = slice(len(nodes))
    # Row 0 of the network's numbers is for categorical decisions; the second copy of a number goes left if it misses.
    arrays["column"][decisions] = np.where(native, 0, 1 + place + columns.numeric * missing_left)
    arrays["threshold"][decisions] = np.where(native, -1.0, _rounded_down(nodes["num_threshold"]))
    arrays["category_column"][decisions] = np.where(native, place - columns.numeric, 0)
    arrays["category_set"][decisions] = np.where(native, first_set + np.cumsum(native) - 1, 0)
    sets = np.zeros((int(native.sum()), 1 + columns.categories), bool)
    sets[:, 0] = missing_left[native]
    bitsets = tree.raw_left_cat_bitsets[nodes["bitset_idx"][native]].astype("<u4")
    bits = np.unpackbits(bitsets.view(np.uint8), axis=1, bitorder="little").astype(bool)
    sets[:, 1:] = bits[:, : columns.categories]
    return sets


def _write_leaves(arrays: dict[str, NDArray[Any]], nodes: NDArray[Any], scale: float) -> None:
    """Write the values of a tree's leaves and the decisions that lead to them."""
    decision = np.cumsum(nodes["is_leaf"] == 0) - 1
    paths: list[tuple[int, list[tuple[int, int]]]] = [(0, [])]  # a node, and the decisions that lead to it
    leaf = 0
    while paths:
        place, path = paths.pop()
        node = nodes[place]
        if not node["is_leaf"]:
            paths += [
                (int(node["left"]), [*path, (int(decision[place]), 1)]),
                (int(node["right"]), [*path, (int(decision[place]), -1)]),
            ]
            continue
        for number, direction in path:
            arrays["path"][leaf, number] = direction
        arrays["lefts"][leaf] = sum(direction > 0 for _, direction in path)
        arrays["value"][leaf] = node["value"] * scale
        leaf += 1


def _rounded_down(thresholds: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the largest finite float32 up to each threshold. For every float32 number the comparison is the same."""
    limited = thresholds.clip(-_LARGEST, _LARGEST)
    rounded = limited.astype(np.float32)
    return np.where(rounded > limited, np.nextafter(rounded, np.float32(-np.inf)), rounded)
