"""Networks of counts: TF-IDF with a linear model for texts, and n-grams for streams of tokens."""

import torch
from torch.nn import functional

from ratchet.kinds import TextInput, TokensInput
from ratchet.problems import Target
from ratchet.training.models.fitted import Fitted, as_outputs

__all__ = ["LinearBag", "Ngrams"]

CHOSEN_BY = {"variant": ("baseline", "blend")}


class LinearBag(Fitted):
    """A linear model on the TF-IDF vector of a text: (1 + log of occurrences) times IDF, at length 1.

    Ids that training has not seen, and padding, have the IDF 0 and so count nothing.
    """

    idf: torch.Tensor  # float32 (ids,)
    weights: torch.Tensor  # float32 (ids, sums): weight of an id, times its idf
    bias: torch.Tensor  # float32 (sums,)

    def __init__(self, input: TextInput, target: Target) -> None:
        super().__init__()
        self.target = target
        self.register_buffer("idf", torch.zeros(1))
        self.register_buffer("weights", torch.zeros(1, target.outputs))
        self.register_buffer("bias", torch.zeros(target.outputs))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return outputs (n, outputs) for token ids, int64 (n, longest text), 0: padding."""
        ids = ids.sort(dim=1).values
        idf = self.idf[ids]
        # Equal ids are neighbours now: a run. The number of its run is the place of an id in the text's vector.
        run = (ids != _shifted(ids)).long().cumsum(1) - 1
        count = torch.zeros_like(idf).scatter_add(1, run, torch.ones_like(idf)).gather(1, run)
        share = (1 + count.log()) / count  # of each occurrence in the term frequency
        length = (idf.square() * share.square() * count).sum(1, keepdim=True).sqrt().clamp_min(1e-12)
        sums = (self.weights[ids] * (share / length).unsqueeze(2)).sum(1)
        return as_outputs(sums + self.bias, self.target)


class Ngrams(Fitted):
    """Interpolated n-grams: a context's own shares, and for the rest the distribution of the context one token shorter.

    Contexts are nodes of a tree. Its root is the empty context 0; the child of a context by a token has this token
    before it. Children are numbered by their keys, parent * tokens + token, in ascending order from 1.
    """

    unigrams: torch.Tensor  # float32 (tokens,): probabilities without context, none 0
    keys: torch.Tensor  # int64 (contexts,): ascending
    levels: torch.Tensor  # int32 (longest context,): the number of contexts of each length
    rest: torch.Tensor  # float32 (contexts,): probability that is left to the shorter context
    starts: torch.Tensor  # int32 (contexts + 1,): where the shares of a context begin
    tokens: torch.Tensor  # int32 (shares,): the next token
    shares: torch.Tensor  # float32 (shares,): its probability
    columns: torch.Tensor  # int32 (most shares of a context,): 0, 1, 2, ...

    def __init__(self, input: TokensInput, target: Target) -> None:
        super().__init__()
        self.register_buffer("unigrams", torch.full((target.outputs,), 1.0 / target.outputs))
        self.register_buffer("keys", torch.zeros(0, dtype=torch.int64))
        self.register_buffer("rest", torch.zeros(0))
        self.register_buffer("shares", torch.zeros(0))
        for name, size in (("levels", 0), ("starts", 1), ("tokens", 0), ("columns", 0)):
            self.register_buffer(name, torch.zeros(size, dtype=torch.int32))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return log-probabilities of the next token, (n, context, tokens), for token ids, int64 (n, context)."""
        probabilities = self.unigrams.expand(*ids.shape, -1)
        node, is_known = torch.zeros_like(ids), torch.ones_like(ids, dtype=torch.bool)
        for back in range(len(self.levels)):
            if back:  # the token before, of which the first position has none
                ids = _shifted(ids)
            place, found_key = self._search(node * len(self.unigrams) + ids)
            is_known = is_known & found_key & (ids >= 0)
            node = torch.where(is_known, place + 1, 0)
            longer = self._shares(place) + self.rest[place].unsqueeze(2) * probabilities
            probabilities = torch.where(is_known.unsqueeze(2), longer, probabilities)
        return probabilities.log()

    def _search(self, key: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the place of the largest stored key up to each key (or 0), and if it is equal: a binary search."""
        place = torch.zeros_like(key)
        size = len(self.keys)
        for power in reversed(range(size.bit_length())):
            further = place + 2**power
            inside = further.clamp_max(size - 1)
            place = torch.where((further < size) & (self.keys[inside] <= key), inside, place)
        return place, self.keys[place] == key

    def _shares(self, place: torch.Tensor) -> torch.Tensor:
        """Return the own shares of contexts (n, context), as (n, context, tokens)."""
        first, end = self.starts[place].long(), self.starts[place + 1].long()
        column = first.unsqueeze(2) + self.columns
        inside = column < end.unsqueeze(2)
        column = column.clamp_max(len(self.shares) - 1)
        shares = torch.where(inside, self.shares[column], 0.0)
        empty = self.unigrams.new_zeros(1).expand(*place.shape, len(self.unigrams))
        return empty.scatter_add(2, self.tokens[column].long(), shares)


def _shifted(ids: torch.Tensor) -> torch.Tensor:
    """Return the id before each id, (n, ids); -1 before the first."""
    return functional.pad(ids, (1, 0), value=-1)[:, :-1]
