"""Losses of a language model over a text, in pieces that are the same for every model.

See `ratchet.kinds.pieces`. The losses are those of a code for the text: the first token, which nothing
precedes, costs as much as a uniform guess, and an unknown token also costs its spelling, at 8 bits for each byte and
for its end. So losses per character of models with different tokenizers can be compared.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from ratchet.kinds import TokensInput
from ratchet.kinds.pieces import piece_bounds
from ratchet.tokens.token_ids import encode, text_tokens, tokens
from ratchet.training.streams import IGNORED, StreamSplit

__all__ = ["piece_losses", "token_losses"]

_BATCH, _LOGITS = 128, 1 << 26  # windows at once, and logits at once
_BYTE = math.log(256)  # nats


def piece_losses(
    model: nn.Module, input_spec: TokensInput, text: NDArray[np.uint8], *, report: Callable[[int], None] | None = None
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the losses of the pieces of a text, and their sizes.

    Args:
        model: from ids int64 (n, t) to logits (n, t, tokens).
        text: UTF-8, (bytes,).
        report: called with the number of windows done.

    Returns:
        float32 (pieces, 1), nats; int64 (pieces, 3), the number of tokens, characters and bytes.
    """
    smallest = np.min_scalar_type(tokens(input_spec) - 1)
    pieces = [text[start:end].tobytes().decode() for start, end in piece_bounds(text)]
    ids = [encode(piece, input_spec).astype(smallest) for piece in pieces]
    sizes = [(len(part), len(piece), len(piece.encode())) for part, piece in zip(ids, pieces, strict=True)]
    losses = token_losses(model, input_spec, np.concatenate(ids), report=report)
    ends = np.cumsum([size[0] for size in sizes])
    nats = np.array([part.sum(dtype=np.float64) for part in np.split(losses, ends[:-1])])
    for number, (part, piece) in enumerate(zip(ids, pieces, strict=True)):
        nats[number] += _spelling(part, piece, input_spec)
    return nats.astype(np.float32)[:, None], np.array(sizes, np.int64)


def token_losses(
    model: nn.Module, input_spec: TokensInput, ids: NDArray[np.integer], *, report: Callable[[int], None] | None = None
) -> NDArray[np.float32]:
    """Return the loss of each token of a stream in nats, float32 (tokens,), computed on the CPU."""
    model = model.cpu().eval()
    losses = [np.array([math.log(tokens(input_spec))], np.float32)]
    if len(ids) < 2:
        return losses[0][: len(ids)]
    split = StreamSplit.of("test", ids, input_spec.context)
    with torch.inference_mode():
        for rows in split.in_order(max(1, min(_BATCH, _LOGITS // (input_spec.context * tokens(input_spec))))):
            (seen,), targets = split.batch(rows, torch.device("cpu"))
            logits, following = model(seen).float().flatten(0, 1), targets.flatten()
            each = functional.cross_entropy(logits, following, ignore_index=IGNORED, reduction="none")
            losses.append(each[following != IGNORED].numpy())
            if report is not None:
                report(int(rows[-1]) + 1)
    return np.concatenate(losses)


def _spelling(ids: NDArray[np.integer], piece: str, input_spec: TokensInput) -> float:
    """Return the nats that the bytes of the unknown tokens of a piece cost."""
    if input_spec.tokenizer == "bytes":
        return 0.0
    places: list[int] = np.flatnonzero(ids == tokens(input_spec) - 1).tolist()
    spelt = text_tokens(piece, input_spec) if places else ()
    return _BYTE * sum(len(spelt[place].encode()) + 1 for place in places)
