"""N-grams with interpolated modified Kneser-Ney smoothing (Chen and Goodman 1999), as tensors of `Ngrams`."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ratchet.kinds import TokensInput
from ratchet.problems import Target

__all__ = ["fit_ngrams"]

_ORDERS = {"words": 3}  # by tokenizer; of all others:
_ORDER = 5
_MOST_TOKENS = 10_000_000  # of the stream that are counted, from its start
_MOST_GRAMS = 20_000_000  # of a model; one with more gets shorter contexts
_MOST_COLUMNS = 1024  # shares of one context; the rarest of more are left to the shorter context

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class _Level:
    """N-grams of one length: `counts` of the token `tokens` after the context `nodes`, in ascending order."""

    nodes: Ints
    tokens: Ints
    counts: Ints

    @property
    def shares(self) -> NDArray[np.float64]:
        """Discounted relative frequencies in each context."""
        totals = np.bincount(self.nodes, self.counts)
        discount = _discounts(self.counts)[np.minimum(self.counts, 3)]
        shares: NDArray[np.float64] = (self.counts - discount) / totals[self.nodes]
        return shares


def fit_ngrams(
    stream: NDArray[np.integer], described: TokensInput, target: Target
) -> tuple[str, dict[str, torch.Tensor]]:
    """Return the name and the state of an `Ngrams` for a stream of token ids, (tokens,)."""
    ids = stream[:_MOST_TOKENS].astype(np.int64)
    part = f" of the first {len(ids):,} tokens" if len(ids) < len(stream) else ""
    order = max(1, min(_ORDERS.get(described.tokenizer, _ORDER), len(ids)))
    while True:
        keys, levels = _count(ids, target.outputs, order)
        grams = sum(len(level.counts) for level in levels)
        if grams <= _MOST_GRAMS or order == 1:
            return f"{order}-gram counts{part}", _tensors(keys, levels, target.outputs)
        order -= 1


def _count(ids: Ints, tokens: int, order: int) -> tuple[list[Ints], list[_Level]]:
    """Return the keys of the contexts of length 1 and up, and the n-grams of length 1 to `order`.

    The longest n-grams have their number of occurrences, the shorter ones the number of different tokens before them.
    """
    following = ids[order - 1 :]
    node, first = np.zeros(len(following), np.int64), 1
    keys, parents = [], np.zeros(1, np.int64)
    for back in range(1, order):
        key = node * tokens + ids[order - 1 - back : len(ids) - back]
        unique, place = np.unique(key, return_inverse=True)
        keys.append(unique)
        parents = np.concatenate([parents, unique // tokens])
        node, first = first + place, first + len(unique)
    pairs, counts = np.unique(node * tokens + following, return_counts=True)
    levels = [_Level(pairs // tokens, pairs % tokens, counts)]
    for _ in range(1, order):
        longer = levels[0]
        pairs, counts = np.unique(parents[longer.nodes] * tokens + longer.tokens, return_counts=True)
        levels.insert(0, _Level(pairs // tokens, pairs % tokens, counts))
    return keys, levels


def _discounts(counts: Ints) -> NDArray[np.float64]:
    """Return the discounts of the counts 0, 1, 2, and 3 or more, estimated from how often each occurs."""
    once, twice, thrice, four_times = (float(np.count_nonzero(counts == number)) for number in range(1, 5))
    if not (once and twice and thrice):
        return np.array([0.0, 0.5, 0.5, 0.5])
    part = once / (once + 2 * twice)
    raw = [0.0, 1 - 2 * part * twice / once, 2 - 3 * part * thrice / twice, 3 - 4 * part * four_times / thrice]
    return np.clip(raw, [0.0, 0.1, 0.1, 0.1], [0.0, 0.9, 1.9, 2.9])


def _tensors(keys: list[Ints], levels: list[_Level], tokens: int) -> dict[str, torch.Tensor]:
    root = levels[0]
    unigrams = np.zeros(tokens)
    unigrams[root.tokens] = root.shares
    unigrams += (1.0 - unigrams.sum()) / tokens
    contexts = 1 + sum(map(len, keys))
    none = np.zeros(0, np.int64)
    node = np.concatenate([none, *(level.nodes for level in levels[1:])])
    token = np.concatenate([none, *(level.tokens for level in levels[1:])]).astype(np.int32)
    share = np.concatenate([none, *(level.shares for level in levels[1:])])
    node, token, share = _most_frequent(node, token, share)
    sizes = np.bincount(node, minlength=contexts)[1:]
    rest = 1.0 - np.bincount(node, share, minlength=contexts)[1:]
    return {
        "unigrams": torch.tensor(unigrams, dtype=torch.float32),
        "keys": torch.from_numpy(np.concatenate([none, *keys])),
        "levels": torch.tensor([len(level) for level in keys], dtype=torch.int32),
        "rest": torch.tensor(rest.clip(0.0), dtype=torch.float32),
        "starts": torch.from_numpy(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)),
        "tokens": torch.from_numpy(token),
        "shares": torch.tensor(share, dtype=torch.float32),
        "columns": torch.arange(int(sizes.max(initial=0)), dtype=torch.int32),
    }


def _most_frequent(
    node: Ints, token: NDArray[np.int32], share: NDArray[np.float64]
) -> tuple[Ints, NDArray[np.int32], NDArray[np.float64]]:
    """Return at most `_MOST_COLUMNS` shares of each context, the largest ones."""
    sizes = np.bincount(node)
    if sizes.max(initial=0) <= _MOST_COLUMNS:
        return node, token, share
    order = np.lexsort((token, -share, node))
    rank = np.arange(len(node)) - (np.cumsum(sizes) - sizes)[node[order]]
    kept = np.sort(order[rank < _MOST_COLUMNS])
    return node[kept], token[kept], share[kept]
