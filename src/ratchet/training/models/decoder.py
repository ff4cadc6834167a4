"""A decoder-only transformer: a language model.

Blocks are pre-norm without biases and gains. Positions are rotary (Su et al. 2021, arXiv:2104.09864), queries and keys
are normalised (Henry et al. 2020, arXiv:2010.04245), the MLP has squared ReLU (So et al. 2021, arXiv:2109.08668), and
the last layer of every branch starts at 0, so that a block is the identity at first (as in fixup, Zhang et al. 2019).
The output layer is the embedding (Press and Wolf 2017).
"""

import torch
from torch import nn
from torch.nn import functional

from ratchet.kinds import TokensInput
from ratchet.problems import NextToken

__all__ = ["Cache", "Decoder"]

CHOSEN_BY = {"model": ("decoder",)}

_BASE = 10_000.0  # of the rotary frequencies
_FIRST_SPREAD = 0.02  # standard deviation of the first embeddings
Cache = list[tuple[torch.Tensor, torch.Tensor]]
"""Keys and values of the tokens so far, each (n, heads, tokens, width / heads), for each block."""


class Decoder(nn.Module):
    """Ids int64 (n, t), t <= context -> logits float (n, t, tokens)."""

    def __init__(
        self,
        input: TokensInput,
        target: NextToken,
        *,
        layers: int = 4,
        heads: int = 4,
        width: int = 128,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        assert width % (2 * heads) == 0, "rotary positions turn pairs of numbers"
        self.context = input.context
        self.embedding = nn.Embedding(target.tokens, width)
        nn.init.normal_(self.embedding.weight, std=_FIRST_SPREAD)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(_Block(width, heads, dropout) for _ in range(layers))
        self.head = _TiedHead(self.embedding)
        angles = torch.outer(
            torch.arange(input.context), _BASE ** -(torch.arange(0, 1, 2 * heads / width, dtype=torch.float64))
        )
        self.register_buffer("turns", torch.stack([angles.cos(), angles.sin()]).float(), persistent=False)

    def forward(self, ids: torch.Tensor, cache: Cache | None = None) -> torch.Tensor:
        """Return the logits of the token after each of `ids`.

        Args:
            cache: of the tokens before `ids`, which is extended by `ids`; an empty list for the first call.
        """
        cached = cache[0][0].shape[2] if cache else 0
        turns = self.get_buffer("turns")[:, cached : cached + ids.shape[1]]
        x = self.dropout(self.embedding(ids))
        for number, block in enumerate(self.blocks):
            x = block(x, turns, cache, number)
        logits: torch.Tensor = self.head(_normalised(x))
        return logits


class _TiedHead(nn.Module):
    """The output layer, which has the weight of the embedding and no parameter."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self._shared = (embedding,)  # a tuple, because a module would be registered and saved twice

    @property
    def weight(self) -> torch.Tensor:
        """The weight of the embedding, (tokens, width)."""
        return self._shared[0].weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight)


class _Block(nn.Module):
    """Attention and an MLP, each added to its input."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.attention_in = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.mlp_in = nn.Linear(width, 4 * width, bias=False)
        self.mlp_out = nn.Linear(4 * width, width, bias=False)
        nn.init.zeros_(self.attention_out.weight)
        nn.init.zeros_(self.mlp_out.weight)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, turns: torch.Tensor, cache: Cache | None, number: int) -> torch.Tensor:
        attended = self._attention(self.attention_in(_normalised(x)), turns, cache, number)
        x = x + self.dropout(self.attention_out(attended))
        hidden = functional.relu(self.mlp_in(_normalised(x))).square()
        added: torch.Tensor = self.dropout(self.mlp_out(hidden))
        return x + added

    def _attention(self, mixed: torch.Tensor, turns: torch.Tensor, cache: Cache | None, number: int) -> torch.Tensor:
        """Return the attended values (n, t, width) from queries, keys and values (n, t, 3 * width)."""
        rows, length, _ = mixed.shape
        parts = mixed.view(rows, length, 3 * self.heads, -1).transpose(1, 2)
        pairs, values = _turned(_normalised(parts[:, : 2 * self.heads]), turns), parts[:, 2 * self.heads :]
        queries, keys = pairs.chunk(2, 1)
        if cache is not None:
            keys, values = _extended(cache, number, keys, values)
        attended = _attend(queries, keys, values)
        return attended.transpose(1, 2).reshape(rows, length, -1)


def _attend(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return causal attention; the queries belong to the last of the keys."""
    if values.device.type == "cpu" and values.dtype == torch.bfloat16:
        with torch.autocast("cpu", enabled=False):  # the backward pass of its kernel takes three times as long in bf16
            return _causal(queries.float(), keys.float(), values.float())
    return _causal(queries, keys, values.to(queries.dtype))


def _causal(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    new, cached = queries.shape[2], keys.shape[2]
    if new == cached or new == 1:
        return functional.scaled_dot_product_attention(queries, keys, values, is_causal=new > 1)
    mask = torch.ones(new, cached, dtype=torch.bool, device=queries.device).tril(cached - new)
    return functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)


def _extended(cache: Cache, number: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Add keys and values to a block's cache, and return all."""
    if number == len(cache):
        cache.append((keys, values))
    else:
        known_keys, known_values = cache[number]
        cache[number] = torch.cat([known_keys, keys], 2), torch.cat([known_values, values], 2)
    return cache[number]


def _normalised(x: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(x, x.shape[-1:])  # of the norms it has the fastest kernel on a CPU


def _turned(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """Turn each pair of numbers by an angle that grows with the position: (n, heads, t, width) -> the same."""
    cosine, sine = turns.to(x.dtype)
    first, second = x.chunk(2, -1)
    return torch.cat([first * cosine - second * sine, first * sine + second * cosine], -1)
