"""Networks for rows of a table: TabM and a plain MLP, over one encoding of the columns."""

import math

import torch
from torch import nn
from torch.nn import functional

from ratchet.kinds import Classes, Labels, TableInput, Target
from ratchet.training.models.convnet import Dropout
from ratchet.training.models.table_columns import ColumnEncoder

__all__ = ["TabM", "TableFront", "TableMLP"]

_MEMBERS = 16
_WIDTH = 256
_BLOCKS = 2
_DROPOUT = 0.1


class TableFront(nn.Module):
    """Standardises the numbers of a table and marks the missing ones."""

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, table: TableInput) -> None:
        super().__init__()
        for name in ("mean", "std"):
            values = torch.tensor([getattr(column, name) for column in table.numeric], dtype=torch.float32)
            self.register_buffer(name, values, persistent=False)

    def forward(self, numbers: torch.Tensor, codes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Prepare raw rows for a network.

        Args:
            numbers: float32 (n, numeric columns); NaN: missing. An infinite number counts as missing too.
            codes: int64 (n, categorical columns).

        Returns:
            Standardised numbers, 0 where missing, float32 (n, numeric columns); 1 where missing, else 0, of the same
            shape and type; and `codes`.
        """
        scaled = (numbers - self.mean) / self.std
        known = torch.isfinite(scaled)
        return torch.where(known, scaled, 0.0), 1.0 - known.to(scaled.dtype), codes


class TabM(nn.Module):
    """TabM-mini with piecewise-linear embeddings: an ensemble of MLPs that share all but an adapter and their heads.

    Gorishniy et al. 2024, "TabM: Advancing Tabular Deep Learning with Parameter-Efficient Ensembling",
    arXiv:2410.24210. The adapter of a member multiplies the encoded row by a vector of its own. The published default
    has 32 members and two blocks of 512; 16 members and two blocks of 256 take a fifth of the time.
    """

    def __init__(self, input: TableInput, target: Target) -> None:
        super().__init__()
        self.target = target
        self.encoder = ColumnEncoder(input)
        chunks = torch.tensor(self.encoder.chunks)
        scales = torch.randn(_MEMBERS, len(chunks))  # one value per feature keeps the features of a member whole
        self.adapter = nn.Parameter((scales if input.numeric else scales.sign()).repeat_interleave(chunks, 1))
        self.backbone = _backbone(self.encoder.width)
        bound = _WIDTH**-0.5
        self.head = nn.Parameter(torch.empty(_MEMBERS, _WIDTH, target.outputs).uniform_(-bound, bound))
        self.head_bias = nn.Parameter(torch.empty(_MEMBERS * target.outputs).uniform_(-bound, bound))  # flat: no decay

    def initialise(self, numbers: torch.Tensor, missing: torch.Tensor, codes: torch.Tensor) -> None:
        """Place the bins of the numbers by training rows, prepared as for `forward`."""
        self.encoder.initialise(numbers, missing, codes)

    def forward(self, numbers: torch.Tensor, missing: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        """Return outputs, from the outputs of `TableFront`.

        In training: of each member, (n, members, outputs). Otherwise of the mean prediction, (n, outputs).
        """
        rows = self.encoder(numbers, missing, codes)
        hidden = self.backbone(rows.unsqueeze(0) * self.adapter.unsqueeze(1))  # (members, n, width)
        bias = self.head_bias.view(len(self.head), 1, -1)
        outputs = torch.baddbmm(bias, hidden, self.head).transpose(0, 1)
        return outputs if self.training else _mean_prediction(outputs.float(), self.target)


class TableMLP(nn.Module):
    """A plain MLP: the columns, backbone and size of `TabM` without the ensemble."""

    def __init__(self, input: TableInput, target: Target) -> None:
        super().__init__()
        self.encoder = ColumnEncoder(input)
        self.backbone = _backbone(self.encoder.width)
        self.head = nn.Linear(_WIDTH, target.outputs)

    def initialise(self, numbers: torch.Tensor, missing: torch.Tensor, codes: torch.Tensor) -> None:
        """Place the bins of the numbers by training rows, prepared as for `forward`."""
        self.encoder.initialise(numbers, missing, codes)

    def forward(self, numbers: torch.Tensor, missing: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        """Return outputs (n, outputs), from the outputs of `TableFront`."""
        outputs: torch.Tensor = self.head(self.backbone(self.encoder(numbers, missing, codes)))
        return outputs


def _backbone(width: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inside in (width, *[_WIDTH] * (_BLOCKS - 1)):
        layers += [nn.Linear(inside, _WIDTH), nn.ReLU(), Dropout(_DROPOUT)]
    return nn.Sequential(*layers)


def _mean_prediction(outputs: torch.Tensor, target: Target) -> torch.Tensor:
    """Return the outputs of the members' mean prediction, (n, outputs).

    Classes: log of the mean probability. Labels: logit of the mean probability. Numbers: mean.

    Args:
        outputs: of the members, float32 (n, members, outputs).
        target: decides what a prediction is.
    """
    if isinstance(target, Classes):
        return functional.log_softmax(outputs, dim=2).logsumexp(1) - math.log(outputs.shape[1])
    if isinstance(target, Labels):
        return functional.logsigmoid(outputs).logsumexp(1) - functional.logsigmoid(-outputs).logsumexp(1)
    return outputs.mean(1)
