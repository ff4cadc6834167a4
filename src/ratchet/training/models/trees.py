"""Gradient-boosted trees as a network: scikit-learn's HistGradientBoosting, evaluated from tensors."""

import torch

from ratchet.kinds import TableInput
from ratchet.problems import Target
from ratchet.training.models.fitted import Fitted, as_outputs

__all__ = ["NEVER", "Trees"]

CHOSEN_BY = {"variant": ("baseline", "blend")}

NEVER = 127  # `lefts` of a leaf that is not there
_TREES_AT_ONCE = 256  # bounds the memory of one batch


class Trees(Fitted):
    """Sums of decision trees over the columns of a table.

    All decisions of a tree are made for every row, and one matrix product finds its leaf: a leaf is reached if the
    decisions on its path are those that lead to it (the "GEMM" strategy of Nakandala et al. 2020).
    """

    base: torch.Tensor  # float32 (sums,): added to each sum of trees
    column: torch.Tensor  # int32 (sums, trees, decisions): row of `_numbers`; of a category: 0, where all are 0
    threshold: torch.Tensor  # float32 (sums, trees, decisions): a number up to it goes left; of a category: below 0
    category_column: torch.Tensor  # int32 (sums, trees, decisions): place among the categorical columns
    category_set: torch.Tensor  # int32 (sums, trees, decisions): row of `sets`; of a number: 0, the empty set
    sets: torch.Tensor  # bool (sets, 1 + categories): True goes left; the first column is for a missing value
    path: torch.Tensor  # int8 (sums, trees, leaves, decisions): 1 left, -1 right, 0 not on the path
    lefts: torch.Tensor  # int8 (sums, trees, leaves): decisions of the path that go left
    value: torch.Tensor  # float32 (sums, trees, leaves)
    categories: torch.Tensor  # int32 (categorical columns, codes): category of each code, from 1; 0: missing

    def __init__(self, input: TableInput, target: Target) -> None:
        super().__init__()
        self.target = target
        columns = len(input.categorical)
        codes = max((len(column.categories) for column in input.categorical), default=0) + 2
        trees = (target.outputs, 1)
        self.register_buffer("base", torch.zeros(target.outputs))
        for name in ("column", "category_column", "category_set"):
            self.register_buffer(name, torch.zeros(*trees, 1, dtype=torch.int32))
        self.register_buffer("threshold", torch.zeros(*trees, 1))
        self.register_buffer("sets", torch.zeros(1, 2, dtype=torch.bool))
        self.register_buffer("path", torch.zeros(*trees, 2, 1, dtype=torch.int8))
        self.register_buffer("lefts", torch.full((*trees, 2), NEVER, dtype=torch.int8))
        self.register_buffer("value", torch.zeros(*trees, 2))
        self.register_buffer("categories", torch.zeros(columns, codes, dtype=torch.int32))

    def forward(self, numbers: torch.Tensor, missing: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        """Return outputs (n, outputs).

        Args:
            numbers: standardised, float32 (n, numeric columns).
            missing: 1 where a number is missing, float32 (n, numeric columns).
            codes: int64 (n, categorical columns).
        """
        values, categories = self._numbers(numbers, missing), self._categories(codes)
        sums, trees = self.value.shape[:2]
        parts = []
        for first in range(0, sums * trees, _TREES_AT_ONCE):
            part = slice(first, first + _TREES_AT_ONCE)
            left = self._left(values, categories, part).to(values.dtype)
            path, lefts, value = (tensor.flatten(0, 1)[part] for tensor in (self.path, self.lefts, self.value))
            left = left.view(path.shape[0], path.shape[2], -1)  # (trees, decisions, n)
            reached = torch.bmm(path.to(left.dtype), left) == lefts.unsqueeze(2)
            parts.append(torch.where(reached, value.unsqueeze(2), 0.0).sum(1))
        outputs = torch.cat(parts).view(sums, trees, -1).sum(1).T + self.base
        return as_outputs(outputs, self.target)

    def _numbers(self, numbers: torch.Tensor, missing: torch.Tensor) -> torch.Tensor:
        """Return float32 (1 + 2 numeric columns, n): zeros, then the numbers twice.

        A missing number is larger than every threshold, and the second time smaller.
        """
        absent, numbers = (missing > 0).T, numbers.float().T
        nothing = numbers.new_zeros(1, 1).expand(1, numbers.shape[1])
        return torch.cat([nothing, numbers.masked_fill(absent, torch.inf), numbers.masked_fill(absent, -torch.inf)])

    def _categories(self, codes: torch.Tensor) -> torch.Tensor:
        """Return the category of each code, int64 (categorical columns, n); 0: missing or unknown."""
        columns, width = self.categories.shape
        first = torch.arange(columns, device=codes.device) * width
        return self.categories.flatten()[codes + first].long().T

    def _left(self, values: torch.Tensor, categories: torch.Tensor, part: slice) -> torch.Tensor:
        """Return the decisions of some trees, bool (trees * decisions, n)."""
        column, threshold, category_column, category_set = (
            tensor.flatten(0, 1)[part].flatten()
            for tensor in (self.column, self.threshold, self.category_column, self.category_set)
        )
        left = values.index_select(0, column) <= threshold.unsqueeze(1)
        if len(self.sets) == 1:
            return left
        in_set = self.sets.index_select(0, category_set).gather(1, categories.index_select(0, category_column))
        return left | in_set
