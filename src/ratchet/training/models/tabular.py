"""Networks for rows of a table: TabM and a plain MLP, over one encoding of the columns."""

import torch
from torch import nn

from ratchet.kinds import TableInput
from ratchet.problems import Target
from ratchet.training.models.convnet import Dropout
from ratchet.training.models.table_columns import ColumnEncoder

__all__ = ["TabM", "TableFront", "TableMLP"]

CHOSEN_BY = {"kind": ("table",)}

_MEMBERS = 16
_WIDTH = 256
_BLOCKS = 2
_DROPOUT = 0.1


class TableFront(nn.Module):
    """Standardises the numbers of a table and marks the missing ones. Far values count as the column's limits."""

    mean: torch.Tensor
    std: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor

    def __init__(self, table: TableInput) -> None:
        super().__init__()
        for name in ("mean", "std"):
            values = torch.tensor([getattr(column, name) for column in table.numeric], dtype=torch.float32)
            self.register_buffer(name, values, persistent=False)
        limits = torch.tensor([column.limits or (-torch.inf, torch.inf) for column in table.numeric])
        self.has_limits = any(column.limits for column in table.numeric)
        for place, name in enumerate(("low", "high")):
            self.register_buffer(name, limits.view(-1, 2)[:, place].float(), persistent=False)

    def forward(self, numbers: torch.Tensor, codes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Prepare raw rows for a network.

        Args:
            numbers: float32 (n, numeric columns); NaN: missing. An infinite number counts as missing too.
            codes: int64 (n, categorical columns).

        Returns:
            Standardised numbers, 0 where missing, float32 (n, numeric columns); 1 where missing, else 0, of the same
            shape and type; and `codes`.
        """
        if self.has_limits:
            numbers = torch.maximum(torch.minimum(numbers, self.high), self.low)
        scaled = (numbers - self.mean) / self.std
        is_finite = torch.isfinite(scaled)
        return torch.where(is_finite, scaled, 0.0), 1.0 - is_finite.to(scaled.dtype), codes


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
        self.adapter = MemberScales(self.encoder.chunks, signs=not input.numeric)
        self.backbone = _backbone(self.encoder.width)
        self.head = MemberHeads(_WIDTH, target.outputs)

    def initialise(self, numbers: torch.Tensor, missing: torch.Tensor, codes: torch.Tensor) -> None:
        """Place the bins of the numbers by training rows, prepared as for `forward`."""
        self.encoder.initialise(numbers, missing, codes)

    def forward(self, numbers: torch.Tensor, missing: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        """Return outputs, from the outputs of `TableFront`.

        In training: of each member, (n, members, outputs). Otherwise of the mean prediction, (n, outputs).
        """
        outputs: torch.Tensor = self.head(self.backbone(self.adapter(self.encoder(numbers, missing, codes))))
        return outputs if self.training else self.target.mean_prediction(outputs.float(), 1)


class MemberScales(nn.Module):
    """Multiplies a row by a vector of each member.

    At first the vectors are random, with one value per feature, so that a feature of a member stays whole.

    Args:
        chunks: width of each feature in the row.
        signs: begin with 1 and -1, otherwise with normal values.
    """

    def __init__(self, chunks: tuple[int, ...], *, signs: bool) -> None:
        super().__init__()
        scales = torch.randn(_MEMBERS, len(chunks))
        scales = (scales.sign() if signs else scales).repeat_interleave(torch.tensor(chunks), 1)
        self.weight = nn.Parameter(scales.flatten())  # as those of norms: no weight decay, no Muon, no layer of its own

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return (members, n, width), from (n, width)."""
        return rows.unsqueeze(0) * self.weight.view(_MEMBERS, 1, -1)


class MemberHeads(nn.Module):
    """A linear layer of each member."""

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        bound = width**-0.5
        self.weight = nn.Parameter(torch.empty(outputs, _MEMBERS, width).uniform_(-bound, bound))  # as of all layers
        self.bias = nn.Parameter(torch.empty(_MEMBERS * outputs).uniform_(-bound, bound))  # flat: no weight decay

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return (n, members, outputs), from (members, n, width)."""
        return torch.baddbmm(self.bias.view(_MEMBERS, 1, -1), hidden, self.weight.permute(1, 2, 0)).transpose(0, 1)


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
