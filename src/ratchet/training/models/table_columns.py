"""Encoding of a table's columns for a network: piecewise-linear embeddings of numbers, one-hot or embedded categories.

Gorishniy et al. 2022, "On Embeddings for Numerical Features in Tabular Deep Learning", arXiv:2203.05556.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ratchet.errors import TrainingError
from ratchet.kinds import Column, TableInput

__all__ = ["ColumnEncoder", "bin_edges"]

CHOSEN_BY = {"kind": ("table",)}

Floats = NDArray[np.float32]

_BINS = 128  # of a numeric column, at most
_EMBEDDING = 16  # values of an embedding
_ONE_HOT = 64  # categories; a column with more of them has an embedding
_SMALLEST = torch.finfo(torch.float32).tiny  # width of a bin, so that its inverse is finite


class ColumnEncoder(nn.Module):
    """Turns prepared rows into one vector each: the numbers first, then the categories.

    Attributes:
        chunks: width of each feature in the vector; a feature is a column, or all one-hot values of a column.

    Raises:
        TrainingError: the table has no columns.
    """

    def __init__(self, table: TableInput) -> None:
        super().__init__()
        if not table.columns:
            raise TrainingError(
                "data.columns: the table has no column besides its targets. Allowed: at least one numeric, datetime or "
                "categorical column. Fix: give a column such a type in data.columns"
            )
        self.numbers = NumberEmbeddings(table.numeric) if table.numeric else None
        self.categories = CategoryEncoder(table.categorical) if table.categorical else None
        numeric = [_EMBEDDING] * len(table.numeric)
        self.chunks = tuple(numeric + (self.categories.chunks if self.categories is not None else []))
        self.width = sum(self.chunks)

    def initialise(self, numbers: torch.Tensor, missing: torch.Tensor, codes: torch.Tensor) -> None:
        """Place the bins of the numbers by training rows, prepared as for `forward`."""
        if self.numbers is not None:
            self.numbers.initialise(numbers, missing)

    def forward(self, numbers: torch.Tensor, missing: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        """Return float32 (n, width), from the outputs of `TableFront`."""
        parts = []
        if self.numbers is not None:
            parts.append(self.numbers(numbers, missing))
        if self.categories is not None:
            parts.append(self.categories(codes).to(parts[0].dtype if parts else numbers.dtype))
        return torch.cat(parts, 1)


class NumberEmbeddings(nn.Module):
    """Embeddings of numbers by bins: a linear function of the rank, plus a piecewise-linear one that starts at 0.

    The paper's linear part takes the number itself. Its rank among the edges is used here instead: it is bounded, so a
    number far outside the training range changes a prediction no more than the largest training number does. A missing
    number has an embedding of its own, and no part in any bin.

    All columns have tensors of one size. In bins that a column does not use, `scale` is 0.
    """

    low: torch.Tensor  # lower edges, (columns, bins)
    scale: torch.Tensor  # inverse widths, (columns, bins)
    used: torch.Tensor  # number of bins that a column uses, at least 1, (columns,)

    def __init__(self, columns: tuple[Column, ...]) -> None:
        super().__init__()
        count = len(columns)
        self.register_buffer("low", torch.zeros(count, _BINS))
        self.register_buffer("scale", torch.zeros(count, _BINS))
        self.register_buffer("used", torch.ones(count))
        scaled = [(np.array(column.quantiles) - column.mean) / column.std for column in columns]
        self._place([values.astype(np.float32) for values in scaled])

        bound = _EMBEDDING**-0.5
        embedding = torch.zeros(count, _BINS + 2, _EMBEDDING)  # inputs: rank, share of each bin, missing
        embedding[:, 0].uniform_(-bound, bound)
        self.embedding = nn.Parameter(embedding)
        self.bias = nn.Parameter(torch.empty(count * _EMBEDDING).uniform_(-bound, bound))  # flat: no weight decay

    @torch.no_grad()
    def initialise(self, numbers: torch.Tensor, missing: torch.Tensor) -> None:
        """Place the bins by training rows, both float32 (n, columns)."""
        columns = zip(numbers.T.float().cpu().numpy(), missing.T.cpu().numpy(), strict=True)
        self._place([values[absent == 0] for values, absent in columns])

    def _place(self, columns: list[Floats]) -> None:
        """Set the bins by the known values of each column; a column without any keeps its bins."""
        for row, values in enumerate(columns):
            edges = torch.from_numpy(bin_edges(values, limit=_BINS + 1))
            if not len(edges):
                continue
            used = len(edges) - 1
            self.low[row], self.scale[row], self.used[row] = 0.0, 0.0, max(1, used)
            self.low[row, :used] = edges[:-1]
            self.scale[row, :used] = edges.diff().clamp_min(_SMALLEST).reciprocal()

    def forward(self, numbers: torch.Tensor, missing: torch.Tensor) -> torch.Tensor:
        """Return float32 (n, columns * 16), from float32 (n, columns)."""
        shares = ((numbers.unsqueeze(2) - self.low) * self.scale).clamp(0.0, 1.0)  # of each bin that is below a number
        rank = (shares.sum(2, keepdim=True) / self.used.unsqueeze(1) - 0.5) * 12**0.5  # uniform ranks get variance 1
        absent = missing.unsqueeze(2)
        parts = torch.cat([torch.cat([rank, shares], 2) * (1.0 - absent), absent], 2)
        bias = self.bias.view(-1, 1, _EMBEDDING)
        return torch.baddbmm(bias, parts.transpose(0, 1), self.embedding).transpose(0, 1).flatten(1)


def bin_edges(values: Floats, *, limit: int) -> Floats:
    """Return the edges of bins for known values, float32 (n,): at most `limit`, increasing.

    All distinct values are edges if they are few enough. Otherwise each value with more than its share of the rows is
    an edge, and the others are quantiles of the rows without these values. Plain quantiles would leave a column that
    is mostly 0, such as a capital gain, with only a few edges for all its other values.
    """
    distinct, counts = np.unique(values, return_counts=True)
    if len(distinct) <= limit:
        return distinct
    is_frequent = counts * limit > len(values)
    frequent = distinct[is_frequent]
    rest = np.repeat(distinct[~is_frequent], counts[~is_frequent])
    places = np.linspace(0, len(rest) - 1, limit - len(frequent)).round().astype(np.int64)
    return np.unique(np.concatenate([frequent, rest[places]]))


class CategoryEncoder(nn.Module):
    """One-hot values of categories. Columns with more than 64 categories have a learned embedding instead.

    A missing value is a category of its own. A category that is not among the training rows is the zero vector.
    """

    column: torch.Tensor  # of each one-hot value
    code: torch.Tensor  # that makes it 1
    embedded: torch.Tensor  # columns with an embedding
    first: torch.Tensor  # row of their code 0 in the embedding

    def __init__(self, columns: tuple[Column, ...]) -> None:
        super().__init__()
        sizes = [len(column.categories) + 2 for column in columns]  # with the codes of missing and unseen values
        is_small = [len(column.categories) <= _ONE_HOT for column in columns]
        small = [(place, size) for place, size in enumerate(sizes) if is_small[place]]
        large = [(place, size) for place, size in enumerate(sizes) if not is_small[place]]
        one_hot = [(place, code) for place, size in small for code in range(size) if code != 1]
        starts = [sum(size for _, size in large[:number]) for number in range(len(large))]
        self._constant("column", [place for place, _ in one_hot])
        self._constant("code", [code for _, code in one_hot])
        self._constant("embedded", [place for place, _ in large])
        self._constant("first", starts)
        self.chunks = [size - 1 for _, size in small] + [_EMBEDDING] * len(large)

        self.embedding = nn.Embedding(sum(size for _, size in large), _EMBEDDING) if large else None
        if self.embedding is not None:
            with torch.no_grad():
                self.embedding.weight.mul_(_EMBEDDING**-0.5)
                self.embedding.weight[self.first + 1] = 0.0  # training rows have no unseen category, so it stays 0

    def _constant(self, name: str, values: list[int]) -> None:
        self.register_buffer(name, torch.tensor(values, dtype=torch.int64), persistent=False)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        """Return float32 (n, sum of chunks), from int64 (n, columns)."""
        parts = []
        if len(self.code):
            parts.append((codes.index_select(1, self.column) == self.code).float())
        if self.embedding is not None:
            parts.append(self.embedding(codes.index_select(1, self.embedded) + self.first).flatten(1))
        return torch.cat(parts, 1)
