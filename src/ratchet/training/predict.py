"""Outputs for a whole split, computed in one way for every measurement."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ratchet.problems import NextToken
from ratchet.tokens.token_ids import tokens
from ratchet.training.batches import Split
from ratchet.training.models.fitted import Constant
from ratchet.training.stream_losses import piece_losses
from ratchet.training.streams import StreamSplit

__all__ = ["answers", "predict_outputs", "token_shares"]

_BATCH = 512


def answers(
    model: nn.Module, split: Split, *, report: Callable[[int], None] | None = None
) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Return the model's outputs for the samples on which models are compared, and their targets.

    For a token stream these are the losses of pieces of the text and their sizes; see `piece_losses`. For the others
    they are the outputs of `predict_outputs` and the split's targets.
    """
    if isinstance(split, StreamSplit):
        return piece_losses(model, split.input_spec, split.text, report=report)
    return predict_outputs(model, split, report=report), np.asarray(split.targets)


def token_shares(split: StreamSplit) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Return the answers of a model that knows only how frequent each token of this very split is."""
    target = NextToken(tokens(split.input_spec))
    counts = np.bincount(split.windows.ids, minlength=target.outputs) + 0.5
    model = Constant(target=target)
    model.value.copy_(torch.from_numpy(np.log(counts / counts.sum())))
    return answers(model, split)


def predict_outputs(
    model: nn.Module, split: Split, *, report: Callable[[int], None] | None = None
) -> NDArray[np.float32]:
    """Return the outputs of every sample in order: float32 (rows, outputs), computed in fp32 on the CPU.

    With one device and one precision the metrics of a model do not depend on the machine that trained it. The model is
    left in eval mode.

    Args:
        report: called with the number of rows done.
    """
    model = model.to("cpu").eval()
    parts: list[torch.Tensor] = []
    with torch.inference_mode():
        pieces = list(split.in_order(_BATCH))
        for rows, (inputs, _) in zip(pieces, split.feed(pieces, torch.device("cpu")), strict=True):
            parts.append(model(*inputs).float())
            if report is not None:
                report(int(rows[-1]) + 1)
    outputs: NDArray[np.float32] = torch.cat(parts).numpy()
    return outputs
