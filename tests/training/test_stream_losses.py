"""Losses over a text: each token once, and comparable between tokenizers. Expected values are computed by hand."""

import numpy as np
import pytest
import torch
from torch import nn

from ratchet.kinds import TokensInput
from ratchet.kinds.pieces import PIECE
from ratchet.tokens.token_ids import TOKENIZERS, encode, fit, tokens
from ratchet.training.stream_losses import piece_losses, token_losses

TEXT = "".join(f"{number}: the quick brown fox jumps over the lazy dog, é日🎭\n" for number in range(60))


class Uniform(nn.Module):
    """Gives every token the same probability."""

    def __init__(self, described: TokensInput) -> None:
        super().__init__()
        self.tokens = tokens(described)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.zeros(*ids.shape, self.tokens)


def bytes_of(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_uniform_guess_costs_the_same_for_every_token(kind: str) -> None:
    described = fit(TEXT, kind, context=7)
    nats, sizes = piece_losses(Uniform(described), described, bytes_of(TEXT))
    assert nats.dtype == np.float32
    assert nats.shape == (len(sizes), 1)
    assert sizes.sum(0).tolist() == [len(encode(TEXT, described)), len(TEXT), len(TEXT.encode())]
    assert nats[:, 0] == pytest.approx(sizes[:, 0] * np.log(tokens(described)))


def test_pieces_are_the_same_for_every_tokenizer() -> None:
    counted = []
    for kind in TOKENIZERS:
        described = fit(TEXT[:300], kind, context=9)
        counted.append(piece_losses(Uniform(described), described, bytes_of(TEXT))[1][:, 1:].tolist())
    assert counted[0] == counted[1] == counted[2]
    assert len(counted[0]) > 5
    assert min(size for _, size in counted[0]) >= PIECE


def test_an_unknown_token_costs_its_spelling() -> None:
    described = fit("ab", "characters", context=4)
    [[nats]], [[count, characters, size]] = piece_losses(Uniform(described), described, bytes_of("ab日a"))
    assert (count, characters, size) == (4, 4, 6)
    assert nats == pytest.approx(4 * np.log(3) + 4 * np.log(256))


def test_losses_are_those_of_the_tokens_that_follow() -> None:
    class Successor(Uniform):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return 50.0 * nn.functional.one_hot((ids + 1) % self.tokens, self.tokens)

    described = fit("abcdef", "characters", context=4)
    losses = token_losses(Successor(described), described, encode("abcdefdef", described))
    assert losses[[1, 2, 3, 4, 5, 7, 8]] == pytest.approx(0.0, abs=1e-6)
    assert losses[[0, 6]] == pytest.approx([np.log(7), 50.0], rel=1e-3)
    assert len(losses) == 9


@pytest.mark.parametrize("text", ["a", "ab", "a\n"])
def test_a_tiny_text_has_one_piece(text: str) -> None:
    described = fit(text, "characters", context=4)
    nats, sizes = piece_losses(Uniform(described), described, bytes_of(text))
    assert sizes.tolist() == [[len(text)] * 3]
    assert nats[0, 0] == pytest.approx(len(text) * np.log(tokens(described)))
